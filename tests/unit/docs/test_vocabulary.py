"""Retired words do not come back (docs/internals/glossary.md has those that are used)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.docs import vocabulary
from tests.unit.docs.vocabulary import RETIRED, Retired, places

ROOT = Path(__file__).resolve().parents[3]
GLOSSARY = (ROOT / "docs" / "internals" / "glossary.md").read_text()


@pytest.mark.parametrize("retired", RETIRED, ids=[retired.word for retired in RETIRED])
def test_a_retired_word_is_nowhere(retired: Retired) -> None:
    found = list(places(retired))
    assert not found, f"write {retired.instead} instead of {retired.word}:\n" + "\n".join(found[:20])


def test_a_word_is_found_by_itself_and_in_names_but_not_inside_of_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text("told = 1\nbatch_told = 2\ntoldness = untold = 3\n")
    monkeypatch.setattr(vocabulary, "ROOT", tmp_path)
    monkeypatch.setattr(vocabulary, "tracked", lambda: ("a.py",))
    found = places(Retired("told", "announced"))
    assert [place.split(":")[1] for place in found] == ["1", "2"]


def test_the_glossary_uses_no_word_twice_and_no_retired_one() -> None:
    words = [word for row in re.findall(r"^\| ([^|`]+) \|", GLOSSARY, re.MULTILINE) for word in row.split(", ")]
    assert len(words) > 50 and len(words) == len(set(words))
    assert not [retired.word for retired in RETIRED if retired.where != "names of files" if retired.word in words]
