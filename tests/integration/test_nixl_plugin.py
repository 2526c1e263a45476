"""NIXL's backend plugin MFS with real daemons and the wheels of two versions, over TCP and over RDMA on soft RoCE."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mooncake_adapter.nixl_plugins import FOLDER
from tests.conftest import ROOT, SoftRoce
from tests.support.daemon import Daemon
from tests.support.under_mfs import under_mfs
from tests.support.waiting import eventually
from tests.support.wheels import NIXL_VERSIONS, nixl_wheel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the wheels are for x86_64"),
]
PROGRAM = ROOT / "tests/integration/plugin_nixl.py"
SIZE = 4 << 20
TRANSFERS = 2 * 2 * 8
"""Of one run of the program."""
NAMES = {
    "DELETE": "D0Ev",
    "DISCONNECT": "10disconnectERK",
    "PREPARE": "8prepXferERK",
    "POST": "8postXferERK",
    "CHECK": "9checkXferEP",
    "RELEASE": "11releaseReqHEP",
    "ESTIMATE": "16estimateXferCostERK",
}


def environment(version: str, **more: str) -> dict[str, str]:
    path = os.pathsep.join([str(nixl_wheel(version)), str(ROOT)])
    return {"PYTHONPATH": path, "NIXL_PLUGIN_DIR": str(FOLDER), "NIXL_LOG_LEVEL": "ERROR", **more}


class Program:
    """The program over TCP, without the preloaded library."""

    def __init__(self, folder: Path, socket: Path, version: str, backend: str = "MFS", **more: str) -> None:
        self.place = folder / "word"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MFS_")}
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), backend, str(self.place)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**clean, "UCX_TLS": "tcp", "MFS_SOCKET": str(socket), **environment(version, **more)},
        )

    def go_on(self) -> None:
        self.place.with_suffix(".on").touch()

    def wait_half(self) -> None:
        half = self.place.with_suffix(".half")
        eventually(lambda: half.exists() or self.process.poll() is not None, "the middle")

    def ended(self) -> tuple[dict[str, Any], str]:
        """What it printed, and what it said on standard error."""
        output, errors = self.process.communicate(timeout=100)
        assert self.process.returncode == 0, errors
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        return found, errors


@pytest.fixture(params=NIXL_VERSIONS)
def version(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


def table_of(library: Path, kind: str) -> list[str]:
    """The names of a class's virtual functions, by their place."""
    symbols, size, start = {}, 0, 0
    listed = subprocess.run(["readelf", "-W", "--dyn-syms", library], capture_output=True, text=True, check=True)
    for field in (line.split() for line in listed.stdout.splitlines()):
        if len(field) > 7 and field[0].rstrip(":").isdigit() and int(field[1], 16):
            symbols[int(field[1], 16)] = field[7]
            if field[7] == f"_ZTV{kind}":
                start, size = int(field[1], 16), int(field[2], 0)
    names = [""] * (size // 8)
    relocations = subprocess.run(["readelf", "-W", "-r", library], capture_output=True, text=True, check=True)
    for field in (line.split() for line in relocations.stdout.splitlines()):
        if len(field) > 3 and field[2].startswith("R_X86_64") and start <= int(field[0], 16) < start + size:
            relative = field[2].endswith("RELATIVE")
            names[(int(field[0], 16) - start) // 8] = symbols.get(int(field[3], 16), "") if relative else field[4]
    return names[2:]


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        ("UCX", "13nixlUcxEngine"),
        ("UCX", "19nixlUcxThreadEngine"),
        ("UCX", "23nixlUcxThreadPoolEngine"),
        ("LIBFABRIC", "19nixlLibfabricEngine"),
    ],
)
def test_the_wheels_tables_are_as_the_header_says(version: str, backend: str, kind: str) -> None:
    (library,) = nixl_wheel(version).glob(f".*.mesonpy.libs/plugins/libplugin_{backend}.so")
    table = table_of(library, kind)
    header = (ROOT / "csrc/nixl/abi.h").read_text()
    slots = dict(re.findall(r"NIXL_SLOT_(\w+) = (\d+)", header))
    assert len(slots) == len(NAMES) and len(table) >= 27
    for slot, name in NAMES.items():
        assert name in table[int(slots[slot])], (slot, table)


def granted(daemon: Daemon) -> int:
    return sum(c.granted_bytes for nic in daemon.status().nics for c in nic.classes)


def run(folder: Path, socket: Path, version: str, backend: str = "MFS", **more: str) -> tuple[dict[str, Any], str]:
    program = Program(folder, socket, version, backend, **more)
    program.go_on()
    return program.ended()


def test_every_transfer_asks_for_one_permit(folder: Path, version: str) -> None:
    with Daemon(folder) as daemon:
        found, errors = run(folder, daemon.socket, version)
        assert granted(daemon) == TRANSFERS * SIZE
        assert {"MFS", "UCX", "POSIX"} <= set(found["plugins"])
        assert "mfs:" not in errors


def test_a_daemon_that_ends_in_the_middle_changes_nothing(folder: Path, version: str) -> None:
    with Daemon(folder, patient=False) as daemon:
        program = Program(folder, daemon.socket, version)
        program.wait_half()
        assert granted(daemon) > 0
        daemon.process.kill()
        daemon.process.wait()
        program.go_on()
        program.ended()


def test_a_daemon_that_comes_later_is_found(folder: Path) -> None:
    program = Program(folder, folder / "run/mfsd.sock", NIXL_VERSIONS[-1])
    program.wait_half()
    with Daemon(folder) as daemon:
        daemon.wait_clients(1)
        program.go_on()
        program.ended()
        assert granted(daemon) > 0


def test_without_a_daemon_nothing_is_different(folder: Path, version: str) -> None:
    _, errors = run(folder, folder / "none.sock", version)
    assert "mfs:" not in errors


def test_ucx_asks_under_its_own_name_where_it_is_told_to(folder: Path) -> None:
    with Daemon(folder) as daemon:
        run(folder, daemon.socket, NIXL_VERSIONS[-1], "UCX")
        assert granted(daemon) == 0
        run(folder, daemon.socket, NIXL_VERSIONS[-1], "UCX", MFS_NIXL_BACKEND="UCX")
        assert granted(daemon) == TRANSFERS * SIZE


def test_a_peer_without_mfs_is_sent_to_as_ever(folder: Path) -> None:
    with Daemon(folder) as daemon:
        more = {"STOCK_TARGET": "1", "MFS_NIXL_BACKEND": "UCX", "UCX_TLS": "tcp", "MFS_SOCKET": str(daemon.socket)}
        done = subprocess.run(
            [sys.executable, str(PROGRAM.with_name("nixl_peers.py"))],
            env={**os.environ, **environment(NIXL_VERSIONS[-1], **more)},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert "verified 3 writes and 3 reads" in done.stdout, done.stderr
        assert granted(daemon) == 6 * 8 << 20


def test_a_cpp_program_of_nixls_own_asks_without_a_change(folder: Path, version: str) -> None:
    """The example that the wheel brings compiled. It ends by a signal after its last line, with MFS as without."""
    wheel = nixl_wheel(version)
    program = wheel / "nixl_cu12.scripts/nixl_example"
    program.chmod(0o755)
    libraries = os.pathsep.join(str(wheel / name) for name in (".nixl_cu12.mesonpy.libs", "nixl_cu12.libs"))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MFS_", "NIXL_"))}
    with Daemon(folder) as daemon:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "nccl_shim.run", "--socket", str(daemon.socket), "--nixl-backend", "UCX", "--"),
                *(str(program), "UCX"),
            ],
            env={**clean, "LD_LIBRARY_PATH": libraries, "UCX_TLS": "tcp"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert "Transfer verified" in done.stdout and "Test done" in done.stdout, done.stdout + done.stderr
        assert granted(daemon) > 0
        assert daemon.status().daemon.attached_total == 1


def test_mode_off_means_untouched(folder: Path) -> None:
    with Daemon(folder) as daemon:
        run(folder, daemon.socket, NIXL_VERSIONS[-1], MFS_MODE="off")
        assert daemon.status().daemon.attached_total == 0


@pytest.mark.parametrize("backend", ["MFS", "UCX"])
def test_an_adapted_agent_asks_once(folder: Path, backend: str) -> None:
    with Daemon(folder) as daemon:
        more = {"ADAPTED": "1", "MFS_NIXL": "1", "MFS_NIXL_BACKEND": "UCX"}
        run(folder, daemon.socket, NIXL_VERSIONS[-1], backend, **more)
        assert granted(daemon) == TRANSFERS * SIZE
        assert daemon.status().daemon.attached_total == 1, "and the plugin has no session of its own"


@pytest.mark.parametrize(("backend", "how"), [("MFS", "transfers use UCX, unscheduled"), ("UCX", "unscheduled")])
def test_an_unknown_backend_is_one_clear_line_and_transfers_go_on(
    folder: Path, version: str, backend: str, how: str
) -> None:
    with Daemon(folder) as daemon:
        program = Program(folder, daemon.socket, version, backend, MFS_NIXL_BACKEND="CARRIER_PIGEON")
        program.go_on()
        output, errors = program.ended()
        assert output["started"]
        (line,) = [line for line in errors.splitlines() if line.startswith("mfs:")]
        assert "cannot find NIXL's plugin libplugin_CARRIER_PIGEON.so beside" in line and "MFS_NIXL_PLUGIN_DIR" in line
        assert line.endswith(how)
        assert daemon.status().daemon.attached_total == 0


def test_a_backend_that_the_program_names_and_nixl_has_not_is_not_another_one(folder: Path) -> None:
    """Only the backend named MFS stands for any."""
    (folder / "plugins").mkdir()
    more = {"MFS_NIXL_BACKEND": "UCX", "MFS_NIXL_PLUGIN_DIR": str(folder / "plugins")}
    program = Program(folder, folder / "none.sock", NIXL_VERSIONS[-1], "UCX", **more)
    _, errors = program.process.communicate(timeout=100)
    assert program.process.returncode != 0
    (line,) = [line for line in errors.splitlines() if line.startswith("mfs:")]
    assert "cannot find NIXL's plugin libplugin_UCX.so beside" in line


def test_over_rdma_each_transfer_asks_once(soft_roce: SoftRoce, folder: Path, version: str) -> None:
    """Under the preloaded library: the session is its, and it holds none of the queue pairs of this backend."""
    place = folder / "word"
    place.with_suffix(".on").touch()
    rule = '[[rule]]\naction = "hold"\nstage = "p2d"\n'
    with Daemon(folder, rule) as daemon:
        command = under_mfs(daemon.socket, sys.executable, PROGRAM, "MFS", place)
        output = soft_roce.run(*command, env=environment(version, UCX_TLS="rc_v"), timeout_s=200).stdout
        assert json.loads(output.splitlines()[-1])["started"]
        assert granted(daemon) == TRANSFERS * SIZE
        assert [nic.name for nic in daemon.status().nics if nic.incoming_in_flight_bytes == 0] == ["mfs0"]
        daemon.wait_clients(0)


def test_what_the_program_says_of_its_thread_counts(soft_roce: SoftRoce, folder: Path) -> None:
    """As for its own work requests: mfs/api.h."""
    place = folder / "word"
    with Daemon(folder) as daemon:
        command = under_mfs(daemon.socket, sys.executable, PROGRAM, "MFS", place)
        started = soft_roce.start(*command, env=environment(NIXL_VERSIONS[-1], UCX_TLS="rc_v", CONTEXT="1"))
        half = place.with_suffix(".half")
        eventually(lambda: half.exists() or started.poll() is not None, "the middle")
        (client,) = daemon.status().clients
        assert client.submits > 0 and client.posted_bytes["reuse"] > client.submits * SIZE / 2, client
        place.with_suffix(".on").touch()
        output, _ = started.communicate(timeout=200)
        assert started.returncode == 0, output


def test_over_rdma_without_the_preloaded_library(soft_roce: SoftRoce, folder: Path) -> None:
    place = folder / "word"
    place.with_suffix(".on").touch()
    with Daemon(folder) as daemon:
        alone = environment(NIXL_VERSIONS[-1], UCX_TLS="rc_v", MFS_SOCKET=str(daemon.socket))
        soft_roce.run(sys.executable, PROGRAM, "MFS", place, env=alone, timeout_s=200)
        assert granted(daemon) == TRANSFERS * SIZE


def test_over_rdma_a_daemon_that_ends_in_the_middle_changes_nothing(soft_roce: SoftRoce, folder: Path) -> None:
    place = folder / "word"
    with Daemon(folder, patient=False) as daemon:
        command = under_mfs(daemon.socket, sys.executable, PROGRAM, "MFS", place)
        program = soft_roce.start(*command, env=environment(NIXL_VERSIONS[-1], UCX_TLS="rc_v"))
        half = place.with_suffix(".half")
        eventually(lambda: half.exists() or program.poll() is not None, "the middle")
        daemon.process.kill()
        daemon.process.wait()
        place.with_suffix(".on").touch()
        output, _ = program.communicate(timeout=200)
        assert program.returncode == 0, output
