"""Reads what the doctor needs from an ELF file: is it dynamic, what does it need, does it contain libibverbs itself."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

_PT_DYNAMIC, _PT_INTERP, _PT_LOAD = 2, 3, 1
_SHT_DYNSYM, _SHN_UNDEF = 11, 0
_DT_NEEDED, _DT_STRTAB = 1, 5
_STATIC_VERBS = (b"libibverbs: Warning: couldn't", b"libibverbs: Warning: no userspace device-specific driver")
"""Messages of libibverbs' device discovery, which only the library itself, or a static copy of it, contains."""


class Elf(Struct, frozen=True):
    dynamic: bool
    """The loader starts it (a program) or maps it (a library), so LD_PRELOAD and symbols apply."""
    needed: tuple[str, ...]
    loads_verbs: bool
    """Names libibverbs.so for dlopen."""
    defines: frozenset[str]
    """Symbols that other objects can bind to."""
    carries_verbs: bool
    """Contains a copy of libibverbs' own code, which a shim cannot interpose."""


def read_elf(path: Path) -> Elf | None:
    """Returns None if the file is no 64-bit little-endian ELF file. Raises OSError."""
    with path.open("rb") as file:
        head = file.read(64)
        if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
            return _read(image, path.name)


def _read(image: mmap.mmap, name: str) -> Elf:
    (table,) = struct.unpack_from("<Q", image, 32)
    size, count = struct.unpack_from("<HH", image, 54)
    headers = [struct.unpack_from("<IIQQQQ", image, table + i * size) for i in range(count)]
    loads = [(address, offset, length) for kind, _, offset, address, _, length in headers if kind == _PT_LOAD]
    dynamic = [(offset, length) for kind, _, offset, _, _, length in headers if kind == _PT_DYNAMIC]
    needed: list[str] = []
    for offset, length in dynamic:
        entries = [struct.unpack_from("<QQ", image, at) for at in range(offset, offset + length, 16)]
        strings = next((value for tag, value in entries if tag == _DT_STRTAB), 0)
        at = next((o + strings - a for a, o, n in loads if a <= strings < a + n), None)
        if at is not None:
            needed += [_text(image, at + value) for tag, value in entries if tag == _DT_NEEDED]
    verbs = "libibverbs" in name
    return Elf(
        dynamic=bool(dynamic) and (any(kind == _PT_INTERP for kind, *_ in headers) or ".so" in name),
        needed=tuple(needed),
        defines=frozenset(_defined(image)),
        loads_verbs=not verbs and image.find(b"libibverbs.so") >= 0,
        carries_verbs=not verbs and any(image.find(text) >= 0 for text in _STATIC_VERBS),
    )


def _defined(image: mmap.mmap) -> Iterator[str]:
    (table,) = struct.unpack_from("<Q", image, 40)
    size, count = struct.unpack_from("<HH", image, 58)
    sections = [struct.unpack_from("<IIQQQQII", image, table + i * size) for i in range(count if table else 0)]
    for _, kind, _, _, offset, length, link, _ in sections:
        if kind == _SHT_DYNSYM:
            strings = sections[link][4]
            for at in range(offset, offset + length, 24):
                name, _, _, section = struct.unpack_from("<IBBH", image, at)
                if section != _SHN_UNDEF:
                    yield _text(image, strings + name)


def _text(image: mmap.mmap, at: int) -> str:
    return image[at : image.find(b"\0", at)].decode(errors="replace")
