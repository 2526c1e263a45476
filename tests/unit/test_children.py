"""Programs that this installation starts are its own, whatever lies in the current folder."""

from __future__ import annotations

import ast
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mfsd.children import HOME, python_module

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "import pathlib; pathlib.Path({mark!r}).touch(); raise SystemExit('this is not mfsd')\n"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with an `mfsd` that is not MFS's, and a module of a name that every program imports."""
    mark = str(tmp_path / "ran")
    for name in ("mfsd", "asyncio", "socket", "runpy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(HOSTILE.format(mark=mark))
    return tmp_path


def test_the_current_folder_is_not_looked_in(hostile: Path) -> None:
    without = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    tempted = subprocess.run(
        [sys.executable, "-m", "mfsd.cli.daemon", "--version"], cwd=hostile, env=without, capture_output=True, text=True
    )
    assert tempted.stderr.endswith("this is not mfsd\n"), "with -m it would be"
    (hostile / "ran").unlink()
    for command in (python_module("mfsd.cli.daemon"), python_module("mfsd.soft_roce.launcher")):
        done = subprocess.run([*command, "--help"], cwd=hostile, env=without, capture_output=True, text=True)
        assert done.returncode == 0 and "--help" in done.stdout, done.stderr
        assert not (hostile / "ran").exists()


def test_arguments_and_folders_that_are_named_by_hand_are_kept(tmp_path: Path) -> None:
    named = tmp_path / "named"
    named.mkdir()
    (named / "shown.py").write_text("import sys; print(sys.argv[1:], __name__, '' in sys.path)")
    done = subprocess.run(
        [*python_module("shown"), "-m", "a b"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(named)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "['-m', 'a b'] __main__ False\n", done.stderr
    assert HOME == ROOT, "and what is started is what this test has imported"


def test_nothing_here_starts_a_module_of_its_own_from_the_current_folder() -> None:
    """Commands with `-m` and a module of mfsd; those of `bench` run in the checkout."""
    for path in [*(ROOT / "mfsd").rglob("*.py"), *(ROOT / "bench").rglob("*.py"), *(ROOT / "nccl_shim").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.List, ast.Tuple)):
                words = [e.value if isinstance(e, ast.Constant) else None for e in node.elts]
                after = [word for flag, word in itertools.pairwise(words) if flag == "-m"]
                assert not [word for word in after if word is None or str(word).startswith(("mfsd", "nccl_shim"))], path
