"""Parses plain declarations with pycparser."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pycparser import c_ast, c_parser

from mfsd._build.declarations import Header, HeaderError, value_of

Node = Any
"""pycparser has no types of its own."""
STANDARD = "".join(
    f"typedef {plain} {name};\n"
    for name, plain in {
        "size_t": "unsigned long",
        **{f"int{bits}_t": "long" for bits in (8, 16, 32, 64)},
        **{f"uint{bits}_t": "unsigned long" for bits in (8, 16, 32, 64)},
    }.items()
)
"""Standard types. Their definitions do not matter here; the parser must know that they are types."""


def parse_headers(headers: Iterable[Header]) -> dict[str, list[Node]]:
    """Returns the declarations of each header. HeaderError if one cannot be parsed."""
    marked = "".join(f'# 1 "{header.name}"\n{header.text}' for header in headers)
    try:
        tree = c_parser.CParser().parse(f'# 1 "standard"\n{STANDARD}{marked}', "headers")
    except c_parser.ParseError as error:
        raise HeaderError(f"mfsd: the bindings cannot read a header: {error}") from error
    parts: dict[str, list[Node]] = {header.name: [] for header in headers}
    for node in tree.ext:
        if node.coord.file in parts:
            parts[node.coord.file].append(node)
    return parts


def enum_values(nodes: Iterable[Node]) -> dict[str, int | float]:
    """Returns the value of each name of all enumerations. A name without a value continues the count."""
    found: dict[str, int | float] = {}
    for enum in _enums(nodes):
        count: int | float = 0
        for one in enum.values.enumerators if enum.values else ():
            if one.value is not None:
                count = number(one.value, found)
            found[one.name] = count
            count += 1
    return found


def _enums(nodes: Iterable[Node]) -> Iterator[Node]:
    for node in nodes:
        if isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.Enum):
            yield node.type


def number(node: Node, known: dict[str, int | float]) -> int:
    """Returns the value of a constant expression. HeaderError if it is not constant."""
    from pycparser.c_generator import CGenerator

    text = CGenerator().visit(node)
    value = value_of(text, known)
    if value is None:
        raise HeaderError(f"mfsd: the bindings cannot read a header: {node.coord}: {text!r} is no constant")
    return int(value)
