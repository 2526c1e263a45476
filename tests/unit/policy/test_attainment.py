"""SLO attainment: each request once, late when it was late anywhere, over a window and since the start."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mfsd.policy.attainment import REQUESTS_MAX, Attainment

SECOND = 10**9


def test_a_request_counts_once_and_late_wins() -> None:
    seen = Attainment()
    seen.judge(1, True, 0)
    seen.judge(1, True, SECOND)
    assert seen.counts(SECOND) == (1, 0, 1, 0)
    seen.judge(1, False, 2 * SECOND)
    seen.judge(1, True, 3 * SECOND)
    assert seen.counts(3 * SECOND) == (0, 1, 0, 1)


def test_recent_ends_with_the_window() -> None:
    seen = Attainment(window_ns=10 * SECOND)
    seen.judge(1, True, 0)
    seen.judge(2, False, 6 * SECOND)
    assert seen.counts(10 * SECOND) == (1, 1, 1, 1)
    assert seen.counts(11 * SECOND) == (1, 1, 0, 1)
    assert seen.counts(17 * SECOND) == (1, 1, 0, 0)


def test_memory_is_bounded() -> None:
    seen = Attainment()
    for request in range(REQUESTS_MAX + 10):
        seen.judge(request, request % 2 == 0, request)
    counts = seen.counts(REQUESTS_MAX + 10)
    assert counts.met + counts.missed == REQUESTS_MAX + 10
    assert counts.recent_met + counts.recent_missed == REQUESTS_MAX


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 40)), max_size=60))
def test_it_is_what_counting_everything_gives(events: list[tuple[int, bool, int]]) -> None:
    """Within one window."""
    seen, met = Attainment(window_ns=100), dict[int, bool]()
    for request, good, now_ns in sorted(events, key=lambda e: e[2]):
        seen.judge(request, good, now_ns)
        met[request] = met.get(request, True) and good
    good_ones = sum(met.values())
    assert seen.counts(40) == (good_ones, len(met) - good_ones) * 2
