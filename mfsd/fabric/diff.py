"""Compares a rendered configuration with a switch's running one, within the parts that MFS owns.

Text that MFS never writes (routing, users, other queues) is not compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from mfsd.text import one_line

Setting = tuple[str, ...]
"""The path of a setting: names of a tree from its root, or a command after the commands of its sections."""
Owned = Callable[[Setting], bool]
"""Whether MFS owns a setting."""


class Change(Struct, frozen=True):
    """One setting to add, to remove, or to change from `have` to `want`."""

    kind: Literal["add", "remove", "change"]
    path: str
    have: str = ""
    want: str = ""

    def __str__(self) -> str:
        if self.kind == "add":
            return f"+ {self.path}{' = ' + self.want if self.want else ''}"
        if self.kind == "remove":
            return f"- {self.path}{' = ' + self.have if self.have else ''}"
        return f"~ {self.path}: {self.have} -> {self.want}"


def json_tree(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(one_line(f"{what} configuration: not JSON: {error}")) from error


def _flatten(tree: Any, path: Setting = ()) -> dict[Setting, str]:
    if isinstance(tree, dict) and tree:
        return {k: v for key, sub in tree.items() for k, v in _flatten(sub, (*path, str(key))).items()}
    return {path: "" if tree in ({}, None) else str(tree)} if path else {}


def diff_trees(want_tree: Any, have_tree: Any, owned: Callable[[dict[Setting, str]], Owned]) -> list[Change]:
    want, have = _flatten(want_tree), _flatten(have_tree)
    is_owned = owned(want)
    changes = []
    for path in sorted(want.keys() | {p for p in have if is_owned(p)}):
        name = " ".join(path)
        if path not in have:
            changes.append(Change("add", name, want=want[path]))
        elif path not in want:
            changes.append(Change("remove", name, have=have[path]))
        elif want[path] != have[path]:
            changes.append(Change("change", name, have[path], want[path]))
    return changes


def text_lines(text: str, comment: str) -> list[str]:
    return [" ".join(s.split()) for s in text.splitlines() if s.strip() and not s.strip().startswith(comment)]


def command_paths(text: str, comment: str) -> set[Setting]:
    """Returns indented command text as paths, so that one command in two sections gives two settings."""
    found: set[Setting] = set()
    stack: list[tuple[int, str]] = []
    for raw in text.splitlines():
        line = " ".join(raw.split())
        if not line or line.startswith(comment):
            continue
        indent = len(raw) - len(raw.lstrip())
        while stack and stack[-1][0] >= indent:
            stack.pop()
        stack.append((indent, line))
        found.add(tuple(s for _, s in stack))
    return found


def diff_commands(rendered: str, running: str, comment: str) -> list[Change]:
    """Compares texts of a command language with sections (`interface ...`, then indented commands)."""
    want, have = command_paths(rendered, comment), command_paths(running, comment)
    return diff_lines(want, have, _owned_sections(want))


def _owned_sections(want: set[Setting]) -> Owned:
    """Returns which settings MFS owns: all in sections that MFS names, but only QoS commands in interfaces."""
    heads = {p[0] for p in want}
    own = {h for h in heads if not h.startswith("interface ")}
    interfaces = {h for h in heads if h.startswith("interface ")}
    words = {p[1].split()[0] for p in want if len(p) > 1 and p[0] in interfaces}

    def owned(path: Setting) -> bool:
        if path[0] in interfaces:
            return len(path) > 1 and path[1].split()[0] in words
        return path[0] in own or (path[0].startswith("qos map ") and len(path) == 1)

    return owned


def diff_lines(want: set[Setting], have: set[Setting], owned: Owned) -> list[Change]:
    adds = [Change("add", " / ".join(p)) for p in sorted(want - have)]
    return [Change("remove", " / ".join(p)) for p in sorted(p for p in have - want if owned(p))] + adds
