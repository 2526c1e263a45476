"""The filter between the headers and those who read declarations only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mfsd._build import capi
from mfsd._build.declarations import INCLUDE, POINTERS, HeaderError, plain, public_headers, read_headers, value_of
from mfsd._build.extern import HEADERS, Writer
from mfsd._build.parsed import parse_headers
from mfsd.capi import lib


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('_Static_assert(sizeof(struct a) == 8, "a (bracket\\" :-)");\nint f(void);', "int f(void);"),
        ("struct a {\n\t_Alignas(64) _Atomic uint64_t x;\n};", "struct a {\n\t  uint64_t x;\n};"),
        ("struct a { _Alignas(f(8)) char x[32]; _Atomic(int) y; };", "struct a { char x[32]; int y; };"),
        (
            "static inline int f(int a)\n{\n\tif (a) { return '}'; }\n\treturn 0;\n}\nint g(void);",
            "int f(int a);\nint g(void);",
        ),
        ('__attribute__((visibility("default"))) int f(void);', "int f(void);"),
        ("int f(void);\n\n\n\n;\nint g(void);", "int f(void);\nint g(void);"),
    ],
)
def test_what_is_left(text: str, left: str) -> None:
    assert re.sub(r"\s+", " ", plain(text)).strip() == re.sub(r"\s+", " ", left)


def test_a_bracket_that_is_not_closed_is_reported() -> None:
    with pytest.raises(HeaderError, match="a bracket is not closed in a header, near"):
        plain("static inline int f(void) { if (")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("0x10ULL", 16),
        ("((1ULL << 60) - 1)", (1 << 60) - 1),
        ("1u << ONE | 1u << 3", 10),
        ("(64 - ONE)", 63),
        ("UINT32_MAX", (1 << 32) - 1),
        ("INT32_MAX", (1 << 31) - 1),
        ("(INT64_C(1) << 61)", 1 << 61),
        ("1e-9", 1e-9),
        ("-1", -1),
        ("((void *)UINTPTR_MAX)", None),
        ('"text"', None),
        ("other_name", None),
    ],
)
def test_constants(expression: str, value: float | None) -> None:
    assert value_of(expression, {"ONE": 1}) == value


def test_every_macro_of_the_public_headers_reaches_python() -> None:
    macros = {name for header in read_headers(public_headers()) for name in header.macros}
    assert macros and not [name for name in macros if not hasattr(lib, name)]
    assert set(POINTERS) <= macros


def test_every_function_of_the_public_headers_reaches_python() -> None:
    nodes = [node for part in parse_headers(read_headers(public_headers())).values() for node in part]
    functions = {node.name for node in nodes if type(node.type).__name__ == "FuncDecl"}
    assert {"mfs_api", "mfs_client_ask"} <= functions
    assert not [name for name in functions if not hasattr(lib, name)]


def copied(folder: Path, **changes: str) -> Path:
    """The public headers with words of abi.h replaced."""
    (folder / "mfs").mkdir()
    for header in public_headers():
        text = (INCLUDE / header).read_text()
        for old, new in changes.items():
            text = text.replace(old, new)
        (folder / header).write_text(text)
    return folder


def test_headers_of_another_abi_are_refused_in_one_line(tmp_path: Path) -> None:
    include = copied(tmp_path, **{"MFS_ABI_MAJOR 1": "MFS_ABI_MAJOR 2"})
    with pytest.raises(HeaderError) as error:
        read_headers(public_headers(), include)
    assert str(error.value) == (
        f"mfsd: {include}/mfs/abi.h is of ABI 2.{lib.MFS_ABI_MINOR}, and these bindings of ABI 1: "
        "take headers and bindings from one version of MFS"
    )


def test_a_header_that_does_not_compile_is_said_in_one_line(tmp_path: Path) -> None:
    include = copied(tmp_path)
    (include / "mfs/client.h").write_text("#error not today\n")
    with pytest.raises(HeaderError) as error:
        read_headers(public_headers(), include)
    assert "not today" in str(error.value) and "\n" not in str(error.value)


def test_a_header_that_the_parser_does_not_know_is_said_in_one_line(tmp_path: Path) -> None:
    include = copied(tmp_path, **{"struct mfs_gate {": "struct mfs_gate { __int128 @;"})
    with pytest.raises(HeaderError, match=r"cannot read a header: .*mfs/abi\.h:\d+") as error:
        capi.cffi_source(read_headers(public_headers(), include))
    assert "\n" not in str(error.value)


def test_cython_gets_names_that_c_keeps_apart() -> None:
    text = Writer(read_headers(HEADERS)).text()
    assert '    struct mfs_rmlq_stats_t "mfs_rmlq_stats":' in text
    assert "    void mfs_rmlq_stats(mfs_rmlq *queue, mfs_rmlq_stats_t *stats)" in text
    assert "    ctypedef uint64_t mfs_flow_handle" in text
    assert "    const int64_t MFS_PLAN_TIME_MAX" in text, "signed, as it is in C: it is negated"
    assert "    const uint64_t MFS_TIME_MAX" in text and "    const uint32_t MFS_RANK_NONE" in text
    assert not re.search(r"_Atomic|_Alignas|_Static_assert|\bstruct \w+ \*", text.split('"""')[0])
