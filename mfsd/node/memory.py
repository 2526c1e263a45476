"""How many programs fit into the memory that this process may use.

All segments are charged to the daemon. The kernel ends a daemon whose control group has no memory left, and with it the
scheduling of every program. So programs beyond the limit are refused while there is still memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

BASE_BYTES = 96 << 20
"""The daemon without programs, with full tables of tasks and requests and four recordings. At rest it takes a third."""
CLIENT_BYTES = 3 << 20
"""The most that one program takes: its segment, and what the arbiter keeps about it."""


def clients_that_fit(limit_bytes: int | None, wanted: int) -> int:
    """How many of the wanted clients fit, at least one."""
    if limit_bytes is None:
        return wanted
    return max(1, min(wanted, (limit_bytes - BASE_BYTES) // CLIENT_BYTES))


def bytes_for(clients: int) -> int:
    """The memory needed to serve so many clients."""
    return BASE_BYTES + clients * CLIENT_BYTES


def memory_limit_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The tightest limit of this process's control group and those above it. None: no limit can be seen."""
    return min(_limits(proc, groups), default=None)


def _limits(proc: Path, groups: Path) -> Iterator[int]:
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            roots, name = [groups, groups / "unified"], "memory.max"
        elif "memory" in controllers.split(","):
            roots, name = [groups / controllers], "memory.limit_in_bytes"
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        for root in roots:  # a container without a cgroup namespace sees its own group as the root
            for folder in (own, *own.parents):
                try:
                    text = (root / folder / name).read_text().strip()
                except OSError:
                    continue
                if text.isdigit() and int(text) < 1 << 60:  # in version 1 a huge number means no limit
                    yield int(text)
