"""Reads what a program shares with its daemon from the program's memory, as the installed headers declare it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mfsd.capi import ffi, lib

NAME = "/memfd:mfs-segment"
"""The name that arbiter/session.c gives it."""
RINGS = ("submit_slot", "grant_slot")
"""Thousands of messages, nearly all of them old."""
Value = int | str | list[Any] | dict[str, Any]


class SegmentError(Exception):
    """Why there is nothing to show, in one line."""


class Mapping(NamedTuple):
    address: int
    size_bytes: int


def read_segments(pid: int, proc: Path = Path("/proc")) -> list[bytes]:
    """Returns the segments that the process has mapped, one for each of its sessions. Raises SegmentError."""
    try:
        found = mapped_segments((proc / str(pid) / "maps").read_text())
        if not found:
            raise SegmentError(
                f"process {pid} shares no memory with a daemon: see in mfsctl status whether it is attached"
            )
        with (proc / str(pid) / "mem").open("rb", buffering=0) as memory:
            return [_read(memory, place) for place in found]
    except FileNotFoundError as error:
        raise SegmentError(f"there is no process {pid}") from error
    except OSError as error:
        raise SegmentError(
            f"process {pid}: {error.strerror}: only root and the process's user may read its memory"
        ) from error


def mapped_segments(maps: str) -> list[Mapping]:
    """The mappings of segments in /proc/PID/maps."""
    found = []
    for line in maps.splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith(NAME) and int(fields[2], 16) == 0:
            low, high = (int(part, 16) for part in fields[0].split("-"))
            found.append(Mapping(low, high - low))
    return found


def _read(memory: Any, place: Mapping) -> bytes:
    memory.seek(place.address)
    parts: list[bytes] = []
    while (left := place.size_bytes - sum(map(len, parts))) > 0 and (part := memory.read(left)):
        parts.append(part)
    return b"".join(parts)


def decode_segment(data: bytes, rings: bool = False) -> dict[str, Any]:
    """Returns the segment as a tree, with the used entries of tables by number. Raises SegmentError for another ABI."""
    header_bytes = ffi.sizeof("struct mfs_segment_header")
    if len(data) < header_bytes:
        raise SegmentError(f"the segment has {len(data)} bytes, but its header alone takes {header_bytes}")
    size_bytes = ffi.sizeof("struct mfs_segment")
    memory = ffi.from_buffer(data.ljust(size_bytes, b"\0"))  # a daemon of a lower minor has less: the rest is 0
    segment = ffi.cast("struct mfs_segment *", memory)[0]
    header = segment.header
    if header.magic != lib.MFS_ABI_MAGIC:
        raise SegmentError(f"no segment: magic {header.magic:#x}, expected {lib.MFS_ABI_MAGIC:#x}")
    if header.major != lib.MFS_ABI_MAJOR:
        raise SegmentError(
            f"the segment is of ABI {header.major}.{header.minor}, but this mfsctl of {lib.MFS_ABI_MAJOR}."
            f"{lib.MFS_ABI_MINOR}: use the mfsctl of the program's installation"
        )
    left_out = () if rings else RINGS
    return {
        name: _value(getattr(segment, name), field.type)
        for name, field in ffi.typeof("struct mfs_segment").fields
        if name not in left_out
    }


def _value(data: Any, kind: Any) -> Value:
    if kind.kind == "struct":
        return {
            name: _value(getattr(data, name), field.type)
            for name, field in kind.fields
            if not re.fullmatch(r"reserved\d*", name)
        }
    if kind.kind != "array":
        return int(data)
    if kind.item.cname == "char":
        return ffi.string(data).decode(errors="replace")  # type: ignore[no-any-return]
    if kind.item.kind == "primitive":
        return [int(one) for one in data]
    return {str(i): _value(one, kind.item) for i, one in enumerate(data) if bytes(ffi.buffer(_place(one))).strip(b"\0")}


def _place(entry: Any) -> Any:
    """The argument for ffi.buffer: an array itself, or the address of anything else."""
    return entry if ffi.typeof(entry).kind == "array" else ffi.addressof(entry)


def _leaves(value: Value, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inside in value.items():
            yield from _leaves(inside, f"{path}[{name}]" if name.isdigit() else f"{path}.{name}".lstrip("."))
    else:
        yield path, " ".join(map(str, value)) if isinstance(value, list) else str(value)


def segment_lines(tree: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields pairs of a place, such as batch[3].layer_current, and the value there."""
    return _leaves(tree, "")
