"""A separate system on this machine's kernel: systemd as its first process and this machine's distribution, without
anything that was installed besides.

It has namespaces for mounts, processes, network, IPC, the host's name and control groups. Its root is an overlay over
this machine's; changes are in memory and end with the system. /home, /root, /opt, /usr/local, /etc/mfs and /tmp are
empty. Needs root.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType

from tests.support.waiting import TIMEOUT_S, eventually

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "TERM": "xterm-256color", "SHELL": "/bin/sh"}
EMPTY = ("/home", "/root", "/opt", "/usr/local", "/etc/mfs", "/tmp", "/var/lib/mfs", "/srv", "/run")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

_BOOT = r"""
set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs "$BASE"
mkdir "$BASE/upper" "$BASE/work" "$BASE/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$BASE/upper,workdir=$BASE/work" "$BASE/root"
cd "$BASE/root"
for empty in $EMPTY; do
    mkdir -p ".$empty"
    mount -t tmpfs -o mode=0755 tmpfs ".$empty"
done
chmod 1777 tmp
mkdir -p usr/local/bin usr/local/sbin srv/mfs srv/wheels
mount --bind "$SOURCE" srv/mfs
[ -z "$WHEELS" ] || mount --bind -o ro "$WHEELS" srv/wheels
rm -f etc/hosts etc/pip.conf etc/systemd/system/*.wants/* etc/systemd/system/*.service
for name in localhost $NAMES; do
    echo "127.0.0.1 $name" >> etc/hosts
done
mount -t tmpfs tmpfs dev
for device in $DEVICES; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/shm dev/pts
mount -t tmpfs tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
# Nothing that a distribution starts with a boot: it would set up hardware that is not this system's.
for wants in sysinit.target.wants multi-user.target.wants sockets.target.wants local-fs.target.wants; do
    [ ! -d "usr/lib/systemd/system/$wants" ] || mount -t tmpfs tmpfs "usr/lib/systemd/system/$wants"
done
ln -s /usr/lib/systemd/system/systemd-journald.service usr/lib/systemd/system/sysinit.target.wants/
ip link set dev lo up
echo node-1 > etc/hostname
mkdir old
pivot_root . old
umount -l /old
exec env -i container=mfs-test PATH="$PATH" /usr/lib/systemd/systemd --system --unit=multi-user.target --log-target=null
"""


def missing() -> str:
    """Returns why there can be no clean system here; empty if there can."""
    if os.geteuid() != 0:
        return "needs root"
    if not Path("/usr/lib/systemd/systemd").exists() and not Path("/lib/systemd/systemd").exists():
        return "needs systemd"
    return ""


class CleanSystem:
    """A running system. It has `source` as /srv/mfs, where it may write, and `wheels` as /srv/wheels, for pip."""

    def __init__(self, folder: Path, source: Path, wheels: Path | None = None, names: tuple[str, ...] = ()) -> None:
        base = folder / "system"
        base.mkdir()
        namespaces = ("--pid", "--fork", "--mount", "--cgroup", "--net", "--uts", "--ipc", "--kill-child")
        environment = {
            "PATH": PATH,
            "BASE": str(base),
            "SOURCE": str(source),
            "WHEELS": str(wheels or ""),
            "EMPTY": " ".join(EMPTY),
            "DEVICES": " ".join(DEVICES),
            "NAMES": " ".join(["node-1", *names]),
        }
        self._pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/srv/wheels"} if wheels else {}
        self._log = folder / "boot.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                ["unshare", *namespaces, "sh", "-c", _BOOT], stdout=log, stderr=log, env=environment
            )
        try:
            self.pid = eventually(self._first, "the first process")
            eventually(self._booted, "systemd", pause_s=0.1)
        except BaseException:
            self._process.kill()  # and with it the first process, which dies with its parent
            raise

    def _first(self) -> int:
        assert self._process.poll() is None, self._log.read_text()
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def _booted(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        if b"systemd" not in Path(f"/proc/{self.pid}/cmdline").read_bytes():
            return False
        return self.run("systemctl is-system-running").stdout.strip() in ("running", "degraded")

    def enter(self, *command: str, **environment: str) -> list[str]:
        """Returns the command line that runs a command in the system, with a clean environment."""
        variables = {**ENVIRONMENT, **self._pip, **environment}
        into = ("nsenter", f"--target={self.pid}", *(f"--{kind}" for kind in ("mount", "pid", "net", "uts", "ipc")))
        clean = ("env", "-i", "--chdir=/srv/mfs", *(f"{name}={value}" for name, value in variables.items()))
        return [*into, "--cgroup", "--root", *clean, *command]

    def run(self, line: str, timeout_s: float = TIMEOUT_S, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a line with a shell."""
        return subprocess.run(
            self.enter("sh", "-c", line, **environment), capture_output=True, text=True, timeout=timeout_s
        )

    def __enter__(self) -> CleanSystem:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()  # and with it the first process, and so all others of its namespace
        self._process.wait(TIMEOUT_S)
