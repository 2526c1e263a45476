"""The worked example of docs/internals/policy.md: it applies to the files as they are, and edits at most five."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "internals" / "policy.md"
FILES_MAX = 5


def test_the_example_applies_and_edits_few_files(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```diff\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    files = re.findall(r"^\+\+\+ b/(\S+)$", example, re.MULTILINE)
    assert 0 < len(files) <= FILES_MAX
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run(["git", "apply", "-"], input=example, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, f"{PAGE.name}: make the example anew: {done.stderr}"
    assert all((tmp_path / name).read_bytes() != (ROOT / name).read_bytes() for name in files)
