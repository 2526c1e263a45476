"""What a process has sent and received over TCP, by peer, as the kernel counts it: acknowledged payload, at any moment.

Soft RoCE carries every queue pair in a connection of the process that made it, so this is what the process's verbs have
moved, whether or not the program says so itself.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

_LINE = re.compile(
    r"^\S+\s+\d+\s+\d+\s+\S+\s+(?P<peer>\S+):\d+\s.*?\bino:(?P<inode>\d+)(?P<rest>.*)$",
)
_SENT, _RECEIVED = re.compile(r"\bbytes_acked:(\d+)"), re.compile(r"\bbytes_received:(\d+)")


class Moved(NamedTuple):
    sent: int = 0
    received: int = 0


def moved(namespace: str, pid: int) -> dict[str, Moved]:
    """By the peer's IPv4 address."""
    listed = subprocess.run(
        ["ss", "-N", namespace, "-tinHOe"], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    return counted(listed, sockets(pid))


def sockets(pid: int) -> set[int]:
    """Inodes of the process's sockets; none when it is gone."""
    found = set()
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(descriptor.readlink())
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return found


def counted(listed: str, inodes: set[int]) -> dict[str, Moved]:
    """Sums, by peer, of those of the connections in `ss`'s listing that have one of the inodes."""
    total: dict[str, Moved] = {}
    for line in listed.splitlines():
        match = _LINE.match(line)
        if match is None or int(match["inode"]) not in inodes:
            continue
        peer = match["peer"].strip("[]").removeprefix("::ffff:")
        before = total.get(peer, Moved())
        sent, received = _SENT.search(match["rest"]), _RECEIVED.search(match["rest"])
        total[peer] = Moved(
            before.sent + (int(sent[1]) if sent else 0), before.received + (int(received[1]) if received else 0)
        )
    return total
