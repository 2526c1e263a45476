"""Compares a rendered configuration with the one a switch runs, inside the parts that MFS owns.

Text that MFS never writes (routing, users, other queues) is neither shown nor judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct

from mfsd.text import one_line

Path = tuple[str, ...]


class Change(Struct, frozen=True):
    """One setting: to add, to remove, or to change from `have` to `want`."""

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


def diff_config(nos: str, rendered: str, running: str) -> list[Change]:
    """What must change in `running` to become `rendered`. Raises ValueError when `running` cannot be read."""
    if nos == "sonic":
        return _diff_trees(_json(rendered, "rendered"), _json(running, "running"), _owned_sonic)
    if nos == "cumulus":
        return _diff_trees(nvue_tree(rendered), nvue_tree(running), _owned_nvue)
    if nos == "junos":
        return _diff_lines(
            {(line,) for line in _lines(rendered, "#")},
            {(line,) for line in _lines(running, "#")},
            _owned_junos,
        )
    comment = "##" if nos == "onyx" else "#" if nos == "linux" else "!"
    want, have = _paths(rendered, comment), _paths(running, comment)
    heads = {p[0] for p in want}
    owned = _owned_onyx(want) if nos == "onyx" else _owned_sections(want, heads)
    return _diff_lines(want, have, owned)


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(one_line(f"{what} configuration: not JSON: {error}")) from error


def nvue_tree(text: str) -> Any:
    """The tree under `set` of an NVUE file: a list of header/set objects, or the bare tree. ValueError, with one
    line, when it is not YAML."""
    import yaml

    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(one_line(f"NVUE configuration: not YAML: {error}")) from error
    if isinstance(data, list):
        return next((entry["set"] for entry in data if isinstance(entry, dict) and "set" in entry), {})
    return data or {}


def _flatten(tree: Any, path: Path = ()) -> dict[Path, str]:
    if isinstance(tree, dict) and tree:
        return {k: v for key, sub in tree.items() for k, v in _flatten(sub, (*path, str(key))).items()}
    return {path: "" if tree in ({}, None) else str(tree)} if path else {}


def _diff_trees(want_tree: Any, have_tree: Any, owned: Any) -> list[Change]:
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


def _owned_sonic(want: dict[Path, str]) -> Any:
    """The rows MFS writes: its own maps and profiles, and the ports and queues it configures."""
    rows = {p[:2] for p in want}
    ports = {p[1] for p in want if p[0] == "PORT_QOS_MAP"}
    mine = {"SCHEDULER", "WRED_PROFILE", "DSCP_TO_TC_MAP", "TC_TO_QUEUE_MAP", "TC_TO_PRIORITY_GROUP_MAP"}

    def owned(path: Path) -> bool:
        if path[0] == "CABLE_LENGTH":
            return False
        if path[:2] in rows or (path[0] in mine and len(path) > 1 and path[1].startswith("MFS")):
            return True
        return path[0] in ("QUEUE", "PFC_WD") and len(path) > 1 and path[1].split("|")[0] in ports

    return owned


def _owned_nvue(want: dict[Path, str]) -> Any:
    profiles = {p[:3] for p in want if p[0] == "qos"}
    ports = {p[1] for p in want if p[0] == "interface"}

    def owned(path: Path) -> bool:
        return path[:3] in profiles or (
            path[0] == "interface" and len(path) > 2 and path[1] in ports and path[2] == "qos"
        )

    return owned


def _lines(text: str, comment: str) -> list[str]:
    return [" ".join(s.split()) for s in text.splitlines() if s.strip() and not s.strip().startswith(comment)]


def _paths(text: str, comment: str) -> set[Path]:
    """Indented command text as paths, so that the same command in two sections is two things."""
    found: set[Path] = set()
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


def _owned_sections(want: set[Path], heads: Iterable[str]) -> Any:
    """Sections MFS names wholly belong to it; in interfaces, only QoS commands do."""
    own = {h for h in heads if not h.startswith("interface ")}
    interfaces = {h for h in heads if h.startswith("interface ")}
    words = {p[1].split()[0] for p in want if len(p) > 1 and p[0] in interfaces}

    def owned(path: Path) -> bool:
        if path[0] in interfaces:
            return len(path) > 1 and path[1].split()[0] in words
        return path[0] in own or (path[0].startswith("qos map ") and len(path) == 1)

    return owned


def _owned_onyx(want: set[Path]) -> Any:
    ports = {" ".join(p[0].split()[:3]) for p in want if p[0].startswith("interface ")}
    words = ("qos", "traffic-class", "dcb", "pfc-wd")

    def owned(path: Path) -> bool:
        parts = path[0].split()
        if parts[:1] == ["interface"]:
            return " ".join(parts[:3]) in ports and len(parts) > 3 and parts[3] in words
        return path[0].startswith(("traffic pool mfs ", "dcb priority-flow-control"))

    return owned


def _owned_junos(path: Path) -> bool:
    words = path[0].split()
    return words[:2] == ["set", "class-of-service"] and any(w.startswith("MFS") for w in words)


def _diff_lines(want: set[Path], have: set[Path], owned: Any) -> list[Change]:
    adds = [Change("add", " / ".join(p)) for p in sorted(want - have)]
    return [Change("remove", " / ".join(p)) for p in sorted(p for p in have - want if owned(p))] + adds
