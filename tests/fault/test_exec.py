"""exec() and set-user-ID programs: no descriptor gets into another program, and privileged ones do not attach."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mfsd._native import Client
from tests.support.daemon import Daemon

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
ATTACHES = """
#include <mfs/client.h>
#include <stdio.h>

int main(void)
{
	struct mfs_client_options options = {.mode = MFS_MODE_ENFORCE};
	struct mfs_client *client;
	const char *why = "attached";
	int rc = mfs_client_attach(&options, &client, &why);

	printf("%d %s\\n", rc, why);
	return 0;
}
"""


SHOWS = """
import json, os
files = {}
for fd in os.listdir("/proc/self/fd"):
    try:
        files[fd] = os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:  # that of the listing itself
        pass
print(json.dumps(files))
"""


def open_files() -> dict[str, str]:
    return {fd.name: str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()}


def test_no_descriptor_survives_exec(folder: Path) -> None:
    """Neither the client's, in a program that it becomes or starts, nor the daemon's."""
    with Daemon(folder) as daemon:
        before = set(open_files())
        with Client.attach(str(daemon.socket), timeout_ms=100_000) as client:
            client.nic("soft0", 7, 125_000_000)
            mine = {fd: to for fd, to in open_files().items() if fd not in before and "/proc" not in to}
            assert len(mine) >= 2, "the socket and the doorbell"
            assert not [fd for fd in mine if os.get_inheritable(int(fd))], mine
            shown = json.loads(
                subprocess.run(
                    [sys.executable, "-c", SHOWS], capture_output=True, text=True, close_fds=False, check=True
                ).stdout
            )
            assert not mine.items() & shown.items()  # a number alone may be one that the program has opened itself
        process = Path(f"/proc/{daemon.process.pid}")
        for info in (process / "fdinfo").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed since it was listed
                flags = next(line for line in info.read_text().splitlines() if line.startswith("flags:"))
                if int(info.name) > 2:
                    assert int(flags.split()[1], 8) & os.O_CLOEXEC, (process / "fd" / info.name).readlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a program of another user's")
def test_a_set_user_id_program_does_not_attach(folder: Path, tmp_path: Path) -> None:
    """Where secure execution holds, the environment is not believed: a socket that it names is another user's word."""
    source, program = tmp_path / "attaches.c", folder / "attaches"
    source.write_text(ATTACHES)
    client = sorted((ROOT / "csrc/client").glob("*.c"))
    compiler = shutil.which("cc") or "gcc"
    include = f"-I{ROOT}/csrc/include"
    subprocess.run([compiler, "-std=gnu11", include, source, *client, "-o", program, "-lpthread"], check=True)
    with Daemon(folder) as daemon:
        environment = {**os.environ, "MFS_SOCKET": str(daemon.socket)}

        def output() -> str:
            return subprocess.run([program], env=environment, capture_output=True, text=True, check=True).stdout

        assert output() == "0 attached\n"
        os.chown(program, NOBODY, -1)
        program.chmod(0o755 | stat.S_ISUID)
        assert output() == "-1 a set-user-ID program does not attach\n"
        assert daemon.status().daemon.attached_total == 1
