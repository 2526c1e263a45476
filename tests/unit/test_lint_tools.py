"""The project's own checks of `make lint` find what they are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import function_length, unused


def test_length_is_counted_without_the_docstring() -> None:
    text = (
        'def f():\n    """Two\n    lines."""\n    return 1\n\n\nclass C:\n    async def g(self,\n        a): return a\n'
    )
    assert list(function_length.in_python(text)) == [("f", 1, 2), ("g", 8, 2)]


def test_length_in_c_is_from_the_signature_to_the_last_brace() -> None:
    text = "int declared(void);\n\nstatic int\n{\n}\nstatic int defined(int a,\n\t\t   int b)\n{\n\treturn a;\n}\n"
    assert list(function_length.in_c(text)) == [("defined", 6, 5)]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        unused, "tracked", lambda *patterns: sorted({str(f) for p in patterns for f in Path().rglob(p) if f.is_file()})
    )
    return tmp_path


def test_what_only_its_own_file_names_is_unused(repository: Path) -> None:
    (repository / "a.h").write_text("int used(void);\nint declared_twice(void);\n")
    (repository / "a.c").write_text(
        "int used(void)\n{\n\treturn 0; /* dead() in a comment */\n}\n"
        "int dead(void)\n{\n\treturn used();\n}\nint declared_twice(void)\n{\n\treturn 1;\n}\n"
    )
    assert [name for _, name, _ in unused.in_c()] == ["dead", "declared_twice"]


def test_a_module_that_no_file_names_is_unused(repository: Path) -> None:
    (repository / "alone.py").write_text("")
    (repository / "shared.py").write_text("")
    (repository / "test_it.py").write_text("from shared import *\n")
    assert [name for name, _, _ in unused.modules()] == ["alone.py"]


def test_python_functions_and_constants_but_not_fields(repository: Path) -> None:
    (repository / "m.py").write_text(
        "DEAD = 1\n\n\nclass Used:\n    field = 1\n\n    def dead(self): ...\n\n\nUsed()\n"
    )
    assert {name for _, name, _ in unused.in_python(["m.py"])} == {"DEAD", "dead"}


def test_an_exception_that_excuses_nothing_is_kept_apart() -> None:
    hits: set[str] = set()
    found = [("a.py", "one", 1), ("a.py", "two", 2)]
    assert unused.remaining(found, {"a.py one": "", "b.py two": ""}, hits) == ["a.py:2: two"]
    assert hits == {"a.py one"}
