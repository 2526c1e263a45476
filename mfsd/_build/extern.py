"""Writes mfsd/_headers.pxi: the declarations of the headers in Cython's syntax."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pycparser import c_ast
from pycparser.c_generator import CGenerator

from mfsd._build.declarations import POINTERS, Header, constants, read_headers
from mfsd._build.parsed import Node, enum_values, number, parse_headers

HEADERS = [
    f"mfs/{name}.h" for name in ("arbiter", "client", "fluid", "ledger", "plan", "policy", "rmlq", "trace", "window")
]
SEGMENT = "mfs_segment"
RESERVED = {"from", "in", "is", "not", "pass", "print", "lambda", "def", "class", "with", "as"}
INT_MAX = (1 << 31) - 1


class Writer:
    def __init__(self, headers: list[Header]) -> None:
        self._headers = headers
        self._macros = {header.name: header.macros for header in headers}
        self._parts = parse_headers(headers)
        nodes = [node for part in self._parts.values() for node in part]
        self._structs = {n.type.name: n.type for n in nodes if isinstance(n.type, c_ast.Struct) and n.type.decls}
        functions = {n.name for n in nodes if isinstance(n.type, c_ast.FuncDecl)}
        self._renamed = {name: f"{name}_t" for name in functions & _struct_names(nodes)}
        """Structs with the name of a function, and their new names: Cython has one namespace for both, C has two."""
        self._known = enum_values(nodes)
        self._numbers = constants(headers, self._known)
        self._known |= {name: value for part in self._numbers.values() for name, value in part.items()}
        self._declared: set[str] = set()

    def text(self) -> str:
        lines = ["# Written by mfsd/_build/extern.py from csrc/include/mfs."]
        layout = [*self._layout()]
        for header in self._headers:
            lines += ["", f'cdef extern from "{header.name}" nogil:', *self._constants(header.name)]
            for node in self._parts[header.name]:
                lines += self._declaration(node)
            if lines[-1].startswith("cdef"):
                lines.append("    pass")
        return "\n".join([*lines, "", *layout, ""])

    def _constants(self, header: str) -> Iterator[str]:
        numbers = self._numbers[header]
        small = [name for name, value in numbers.items() if isinstance(value, int) and -INT_MAX <= value <= INT_MAX]
        if small:
            yield "    enum:"
            yield from (f"        {name}" for name in small)
        for name, value in numbers.items():
            if name not in small:
                yield f"    const {self._type(header, name, value)} {name}"
        yield from (f"    {kind} {name}" for name, kind in POINTERS.items() if name in self._macros[header])

    def _type(self, header: str, name: str, value: int | float) -> str:
        """Returns the macro's type: signed if C has it signed, since negating an unsigned number gives a large one."""
        if isinstance(value, float):
            return "double"
        if not re.search(r"\d[lL]*[uU]|UINT", self._macros[header][name]):
            return "int64_t"
        return "uint32_t" if value < 1 << 32 else "uint64_t"

    def _declaration(self, node: Node) -> Iterator[str]:
        if isinstance(node.type, c_ast.Enum) and node.type.values:
            yield f"    enum {node.type.name or ''}".rstrip() + ":"
            yield from (f"        {one.name}" for one in node.type.values.enumerators)
        elif isinstance(node.type, c_ast.Struct):
            yield from self._struct(node.type)
        elif isinstance(node, c_ast.Typedef):
            yield f"    c{self._c(node)}"
        elif isinstance(node.type, c_ast.FuncDecl):
            yield f"    {self._c(node)}"

    def _struct(self, struct: Node) -> Iterator[str]:
        """Declares a struct once. If only its name is known here, another header may define it, or none."""
        if struct.name in self._declared or (struct.decls is None and struct.name in self._structs):
            return
        self._declared.add(struct.name)
        own = self._renamed.get(struct.name)
        yield f'    struct {own} "{struct.name}":' if own else f"    struct {struct.name}:"
        yield from (f"        {self._c(field)}" for field in struct.decls or ())
        if not struct.decls:
            yield "        pass"

    def _c(self, node: Node) -> str:
        """Returns the node as C, with the names that Cython needs. Bit fields become ordinary fields."""
        _Numbers(self._known).visit(node)
        if isinstance(node, c_ast.Decl):
            node.bitsize = None
        text = re.sub(r"\s+", " ", CGenerator().visit(node))
        text = re.sub(r"\b(?:struct|enum) (\w+)", lambda m: self._renamed.get(m[1], m[1]), text)
        text = re.sub(r"\b(?:extern|static|inline) ", "", text)
        text = text.replace("_Bool", "bint").replace("(void)", "()")
        return re.sub(r"\b(\w+)(?=[,)\[]|$)", lambda m: m[1] + "_" if m[1] in RESERVED else m[1], text)

    def _layout(self) -> Iterator[str]:
        """Declares the table with the name and offset of each part of the segment and of each of its fields."""
        names = list(self._places())
        yield "cdef extern from * nogil:"
        yield '    """'
        yield "    struct mfs_layout_entry { const char *name; size_t offset; };"
        yield "    static const struct mfs_layout_entry mfs_layout[] = {"
        yield from (f'        {{"{name}", offsetof(struct {SEGMENT}, {path})}},' for name, path in names)
        yield "    };"
        yield '    """'
        yield "    struct mfs_layout_entry:"
        yield "        const char *name"
        yield "        size_t offset"
        yield f"    const mfs_layout_entry mfs_layout[{len(names)}]"
        yield ""
        yield f"cdef enum:\n    mfs_layout_count = {len(names)}"

    def _places(self) -> Iterator[tuple[str, str]]:
        for part in self._structs[SEGMENT].decls:
            yield part.name, part.name
            dimensions, kind = 0, part.type
            while isinstance(kind, c_ast.ArrayDecl):
                dimensions, kind = dimensions + 1, kind.type
            for field in self._structs[kind.type.name].decls:
                if field.bitsize is None:
                    yield f"{part.name}.{field.name}", f"{part.name}{'[0]' * dimensions}.{field.name}"


class _Numbers(c_ast.NodeVisitor):  # type: ignore[misc]  # pycparser has no types
    """Replaces the sizes of arrays by numbers."""

    def __init__(self, known: Mapping[str, int | float]) -> None:
        self._known = dict(known)

    def visit_ArrayDecl(self, node: Node) -> None:  # noqa: N802 -- pycparser's name
        if node.dim is not None:
            node.dim = c_ast.Constant("int", str(number(node.dim, self._known)), node.dim.coord)
        self.generic_visit(node)


def _struct_names(nodes: Iterable[Node]) -> set[str]:
    return {node.type.name for node in nodes if isinstance(node.type, c_ast.Struct)}


def write(path: Path) -> None:
    """Writes the file if it has changed, so that nothing is compiled again without need."""
    text = Writer(read_headers(HEADERS)).text()
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
