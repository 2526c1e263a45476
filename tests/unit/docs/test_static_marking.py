"""A table of requests in time with MFS shows them beside fixed priorities, or says below why it cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/results/*.md"))]
CLAIMS = re.compile(
    r"% met|in time|attainment|TTFT|time to first token|requests late|/ without|enforce\.ms", re.IGNORECASE
)
FIGURE = re.compile(r"\d")
MARKS = re.compile(
    r"`(?:dscp|dscp-size|mark)`|\| mark\b|\bmark\.ms|static marking|classes by stage|marks by size", re.IGNORECASE
)
"""Without a daemon. `static` is none of them: on the testbed it has daemons, and in the simulator the production queue
wherever there are classes."""
OURS = re.compile(r"`(?:mfs[`+-]|slo\b|cost\b)|\benforce\b|\bMFS\b|MfsScheduler")
LINE = "Without static marking:"
EXCUSE = re.compile(rf"{LINE}|.*no leg has marks alone")
LISTED = {"### nixl_beside": "docs/nixl.md"}
"""Figures of a benchmark as it printed them, and the page that shows and explains them."""


class Table(NamedTuple):
    line: int
    heading: str
    rows: list[str]
    below: str
    """The first line of text."""


def tables(text: str) -> Iterator[Table]:
    lines = text.splitlines()
    at, heading = 0, ""
    while at < len(lines):
        if not lines[at].lstrip().startswith("|"):
            heading = lines[at] if lines[at].startswith("#") else heading
            at += 1
            continue
        begin = at
        while at < len(lines) and lines[at].lstrip().startswith("|"):
            at += 1
        below = next((line for line in lines[at:] if line.strip() and not line.startswith("<!--")), "")
        yield Table(begin + 1, heading, lines[begin:at], below)


def claims_without_marks(text: str) -> list[int]:
    """Lines of tables of requests in time with anything of ours, and nothing without a daemon to hold it against."""
    found = []
    for table in tables(text):
        whole, cells = "\n".join(table.rows), "".join(table.rows[2:])
        claims = OURS.search(whole) and CLAIMS.search(whole) and FIGURE.search(cells)
        explained = MARKS.search(whole) or EXCUSE.match(table.below) or table.heading in LISTED
        if claims and not explained:
            found.append(table.line)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_gain_is_shown_beside_static_marking(page: Path) -> None:
    assert claims_without_marks(page.read_text()) == [], f"{page.name}: add dscp or dscp-size, or a line {LINE}"


def test_pages_that_explain_a_list_of_figures_have_marks_or_say_why_not() -> None:
    for heading, page in LISTED.items():
        assert heading in (ROOT / "docs/benchmarks.md").read_text().splitlines()
        text = (ROOT / page).read_text()
        assert claims_without_marks(text) == [] and (MARKS.search(text) or "no leg has marks alone" in text)


def test_a_new_table_without_it_is_found() -> None:
    bare = "| | hot |\n|---|---|\n| `fifo`, % met | 80 |\n| `mfs` | +3 |\n"
    assert claims_without_marks(bare) == [1]
    assert claims_without_marks(bare + "| `dscp-size` | +1 |\n") == []
    assert claims_without_marks(f"{bare}\n{LINE} it has no classes.\n") == []
    assert claims_without_marks(f"{bare}\nAnother line.\n\n{bare}") == [1, 8]
    assert claims_without_marks(bare + "| `static` | +1 |\n") == [1], "it has a queue at the host, or daemons"
    other = "| rule | met in time |\n|---|---|\n| always | 80 % |\n| `slo` | 91 % |\n"
    assert claims_without_marks(other) == [1]
    assert claims_without_marks(other.replace("`slo`", "enforce")) == [1]
    assert claims_without_marks(other.replace("`slo`", "MfsScheduler")) == [1]
    assert claims_without_marks(other.replace("`slo`", "another")) == []
    assert claims_without_marks("| `slo` | what would not be in time |\n|---|---|\n| `cost` | what gains |\n") == []
    assert claims_without_marks("| key | meaning |\n|---|---|\n| `mfs` | the default variant |\n") == []
