"""Checks that functions in C and Python have at most 70 lines: python tools/function_length.py.

Lines count from the first line of the signature to the end of the body, without a docstring (a command's docstring is
its help). EXCEPTIONS lists functions that may be longer, each with its reason. A function that is no longer too long
must be removed from it, so that the table only shrinks.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LONGEST = 70
EXCEPTIONS = {
    "bench/programs/nccl_pace.c main": "one straight line: set-up, two measurements, output",
    "tests/native/arbiter_many.c main": "one test in a straight line",
    "tests/native/soft_roce_cases_data.c builders": "one case a line",
}
C_SIGNATURE = re.compile(r"^[A-Za-z_].*?(\w+)\(")


def in_python(text: str) -> Iterator[tuple[str, int, int]]:
    """Yields (name, first line, lines) of each function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node, clean=False) is not None:
                docstring = node.body[0]
                lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
            yield node.name, node.lineno, lines


def in_c(text: str) -> Iterator[tuple[str, int, int]]:
    """The same for C in the style of this project: signature and closing brace begin in the first column."""
    name, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        signature = C_SIGNATURE.match(line)
        if signature and not line.startswith("typedef") and not line.rstrip().endswith(";"):
            name, first = signature[1], number
        elif line == "}" and name:
            yield name, first, number - first + 1
            name = ""


def files(*patterns: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", "--", *patterns], capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split() if "_pb2" not in name and Path(name).exists()]


def too_long() -> Iterator[tuple[str, int, str]]:
    """Yields (place, lines, key of its exception)."""
    for name in files("*.py", "*.c", "*.h", "*.cpp"):
        text = Path(name).read_text()
        for function, first, lines in in_python(text) if name.endswith(".py") else in_c(text):
            if lines > LONGEST:
                yield f"{name}:{first}", lines, f"{name} {function}"


def main() -> int:
    found = list(too_long())
    named = {key for _, _, key in found}
    wrong = [
        f"{place}: {key.split()[1]} has {lines} lines, at most {LONGEST}: split it"
        for place, lines, key in found
        if key not in EXCEPTIONS
    ]
    wrong += [
        f"tools/function_length.py: {key} is not too long (any more): take it off EXCEPTIONS"
        for key in EXCEPTIONS
        if key not in named
    ]
    print("\n".join(wrong) or f"Functions: {LONGEST} lines at most; {len(EXCEPTIONS)} exceptions, each with a reason.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
