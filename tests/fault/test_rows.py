"""Every fault has tests, they exist, and the operations guide says so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.fault.rows import FAULTS, Fault, updated

ROOT = Path(__file__).resolve().parents[2]


def names_in(file: Path) -> set[str]:
    text = file.read_text()
    if file.suffix == ".c":
        return set(re.findall(r'^\s*\{"(\w+)", \w+\}', text, re.MULTILINE))
    return {
        node.name for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.what for fault in FAULTS])
def test_the_fault_is_tested(fault: Fault) -> None:
    assert fault.tests
    for test in fault.tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).exists(), f"{test}: no such file"
        assert name in names_in(ROOT / file), f"{test}: no such test"


def test_the_operations_guide_has_the_table() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert page == updated(page), "run: python -m tests.fault.rows docs/operations.md"
