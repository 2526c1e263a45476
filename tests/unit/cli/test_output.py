"""Tables of text from elsewhere: names that engines, nodes and programs give themselves."""

from __future__ import annotations

import pytest

from mfsd.cli.output import Column, table_lines

COLUMNS = (Column("NAME"), Column("N", right=True), Column("MODELS"))


@pytest.mark.parametrize("keep", [False, True])
def test_a_cell_does_nothing_to_a_terminal(keep: bool) -> None:
    rows = [["a\x1b[2J", "1", "m\x1b]0;title\x07"], ["b", "22", "x\x9b31m\u202e"]]
    _, first, second = table_lines(COLUMNS, rows, "table", None, keep)
    assert first == r"a\x1b[2J   1  m\x1b]0;title\x07"
    assert second == r"b         22  x\x9b31m\u202e"


def test_lines_within_a_cell_are_one() -> None:
    _, row = table_lines(COLUMNS, [["a\nb", "1", ""]], "table", None)
    assert row == "a b   1  -"
