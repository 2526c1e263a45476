"""One layout in three languages: C has it, and the bindings by Cython and by cffi agree with it field by field."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from mfsd import _native
from mfsd._build.declarations import INCLUDE, public_headers
from mfsd.capi import ffi, lib

CFLAGS = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}"]
STRUCTS = ffi.list_types()[1]
OPAQUE = {"mfs_client"}
KNOWN = [name for name in STRUCTS if name not in OPAQUE]


def fields(name: str) -> dict[str, Any]:
    """Those that have an address."""
    return {field: at for field, at in ffi.typeof(f"struct {name}").fields if at.bitsize < 0}


@pytest.fixture(scope="module")
def in_c(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What the compiler says of the headers themselves."""
    folder = tmp_path_factory.mktemp("layout")
    lines = [f'\tsay("{name}", sizeof(struct {name}));' for name in KNOWN]
    lines += [f'\tsay("{name}.{field}", offsetof(struct {name}, {field}));' for name in KNOWN for field in fields(name)]
    (folder / "layout.c").write_text(
        "".join(f"#include <{header}>\n" for header in public_headers())
        + '#include <stdio.h>\n#define say(what, n) printf("%s %zu\\n", what, (size_t)(n))\n'
        + "int main(void)\n{\n"
        + "\n".join(lines)
        + "\n\treturn 0;\n}\n"
    )
    subprocess.run(["cc", *CFLAGS, str(folder / "layout.c"), "-o", str(folder / "layout")], check=True)
    output = subprocess.run([str(folder / "layout")], capture_output=True, text=True, check=True).stdout
    return {name: int(number) for name, number in map(str.split, output.splitlines())}


def test_every_structure_of_the_shared_memory_is_known() -> None:
    assert {"mfs_segment", "mfs_segment_header", "mfs_message", "mfs_api", "mfs_task", "mfs_batch_info"} <= set(KNOWN)
    with pytest.raises(TypeError, match="of unknown size"):
        ffi.new("struct mfs_client *")


def test_cffi_has_the_layout_of_c(in_c: dict[str, int]) -> None:
    by_cffi = {name: ffi.sizeof(f"struct {name}") for name in KNOWN}
    by_cffi |= {f"{name}.{field}": at.offset for name in KNOWN for field, at in fields(name).items()}
    assert by_cffi == in_c


def test_cython_has_the_layout_of_c(in_c: dict[str, int]) -> None:
    parts = fields("mfs_segment")
    assert {name for name in _native.LAYOUT if "." not in name} == parts.keys()
    for name, offset in _native.LAYOUT.items():
        part, _, field = name.partition(".")
        inside = in_c[f"mfs_segment.{part}"]
        if field:
            kind = parts[part].type
            while kind.kind == "array":
                kind = kind.item
            inside += in_c[f"{kind.cname.removeprefix('struct ')}.{field}"]
        assert offset == inside, name
    sizes = {
        "mfs_segment": _native.SEGMENT_BYTES,
        "mfs_message": _native.MESSAGE_BYTES,
        "mfs_hello": _native.HELLO_BYTES,
    }
    sizes |= {"mfs_mpsc_slot": _native.SUBMIT_SLOT_BYTES, "mfs_request": _native.REQUEST_BYTES}
    sizes |= {"mfs_demand": _native.DEMAND_BYTES, "mfs_batch": _native.BATCH_BYTES, "mfs_usage": _native.USAGE_BYTES}
    assert sizes == {name: in_c[name] for name in sizes}


def test_both_bindings_are_of_one_version() -> None:
    assert (lib.MFS_ABI_MAJOR, lib.MFS_ABI_MINOR) == (_native.ABI_MAJOR, _native.ABI_MINOR)
    assert lib.MFS_ABI_MAGIC == _native.ABI_MAGIC


def test_bits_of_a_message_are_read_where_c_writes_them() -> None:
    message = ffi.new("struct mfs_message *", {"bytes": (1 << 40) - 2, "queue": 0xABCDEF})
    assert (message.bytes, message.queue) == ((1 << 40) - 2, 0xABCDEF)
    assert bytes(ffi.buffer(message))[8:16] == ((0xABCDEF << 40) | (1 << 40) - 2).to_bytes(8, "little")


def test_the_public_headers_are_all_there() -> None:
    assert [Path(header).name for header in public_headers()][:1] == ["api.h"]
    assert lib.MFS_RANGES_MAX == 4096 and lib.MFS_STAGE_P2D == _native.Stage.P2D
    assert ffi.cast("void *", (1 << 64) - 1) == lib.MFS_COOKIE_NONE
