"""The page of an afternoon: it has every command of the other pages, what it leaves out has a reason, and the
comparison with what is really answered can fail. tests/integration/test_afternoon.py runs it."""

from __future__ import annotations

import pytest

from tests.afternoon import console, page

READ = console.read(page.PAGE.read_text())
LINES = {page.plain(step.line) for step in READ.steps}


@pytest.mark.parametrize(
    ("source", "line"), page.documented(), ids=[f"{name}: {line}" for name, line in page.documented()]
)
def test_every_command_of_the_pages_is_in_it(source: str, line: str) -> None:
    assert line in LINES, (
        f"{source} has {line!r}: put it into docs/afternoon.md, with what it takes if it cannot be run"
    )


def test_most_of_it_is_run() -> None:
    left_out = [step for step in READ.steps if step.skipped]
    assert len(left_out) < len(READ.steps) / 4
    for step in left_out:
        assert not step.answer, f"{step.line} is not run and has an answer"
        assert "needs" in step.notes or (page.ROOT / step.notes["elsewhere"]).exists()


def test_writing_what_is_there_changes_nothing() -> None:
    assert console.written(READ, lambda step: step.answer) == READ.text


BLOCK = "```console\n$ mfsctl status\nNIC   RATE\nmfs0  200 Mbit/s\nnothing waits\n```\n"


def step(text: str = BLOCK) -> console.Step:
    return console.read(text).steps[0]


@pytest.mark.parametrize(
    "answered",
    [
        ["NIC   RATE", "mfs0  200 Mbit/s", "nothing waits"],
        ["NIC      RATE", "mfs0  1.5 Gbit/s", "mfs0     -", "", "nothing waits"],
        ["NIC      RATE", "mfs0  1 s  -  3", "nothing waits"],
    ],
)
def test_numbers_and_the_count_of_rows_move(answered: list[str]) -> None:
    assert console.differs(step(), answered) == ""


@pytest.mark.parametrize(
    "answered",
    [
        [],
        ["NIC   RATE", "mfs0  200 Mbit/s"],
        ["NIC   RATE", "mfs0  200 Mbit/s", "nothing waits", "mfsctl: something else"],
        ["NIC   SPEED", "mfs0  200 Mbit/s", "nothing waits"],
        ["NIC   RATE", "eth0  200 Mbit/s", "nothing waits"],
    ],
)
def test_anything_else_differs(answered: list[str]) -> None:
    assert "mfsctl status" in console.differs(step(), answered)


def test_the_rest_is_not_compared_where_the_page_says_so() -> None:
    assert console.differs(step(BLOCK.replace("nothing waits", "...")), ["NIC RATE", "mfs0 1 s", "what", "ever"]) == ""
    moves = step("<!-- moves -->\n" + BLOCK)
    assert console.differs(moves, ["NIC RATE", "whatever"]) == ""
    assert console.differs(moves, ["whatever", "mfs0 1 s"]) != ""
    cut = step('<!-- cut: 20 -->\n```console\n$ x\n{"reply":"status","dae...\n```\n')
    assert console.differs(cut, ['{"reply":"status","daemon":1}']) == ""
    assert console.differs(cut, ['{"reply":"rules","daemon":1}']) != ""


def test_what_is_not_known_is_refused() -> None:
    for note in ("<!-- needs: luck -->", "<!-- skip: yes -->"):
        with pytest.raises(ValueError, match="is not known"):
            console.read(f"{note}\n{BLOCK}")
