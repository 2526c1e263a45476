"""Reads the configuration structs: which keys there are, what each may hold, and what it is for."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Meta, Struct

from mfsd.node.values import CpuList, FileMode, GroupId, HostPort, PeerNetwork, PortAddress, Quantity, UserId


class Limits(Struct, frozen=True):
    """The range of a quantity, both ends included."""

    lowest: Quantity
    highest: Quantity


def between(quantity: type[Quantity], lowest: str, highest: str) -> Limits:
    return Limits(quantity.parse(lowest), quantity.parse(highest))


Process = Literal["daemon", "coordinator"]
"""The process that reads the file: `mfsd`, or `mfsd --coordinator`."""
RESTART: tuple[Process, ...] = ()
RELOAD: tuple[Process, ...] = ("daemon", "coordinator")


def table(*reload: Process, max_length: int | None = None) -> Meta:
    """Annotates a table with the processes that take over changes of its keys without a restart. A key may differ."""
    return Meta(extra={"reload": reload}, max_length=max_length)


def doc(
    description: str,
    limits: Limits | None = None,
    *,
    reload: tuple[Process, ...] | None = None,
    ge: int | None = None,
    le: int | None = None,
    max_length: int | None = None,
) -> Meta:
    """Annotates a field: what it is for, what it may hold, and which processes take over a change without a restart.
    With None, as its table says."""
    extra = {"limits": limits, "reload": reload}
    if max_length is not None:
        return Meta(description=description, extra=extra, max_length=max_length)
    return Meta(description=description or None, extra=extra, ge=ge, le=le)


class Key(Struct, frozen=True):
    """One field of a configuration struct."""

    name: str
    """As written in the file."""
    attribute: str
    """As named in Python."""
    type: Any
    description: str
    limits: Limits | None
    default: Any
    """NODEFAULT: the key is required."""
    reload: tuple[Process, ...] | None
    """Processes that take over a change without a restart. None: as its table."""


def keys(struct: type[Struct]) -> Iterator[Key]:
    """The fields of a struct in their order."""
    hints = get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        metas = [m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Meta)]
        default = field.default
        if default is NODEFAULT and field.default_factory is not NODEFAULT:
            default = field.default_factory()
        yield Key(
            name=field.encode_name,
            attribute=field.name,
            type=hint,
            description=next((m.description for m in metas if m.description), ""),
            limits=next((m.extra["limits"] for m in metas if m.extra and m.extra.get("limits")), None),
            default=default,
            reload=next((m.extra["reload"] for m in metas if m.extra and m.extra["reload"] is not None), None),
        )


def attribute_docs(struct: type[Struct]) -> dict[str, str]:
    """The docstrings below the fields of a struct and of those that it extends, for structs that do not use
    :func:`doc`.

    A field whose type is an enumeration and that has none gets the first line of the enumeration's docstring.
    """
    docs: dict[str, str] = {
        name: (inspect.getdoc(hint) or "").partition("\n")[0].removesuffix(".")
        for name, hint in get_type_hints(struct).items()
        if isinstance(hint, type) and issubclass(hint, Enum)
    }
    for part in reversed(struct.__mro__):
        if part is not Struct and issubclass(part, Struct):
            docs |= _docs_below_fields(part)
    return docs


def _docs_below_fields(struct: type[Struct]) -> dict[str, str]:
    try:
        source = inspect.getsource(struct)
    except OSError:  # a function made it from another struct, which has the texts
        return {}
    (body,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match after:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    docs[field.target.id] = " ".join(text.split()).removesuffix(".")
    return docs


def struct_of(hint: Any) -> type[Struct] | None:
    """The struct that a field holds, directly, in a list or in a table. None for a plain value."""
    hint, _ = _unwrap(hint)
    if get_origin(hint) in (list, dict):
        hint, _ = _unwrap(get_args(hint)[-1])
    return hint if isinstance(hint, type) and issubclass(hint, Struct) else None


def allowed(hint: Any, limits: Limits | None = None) -> str:
    """What may be written, for an error ("must be ...") and for the reference page."""
    hint, metas = _unwrap(hint)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        (inner,) = [arg for arg in get_args(hint) if arg is not type(None)]
        return allowed(inner, limits)
    if origin is Literal:
        return "one of " + ", ".join(f'"{word}"' for word in get_args(hint))
    if origin is list:
        at_most = next((f" of at most {m.max_length}" for m in metas if m.max_length), "")
        element = get_args(hint)[0]
        return f"a list{at_most}" if struct_of(element) else f"a list{at_most}, each {allowed(element)}"
    if isinstance(hint, type) and issubclass(hint, Quantity):
        span = f" from {limits.lowest} to {limits.highest}" if limits else ""
        return f'{hint.what}{span}, for example "{hint.example}"'
    if hint is int:
        lowest = next((m.ge for m in metas if m.ge is not None), None)
        highest = next((m.le for m in metas if m.le is not None), None)
        return "a whole number" if lowest is None else f"a whole number from {lowest} to {highest}"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "one of " + ", ".join(f'"{word.value}"' for word in hint)
    return {
        str: "text",
        bool: "true or false",
        float: "a number",
        CpuList: 'a list of CPUs, for example "2-3,8"',
        FileMode: 'three octal digits as text, for example "0660"',
        UserId: "a user's name or number",
        GroupId: "a group's name or number",
        HostPort: 'a host and a port, for example "coord-1:7400"',
        PortAddress: 'an IPv4 or IPv6 address, for example "10.1.0.7"',
        PeerNetwork: 'an address or a network, for example "10.1.0.0/16"',
    }.get(hint, "a table")


def _unwrap(hint: Any) -> tuple[Any, list[Meta]]:
    """The type below its annotations, and the annotations."""
    metas: list[Meta] = []
    while get_origin(hint) is Annotated:
        hint, *more = get_args(hint)
        metas += [m for m in more if isinstance(m, Meta)]
    return hint, metas
