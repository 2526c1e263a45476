"""Turns C headers into plain declarations: preprocesses them and removes what only a C compiler understands.

cffi's parser and pycparser accept no atomics, alignments, assertions or bodies. A binding needs none of them: sizes and
offsets come from the C compiler in any case.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "csrc/include"
ABI_MAJOR = 1
"""Major version of the shared layout that the bindings are written for."""
LIMITS = {f"{sign}INT{bits}_MAX": (1 << (bits - (not sign))) - 1 for sign in ("", "U") for bits in (8, 16, 32, 64)}
DROPPED = ("_Static_assert", "_Alignas", "__attribute__")
"""Words that are removed, together with the parentheses after them."""
POINTERS = {"MFS_COOKIE_NONE": "void *const"}
"""Types of the macros that are not numbers and that programs need."""


class HeaderError(Exception):
    """A header cannot be used. The message is one line: which header, what is wrong, what to do."""


class Header(NamedTuple):
    """One header, without the headers that it includes."""

    name: str
    """Name in an #include line: mfs/abi.h."""
    text: str
    macros: dict[str, str]
    """The macros without parameters, and the text that each stands for."""


def public_headers() -> list[str]:
    """Returns the headers that are installed for engines, as pyproject.toml lists them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    installed: list[str] = project["tool"]["setuptools"]["data-files"]["include/mfs"]
    return [Path(path).relative_to("csrc/include").as_posix() for path in installed]


def read_headers(names: Iterable[str], include: Path = INCLUDE) -> list[Header]:
    """Returns the named headers and the project's headers that they include, each once and after those that it needs.

    HeaderError: the preprocessor fails, or the ABI is another."""
    with tempfile.NamedTemporaryFile("w", suffix=".c") as source:
        source.write("".join(f"#include <{name}>\n" for name in names))
        source.flush()
        compiler = os.environ.get("CC", "cc").split()
        done = subprocess.run(
            [*compiler, "-E", "-dD", "-std=gnu11", f"-I{include}", source.name], capture_output=True, text=True
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        message = next((line for line in lines if "error" in line), lines[0])
        raise HeaderError(f"mfsd: the headers in {include} cannot be preprocessed: {message}")
    parts = _by_header(done.stdout, include)
    headers = [
        Header(name, plain(_without_directives(lines)), _macros(lines)) for name, lines in parts.items() if any(lines)
    ]
    _check_abi(headers, include)
    return headers


def _by_header(preprocessed: str, include: Path) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {}
    current: list[str] | None = None
    prefix = f"{include}{os.sep}"
    for line in preprocessed.splitlines():
        if marker := re.match(r'# \d+ "([^"]*)"', line):
            name = marker[1].removeprefix(prefix)
            current = parts.setdefault(name, []) if marker[1].startswith(prefix) else None
        elif current is not None:
            current.append(line)
    return _needed_first(parts, include)


def _needed_first(parts: dict[str, list[str]], include: Path) -> dict[str, list[str]]:
    """Orders the headers so that each comes after those that it includes: the preprocessor begins it before them."""
    order: list[str] = []

    def place(name: str) -> None:
        if name not in order:
            for needed in re.findall(r"^#include <([^>]+)>", (include / name).read_text(), re.MULTILINE):
                if needed in parts:
                    place(needed)
            order.append(name)

    for name in parts:
        place(name)
    return {name: parts[name] for name in order}


def _without_directives(lines: Iterable[str]) -> str:
    return "\n".join(line for line in lines if not line.startswith("#"))


def _macros(lines: Iterable[str]) -> dict[str, str]:
    found = (re.match(r"#define (MFS_\w+) (.+)", line) for line in lines)
    return {match[1]: match[2].strip() for match in found if match}


def _check_abi(headers: Iterable[Header], include: Path) -> None:
    for header in headers:
        major = header.macros.get("MFS_ABI_MAJOR")
        if major is not None and major != str(ABI_MAJOR):
            raise HeaderError(
                f"mfsd: {include / header.name} is of ABI {major}.{header.macros.get('MFS_ABI_MINOR')}, and these bindings "
                f"of ABI {ABI_MAJOR}: take headers and bindings from one version of MFS"
            )


def plain(text: str) -> str:
    """Returns only the declarations, in a form that any parser of C declarations accepts."""
    for word in DROPPED:
        text = _without_calls(text, word)
    text = re.sub(r"\b_Atomic\s*\(([^()]*)\)", r"\1", text)
    text = re.sub(r"\b_Atomic\b", "", text)
    text = _without_bodies(text)
    text = re.sub(r"^\s*;\s*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\n\s*\n+", "\n", text).strip() + "\n"


def _without_calls(text: str, word: str) -> str:
    parts, at = [], 0
    for match in re.finditer(rf"\b{word}\b\s*", text):
        if match.start() >= at:
            parts.append(text[at : match.start()])
            at = closing(text, match.end())
    return "".join([*parts, text[at:]])


def _without_bodies(text: str) -> str:
    """Replaces functions that a header defines by their declarations."""
    parts, at = [], 0
    for match in re.finditer(r"\bstatic\s+inline\s+([^;{]*?)\s*(?=\{)", text):
        if match.start() >= at:
            parts += [text[at : match.start()], match[1], ";"]
            at = closing(text, match.end())
    return "".join([*parts, text[at:]])


def closing(text: str, at: int) -> int:
    """Returns the position after the bracket that closes the one at `at`. Brackets in strings do not count. HeaderError
    if it is not closed."""
    pairs = {"(": ")", "{": "}", "[": "]"}
    open_: list[str] = []
    for match in re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|[][(){}]').finditer(text, at):
        token = match[0]
        if token in pairs:
            open_.append(pairs[token])
        elif open_ and token == open_[-1]:
            open_.pop()
            if not open_:
                return match.end()
    raise HeaderError(f"mfsd: a bracket is not closed in a header, near {text[at : at + 40]!r}")


def value_of(expression: str, known: Mapping[str, int | float]) -> int | float | None:
    """Returns the value of a constant C expression; None if it is not a number (a pointer, a list of arguments)."""
    text = re.sub(r"\bU?INT\d+_C\s*\(([^()]*)\)", r"(\1)", expression)
    text = re.sub(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]+\b", r"\1", text)
    try:
        return _number(ast.parse(text, mode="eval").body, {**LIMITS, **known})
    except (SyntaxError, KeyError, TypeError):
        return None


def _number(node: ast.expr, known: Mapping[str, int | float]) -> int | float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=name):
            return known[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand, known)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _number(left, known), _number(right, known)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.Div():
                    return int(a) // int(b) if isinstance(a, int) and isinstance(b, int) else a / b
                case ast.LShift():
                    return int(a) << int(b)
                case ast.BitOr():
                    return int(a) | int(b)
    raise TypeError(ast.dump(node))


def constants(headers: Iterable[Header], known: Mapping[str, int | float]) -> dict[str, dict[str, int | float]]:
    """Returns header -> macro -> number, for all macros that are numbers. `known`: the values of enumerations."""
    values = dict(known)
    found: dict[str, dict[str, int | float]] = {}
    for header in headers:
        found[header.name] = {}
        for name, text in header.macros.items():
            value = value_of(text, values)
            if value is not None:
                values[name] = found[header.name][name] = value
    return found
