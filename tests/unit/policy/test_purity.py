"""The policy decides from its arguments alone, so that the daemon and the simulator get the same answers."""

import ast
from pathlib import Path

import mfsd.policy

ALLOWED = {"__future__", "collections", "enum", "math", "msgspec", "typing"}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def test_policy_imports_neither_io_nor_clock_nor_the_rest_of_mfsd() -> None:
    files = list(Path(mfsd.policy.__path__[0]).glob("*.py"))
    assert files
    foreign = {
        (path.name, name)
        for path in files
        for name in imports(path)
        if not name.startswith("mfsd.policy") and name.split(".")[0] not in ALLOWED
    }
    assert foreign == set()
