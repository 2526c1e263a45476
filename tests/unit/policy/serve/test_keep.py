"""When a program's next turn is expected, what is fetched before it, and what is not."""

from __future__ import annotations

import math

import pytest

from mfsd.policy.serve.gaps import FEWEST, NAMES_MAX, WINDOW, GapHistory
from mfsd.policy.serve.keep import Piece, Waiting, next_piece


def test_what_is_left_follows_from_how_long_it_has_lasted() -> None:
    history = GapHistory()
    for gap_s in range(1, 10):
        history.ended("test", float(gap_s))
    assert history.remaining_s("test", 0.0) == 5.0, "the median"
    assert history.remaining_s("test", 6.0) == 2.0, "of 7, 8 and 9 the middle one"
    assert history.remaining_s("test", 6.0, 1.0) == 3.0
    assert history.remaining_s("test", 9.0) == math.inf, "none has lasted longer"


def test_a_name_that_was_hardly_seen_goes_by_all() -> None:
    history = GapHistory()
    assert history.remaining_s("new", 3.0) == 3.0, "nothing seen: what has just begun ends first"
    for _ in range(FEWEST):
        history.ended("slow", 50.0)
    history.ended("quick", 1.0)
    assert history.remaining_s("quick", 0.0) == 50.0
    for _ in range(FEWEST):
        history.ended("quick", 1.0)
    assert history.remaining_s("quick", 0.0) == 1.0 and history.remaining_s("slow", 0.0) == 50.0


def test_old_gaps_names_without_end_and_times_that_are_none_do_no_harm() -> None:
    history = GapHistory()
    for bad in (math.nan, -1.0):
        history.ended("a", bad)
    assert history.remaining_s("a", 2.0) == 2.0
    for _ in range(FEWEST):
        history.ended("a", 900.0)
    for _ in range(WINDOW):
        history.ended("a", 1.0)
    assert history.remaining_s("a", 0.0, 1.0) == 1.0, "only the latest count"
    for number in range(2 * NAMES_MAX):
        for _ in range(FEWEST):
            history.ended(f"tool {number}", 7.0)
    assert history.remaining_s(f"tool {2 * NAMES_MAX - 1}", 0.0) == 7.0
    history.ended("gone", math.inf)
    assert history.remaining_s("a", 0.0) == 1.0


def waiting(program: str, here: int, missing: int, remaining_s: float) -> Waiting:
    return Waiting(program, here, missing, remaining_s)


def test_the_nearest_is_fetched_first_and_only_into_room() -> None:
    near, far = waiting("near", 0, 3000, 2.0), waiting("far", 0, 3000, 9.0)
    assert next_piece([far, near], 5000) == Piece("near", 1024)
    assert next_piece([far, near], 1000) is None, "nothing is here that could go"
    assert next_piece([waiting("near", 0, 100, 2.0)], 100) == Piece("near", 100)
    assert next_piece([waiting("whole", 900, 0, 2.0)], 5000) is None
    assert next_piece([], 5000) is None


@pytest.mark.parametrize(("away_s", "fetched"), [(2.9, False), (3.0, False), (3.1, True), (math.inf, True)])
def test_only_what_is_clearly_further_away_goes_for_it(away_s: float, fetched: bool) -> None:
    of = [waiting("near", 0, 1024, 2.0), waiting("other", 4000, 0, away_s)]
    assert (next_piece(of, 0) == Piece("near", 1024)) is fetched


def test_a_program_that_is_not_expected_is_not_fetched() -> None:
    assert next_piece([waiting("gone", 0, 1024, math.inf)], 1 << 20) is None
