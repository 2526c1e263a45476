"""A table of requests in time with MFS shows them beside fixed priorities, or says below why it cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/results/*.md"))]
CLAIMS = re.compile(r"% met|in time|attainment", re.IGNORECASE)
MARKS = re.compile(
    r"`(?:dscp|dscp-size|static|static-exact)`|static marking|classes by stage|marks by size", re.IGNORECASE
)
"""`static` is the order by stage: on links in exact order, which have no classes, it is what marks would come to."""
OURS = re.compile(r"`mfs[`+-]")
EXCUSE = "Without static marking:"


def tables(text: str) -> Iterator[tuple[int, list[str], str]]:
    """(line, rows, what stands below) of each table."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        if not lines[at].lstrip().startswith("|"):
            at += 1
            continue
        begin = at
        while at < len(lines) and lines[at].lstrip().startswith("|"):
            at += 1
        below = next((line for line in lines[at:] if line.strip() and not line.startswith("<!--")), "")
        yield begin + 1, lines[begin:at], below


def claims_without_marks(text: str) -> list[int]:
    """Lines of tables of requests in time with `mfs` in the first row or column, and nothing to hold it against."""
    found = []
    for line, rows, below in tables(text):
        heads = " ".join([rows[0], *(row.strip().strip("|").split("|")[0] for row in rows)])
        table = "\n".join(rows)
        if OURS.search(heads) and CLAIMS.search(table) and not MARKS.search(table) and not below.startswith(EXCUSE):
            found.append(line)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_gain_is_shown_beside_static_marking(page: Path) -> None:
    assert claims_without_marks(page.read_text()) == [], f"{page.name}: add dscp or dscp-size, or a line {EXCUSE}"


def test_a_new_table_without_it_is_found() -> None:
    bare = "| | hot |\n|---|---|\n| `fifo`, % met | 80 |\n| `mfs` | +3 |\n"
    assert claims_without_marks(bare) == [1]
    assert claims_without_marks(bare + "| `dscp-size` | +1 |\n") == []
    assert claims_without_marks(f"{bare}\n{EXCUSE} it has no classes.\n") == []
    assert claims_without_marks(f"{bare}\nAnother line.\n\n{bare}") == [1, 8]
    assert claims_without_marks("| key | meaning |\n|---|---|\n| `mfs` | the default variant |\n") == []
