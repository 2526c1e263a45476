"""The policy decides from its arguments alone, so that the daemon and the simulator get the same answers."""

import ast
from pathlib import Path

import mfsd.policy

ALLOWED = {
    "__future__",
    "bisect",
    "collections",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "math",
    "msgspec",
    "operator",
    "typing",
}

NATIVE = {("config.py", "mfsd"), ("native.py", "mfsd")}
"""Defaults and types of the native core, which is as pure: it takes time as an argument."""


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def names(node: ast.AST) -> set[str]:
    return {getattr(part, "id", getattr(part, "attr", "")) for part in ast.walk(node)}


def divides_by_a_rate(path: Path) -> bool:
    return any(
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div | ast.FloorDiv)
        and any("rate" in name or "capacity" in name for name in names(node.right))
        for node in ast.walk(ast.parse(path.read_text()))
    )


def test_one_estimator_says_how_long_bytes_take() -> None:
    """`estimate`, and the paper's formula of urgency on the effective rate that it gives. The queue in C is held to
    both by tests/unit/rmlq, the plan core by tests/unit/plan."""
    root = Path(mfsd.policy.__path__[0]).parent
    rooms = [root / "policy", root / "node", root / "coordinator", root / "observe"]
    found = {str(path.relative_to(root)) for room in rooms for path in room.rglob("*.py") if divides_by_a_rate(path)}
    assert found == {"policy/estimate.py", "policy/urgency.py"}


def test_policy_imports_neither_io_nor_clock_nor_the_rest_of_mfsd() -> None:
    root = Path(mfsd.policy.__path__[0])
    files = list(root.rglob("*.py"))
    assert {path.parent.name for path in files} >= {"policy", "serve", "route"}
    foreign = {
        (str(path.relative_to(root)), name)
        for path in files
        for name in imports(path)
        if not name.startswith("mfsd.policy")
        and name.split(".")[0] not in ALLOWED
        and (str(path.relative_to(root)), name) not in NATIVE
    }
    assert foreign == set()
