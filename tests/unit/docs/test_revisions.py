"""Revisions that the pages and the recorded results name can be read."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("docs/**/*-results.json"))]
NAMED = re.compile(
    r"(?:\b(?:rules of|commit|since|before)\b|\"revisions\": \[)((?:[\s,\"]+(?:before\s+)?[0-9a-f]{7,12}\b)+)"
)


def named() -> Iterator[tuple[str, str]]:
    """(page, revision)"""
    for page in PAGES:
        for match in NAMED.finditer(page.read_text()):
            for revision in re.findall(r"[0-9a-f]{7,12}", match[1]):
                yield str(page.relative_to(ROOT)), revision


def whole_history() -> bool:
    asked = subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True)
    return asked.returncode == 0 and asked.stdout.strip() == "false"


def test_the_pages_name_revisions() -> None:
    assert {"docs/results/stress.md", "docs/results/stress-results.json"} <= {page for page, _ in named()}


@pytest.mark.skipif(not whole_history(), reason="needs the repository with its whole history")
@pytest.mark.parametrize(("page", "revision"), sorted(set(named())))
def test_a_revision_exists(page: str, revision: str) -> None:
    # An ancestor, and not any object: a branch that is deleted later would pass where it was made and nowhere else.
    found = subprocess.run(["git", "merge-base", "--is-ancestor", revision, "HEAD"], cwd=ROOT, capture_output=True)
    assert found.returncode == 0, f"{page} names {revision}, which the history of this checkout does not have"
