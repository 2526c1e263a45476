"""Reads what /proc tells about running programs."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct


class Mapped(Struct, frozen=True):
    """A file in a process's memory."""

    path: Path
    deleted: bool


def mapped_files(folder: Path) -> list[Mapped]:
    """The files that the process at ``/proc/PID`` has mapped, without duplicates. Raises OSError."""
    found: dict[str, None] = {}
    for line in (folder / "maps").read_text(errors="replace").splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith("/"):
            found[fields[5]] = None
    return [Mapped(Path(name.removesuffix(" (deleted)")), name.endswith(" (deleted)")) for name in found]


def device_files(folder: Path) -> list[str]:
    """RDMA device files that the process has open; empty if that may not be read."""
    found = set()
    try:
        for entry in (folder / "fd").iterdir():
            try:
                target = os.readlink(entry)  # noqa: PTH115 -- the text is wanted, it need not exist here
            except OSError:
                continue
            if target.startswith("/dev/infiniband/uverbs"):
                found.add(target)
    except OSError:
        return []
    return sorted(found)


def name_of(folder: Path) -> str:
    try:
        return (folder / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""
