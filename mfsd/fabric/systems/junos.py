"""Juniper Junos on QFX: `set` statements. Its schema is the statement tree of Junos 24.4 (junoscfg): every statement
must exist there."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from mfsd.fabric.diff import Change, Setting, diff_lines, text_lines
from mfsd.fabric.findings import INSTALL_SCHEMAS, Finding, verdict
from mfsd.fabric.plan import Plan
from mfsd.fabric.system import About, SwitchSystem

ASSUMED_PORT_MEMORY_BYTES = 16 << 20
"""Packet memory that drop-profile percentages are taken of: the smallest of the QFX5000 family."""


class Junos(SwitchSystem):
    about = About(
        "junos",
        "Juniper Junos (QFX)",
        "junos.set.j2",
        "et-0/0/[0-7]",
        "load set FILE, show | compare, commit confirmed 5",
        port_pattern=r"(et|xe|ge|mge)-\d+/\d+/\d+(:\d+)?",
        floors=False,
        quirk="several strict-high queues keep their order on QFX5200 and QFX10000 only; QFX5100 takes one; releases "
        "before DSCP-based PFC refuse drop profiles on no-loss classes",
        lossless_default=2,
        lossless_most=6,
    )

    def helpers(self, plan: Plan) -> Mapping[str, Any]:
        return {"fill": lambda size: min(98, max(1, round(100 * size / ASSUMED_PORT_MEMORY_BYTES)))}

    def floors_missing(self, plan: Plan) -> list[str]:
        """Best effort has a transmit rate."""
        return [q.name for q in plan.queues if q.floor_percent and q.priority != plan.default_priority]

    def check(self, text: str, models: Path | None = None) -> list[Finding]:
        return [_check_statements(text)]

    def diff(self, rendered: str, running: str) -> list[Change]:
        want, have = text_lines(rendered, "#"), text_lines(running, "#")
        return diff_lines({(line,) for line in want}, {(line,) for line in have}, owned_by_mfs)


_KEY_WORDS = {"class": 1, "code-point": 1, "drop-profile-map": 4}
"""Lists whose key leaves the package's tree lost, and how many words the key takes."""


@functools.cache
def _junos_tree() -> dict[str, Any]:
    """The package's 14 MB of statements, parsed once. Raises ModuleNotFoundError."""
    file = resources.files("junoscfg") / "validate/data/junos-structure-tree.json"
    tree: dict[str, Any] = json.loads(file.read_text())
    return tree


def _check_statements(text: str) -> Finding:
    check = "Junos statement tree (junoscfg)"
    try:
        tree = _junos_tree()
    except ModuleNotFoundError:
        return Finding(check, "not checked", "package junoscfg is not installed", INSTALL_SCHEMAS)
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            problem = junos_problem(tree, line.split())
            problems += [f"line {number}: {problem}"] if problem else []
    return verdict(check, problems, "every statement exists in the Junos 24.4 tree (values are not in it)")


def junos_problem(tree: dict[str, Any], words: list[str]) -> str | None:
    """Why `set ...` (split into words) is no statement of `tree`; None when it is one."""
    if words[:1] != ["set"]:
        return f"{words[0]!r}: expected a set statement"
    node, name, named = tree, "", False
    i = 1
    while i < len(words):
        word, children = words[i], node.get("c", {})
        if name == "interfaces" and "interface" in children:  # the tree's list element, not written in set form
            node, name, children = children["interface"], "interface", children["interface"].get("c", {})
        if word in children:
            node, name, named = children[word], word, False
            if node.get("l") and not node.get("L"):
                i += 1
                if i >= len(words):
                    return f"{name!r} needs a value"
                node = {"c": children}
        elif (node.get("L") or name in _KEY_WORDS) and not named:
            named = True
            i += _KEY_WORDS.get(name, 1) - 1
        elif node.get("l") and i == len(words) - 1:
            pass
        else:
            return f"{word!r} is not a statement under {' '.join(words[1:i])!r}"
        i += 1
    return None


def owned_by_mfs(statement: Setting) -> bool:
    words = statement[0].split()
    return words[:2] == ["set", "class-of-service"] and any(w.startswith("MFS") for w in words)


SYSTEM = Junos()
