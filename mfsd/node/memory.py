"""How many programs fit into the memory that this process may use.

All segments are charged to the daemon. The kernel ends a daemon whose control group has no memory left, and with it the
scheduling of every program; so programs beyond the limit are refused while there is still memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

BASE_BYTES = 96 << 20
"""The daemon without a program, with full tables of tasks and requests and four recordings; at rest it is a third."""
CLIENT_BYTES = 3 << 20
"""One program at most: its segment, and what the arbiter keeps of it."""


def clients_that_fit(limit_bytes: int | None, wanted: int) -> int:
    """So many of the wanted ones; one at least."""
    if limit_bytes is None:
        return wanted
    return max(1, min(wanted, (limit_bytes - BASE_BYTES) // CLIENT_BYTES))


def bytes_for(clients: int) -> int:
    """The memory with which all of them are served."""
    return BASE_BYTES + clients * CLIENT_BYTES


def memory_limit_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The tightest limit of this process's control group and those above it; None: there is none that can be seen."""
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
        for root in roots:  # a container without a namespace for groups sees its own one as the root
            for folder in (own, *own.parents):
                try:
                    text = (root / folder / name).read_text().strip()
                except OSError:
                    continue
                if text.isdigit() and int(text) < 1 << 60:  # version 1 writes no limit as a huge number
                    yield int(text)
