"""Translates process ids of a daemon in another PID namespace (a container, a playground) to those of this one."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path

import msgspec

from mfsd.node.control import StatusReply


def daemon_pid(control: Path) -> int:
    """Returns the id, in this namespace, of the process that serves the control socket; 0 if it is unknown."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        connection.connect(str(control))
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", data)[0])
    return 0


class Pids:
    """Translates between the daemon's namespace and ours."""

    def __init__(self, control: Path, reported_pid: int, proc: Path = Path("/proc")) -> None:
        """`reported_pid`: the daemon's process id in its own namespace."""
        here = daemon_pid(control)
        self.here: dict[int, int] = {}
        """Process ids in the daemon's namespace -> in ours; empty if the namespace is the same."""
        if here and here != reported_pid:
            self.here = _numbers(proc, here) | {reported_pid: here}

    def of_daemon(self, pid: int) -> int:
        """Returns the process id in the daemon's namespace for one in ours."""
        return next((theirs for theirs, ours in self.here.items() if ours == pid), pid)

    def shown(self, status: StatusReply) -> StatusReply:
        """Returns the status with the process ids of our namespace."""
        if not self.here:
            return status
        daemon = msgspec.structs.replace(status.daemon, pid=self.here.get(status.daemon.pid, status.daemon.pid))
        clients = [msgspec.structs.replace(c, pid=self.here.get(c.pid, c.pid)) for c in status.clients]
        return msgspec.structs.replace(status, daemon=daemon, clients=clients)


def _numbers(proc: Path, member: int) -> dict[int, int]:
    """Returns innermost process id -> ours, for all readable processes in the PID namespace of `member`."""
    found = {}
    try:
        space = os.readlink(proc / str(member) / "ns/pid")  # noqa: PTH115 -- the text names the namespace
    except OSError:
        return {}
    for folder in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, StopIteration):
            if os.readlink(folder / "ns/pid") != space:  # noqa: PTH115
                continue
            lines = (folder / "status").read_text().splitlines()
            numbers = next(line for line in lines if line.startswith("NSpid:")).split()
            found[int(numbers[-1])] = int(folder.name)
    return found
