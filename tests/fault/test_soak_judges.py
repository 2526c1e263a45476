"""A soak that could not fail would prove nothing: its judgement of runs, by programs that do lose and corrupt."""

from __future__ import annotations

import os
import sys

import pytest

from tests.soak.programs import Run, Slot
from tests.soak.tally import Tally, text


def tally_of(script: str, *, excuse: bool = False) -> Tally:
    """One run of a program in Python that was killed, or not."""
    tally = Tally()

    def begin(run: Run) -> None:
        run.start([sys.executable, "-c", script], dict(os.environ))
        run.excused = excuse
        slot.stop()

    slot = Slot("program", tally, begin, lambda output: (int(output[0]), 8))
    slot.start()
    assert slot.join(200)
    return tally


def test_a_run_that_ends_well_counts() -> None:
    report = tally_of("print(7)").report(1, {})
    assert (report["transfers"], report["bytes"], report["held"]) == (7, 8, True)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("raise SystemExit(1)", "lost"),
        ("print(0)", "lost"),
        ("print('stress: completion 5 where 4 was due'); raise SystemExit(1)", "corrupted"),
        ("print('invalid data in page 3')", "corrupted"),
        ("print('transfer 3 of 10 bytes: wrong data'); raise SystemExit(2)", "corrupted"),
    ],
)
def test_a_run_that_was_not_killed_is_lost_or_corrupted(script: str, kind: str) -> None:
    report = tally_of(script).report(1, {})
    assert report[kind] == 1
    assert not report["held"]
    assert f"{kind} = 1" in text(report)


def test_who_was_killed_has_lost_nothing_but_may_not_corrupt() -> None:
    assert tally_of("raise SystemExit(1)", excuse=True).report(1, {})["held"]
    assert tally_of("print('invalid data in page 3'); raise SystemExit(1)", excuse=True).report(1, {})["corrupted"] == 1
