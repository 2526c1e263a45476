"""The worked examples of CONTRIBUTING.md: each is applied to a copy of the repository, and its commands are run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
COPIED = ("bench", "docs", "mfsd", "mooncake_adapter", "nccl_shim", "tests", "pyproject.toml")
BUILT = ("mfsd/*.so", "mfsd/soft_roce/*.so", "nccl_shim/*.so")


def examples() -> dict[str, list[tuple[str, str]]]:
    """Heading -> (language, text) of its blocks."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    part = page.split("\n## How to add\n")[1].split("\n## ")[0]
    sections = re.findall(r"^### (.*?)\n(.*?)(?=^### |\Z)", part, re.MULTILINE | re.DOTALL)
    return {heading: re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL) for heading, text in sections}


EXAMPLES = examples()


def patch(folder: Path, diff: str) -> None:
    """Applies a diff without line numbers: what a hunk shows and takes away is in the file once."""
    file = folder
    for part in re.split(r"(?m)^(?=\+\+\+ |@@)", diff):
        if part.startswith("+++ "):
            file = folder / part.split()[1]
        elif part.startswith("@@"):
            lines = part.splitlines(keepends=True)[1:]
            before = "".join(line[1:] for line in lines if line[0] in " -")
            after = "".join(line[1:] for line in lines if line[0] in " +")
            text = file.read_text()
            assert text.count(before) == 1, f"{file.name} has {text.count(before)} times:\n{before}"
            file.write_text(text.replace(before, after))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    listed = subprocess.run(["git", "ls-files", "-z", "--", *COPIED], cwd=ROOT, capture_output=True, text=True)
    names = [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    for name in (*names, *(str(file.relative_to(ROOT)) for pattern in BUILT for file in ROOT.glob(pattern))):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_every_seam_has_an_example() -> None:
    assert set(EXAMPLES) == {
        "A policy in the simulator",
        "A request scheduler",
        "A fault",
        "A switch system",
        "An adapter",
    }
    for heading, blocks in EXAMPLES.items():
        assert [language for language, _ in blocks][-1] == "sh", f"{heading}: nothing runs it"


@pytest.mark.slow
@pytest.mark.parametrize("heading", EXAMPLES)
def test_the_example_works(heading: str, copy: Path) -> None:
    commands: list[str] = []
    for language, text in EXAMPLES[heading]:
        if language == "diff":
            patch(copy, text)
        elif language == "sh":
            commands += text.splitlines()
        else:  # a file, named by its first line
            name, _, content = text.removeprefix("# ").partition("\n")
            (copy / name).write_text(content)
    for command in commands:
        done = subprocess.run(
            [sys.executable if word == "python" else word for word in shlex.split(command)],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


def test_a_hunk_that_the_file_does_not_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\ntwo\n")
    patch(tmp_path, "+++ a.py\n@@\n one\n-two\n+three\n")
    assert (tmp_path / "a.py").read_text() == "one\nthree\n"
    with pytest.raises(AssertionError, match="0 times"):
        patch(tmp_path, "+++ a.py\n@@\n four\n+five\n")
