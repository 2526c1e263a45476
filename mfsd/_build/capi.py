"""Writes the source of mfsd.capi, the public C interface for Python, with cffi from the installed headers."""

from __future__ import annotations

import re
from pathlib import Path

import cffi

from mfsd._build.declarations import POINTERS, Header, constants, public_headers, read_headers
from mfsd._build.parsed import enum_values, parse_headers

MODULE = "mfsd.capi"


def cffi_source(headers: list[Header]) -> str:
    """Returns the declarations for cffi. Sizes, offsets and the values of macros are left to the compiler (`...`)."""
    known = enum_values(node for nodes in parse_headers(headers).values() for node in nodes)
    numbers = constants(headers, known)
    parts = []
    for header in headers:
        parts += [f"#define {name} ...\n" for name, value in numbers[header.name].items() if isinstance(value, int)]
        parts += [f"static {kind} {name};\n" for name, kind in POINTERS.items() if name in header.macros]
        parts.append(open_structs(header.text))
    return "".join(parts)


def open_structs(text: str) -> str:
    """Adds `...` at the end of each struct, because aligned members leave gaps that the declaration does not show.

    cffi does not accept `...` together with bit fields. It checks such a struct against the compiler's layout when the
    module is built."""
    return re.sub(r"(\bstruct\s+\w+\s*\{[^{}:]*)\}", r"\1...; }", text)


def write(path: Path) -> None:
    """Writes the module's C source, if it has changed."""
    headers = read_headers(public_headers())
    ffi = cffi.FFI()
    ffi.cdef(cffi_source(headers))
    ffi.set_source(MODULE, "".join(f"#include <{header.name}>\n" for header in headers))
    ffi.emit_c_code(str(path))
