import math

from hypothesis import given
from hypothesis import strategies as st

from mfsd.policy import NO_DEADLINE, PolicyConfig
from mfsd.policy.urgency import minimal_link_utilization, thresholds
from tests.specification.urgency import crossing_ns, level_at, relative_layer_index

rates = st.integers(10**6, 10**11)
sizes = st.integers(1, 10**10)
deadlines = st.integers(0, 10**12)


def test_relative_layer_index() -> None:
    assert relative_layer_index(7, 3) == 4
    assert relative_layer_index(3, 3) == 0
    assert relative_layer_index(2, 3) == 0  # overdue


def test_minimal_link_utilization() -> None:
    assert minimal_link_utilization(500, 10**9, 0, 1000) == 0.5
    assert minimal_link_utilization(500, 10**9, 5 * 10**8, 1000) == 1.0
    assert minimal_link_utilization(500, 10**9, 10**9, 1000) == math.inf
    assert minimal_link_utilization(0, 10**9, 2 * 10**9, 1000) == 0.0
    assert minimal_link_utilization(500, NO_DEADLINE, 0, 1000) == 0.0


def test_thresholds_are_geometric_from_u() -> None:
    assert thresholds(PolicyConfig(levels=4)) == (0.5, 0.125, 0.03125)
    assert thresholds(PolicyConfig(levels=1)) == ()
    assert len(thresholds(PolicyConfig())) == 7
    # The paper's own exponent, E^-i, is the same ladder one step lower.
    assert thresholds(PolicyConfig(levels=3, threshold_top=0.5 / 4)) == (0.125, 0.03125)


@given(sizes, deadlines, rates, st.sampled_from(thresholds(PolicyConfig())))
def test_crossing_is_the_first_moment_at_the_threshold(size: int, deadline: int, rate: int, threshold: float) -> None:
    crossing = crossing_ns(size, deadline, rate, threshold)
    lead = deadline - crossing
    slop = 2 + lead // 2**50  # the lead is rounded in doubles
    assert minimal_link_utilization(size, deadline, crossing + slop, rate) >= threshold * (1 - 1e-12)
    assert minimal_link_utilization(size, deadline, crossing - slop, rate) < threshold * (1 + 1e-12)


def test_crossing_in_numbers() -> None:
    # 1 MB at 1 GB/s is 1 ms alone: at Q = 0.5 it must start 2 ms, at 0.125 8 ms before its deadline.
    assert crossing_ns(10**6, 10**8, 10**9, 0.5) == 10**8 - 2 * 10**6
    assert crossing_ns(10**6, 10**8, 10**9, 0.125) == 10**8 - 8 * 10**6
    assert crossing_ns(10**6, NO_DEADLINE, 10**9, 0.5) == NO_DEADLINE


def test_levels_in_numbers() -> None:
    falling = thresholds(PolicyConfig(levels=3))  # 0.5, 0.125
    deadline = 10**8

    def level(now: int) -> int:
        return level_at(now, 10**6, deadline, 10**9, falling)

    assert level(deadline - 8 * 10**6 - 1) == 3
    assert level(deadline - 8 * 10**6) == 2
    assert level(deadline - 2 * 10**6 - 1) == 2
    assert level(deadline - 2 * 10**6) == 1
    assert level(deadline + 10**9) == 1
    assert level_at(10**15, 10**6, NO_DEADLINE, 10**9, falling) == 3


@given(sizes, deadlines, rates, st.lists(st.integers(0, 2 * 10**12), min_size=2), st.integers(1, 8))
def test_time_alone_only_promotes(size: int, deadline: int, rate: int, times: list[int], levels: int) -> None:
    falling = thresholds(PolicyConfig(levels=levels))
    seen = [level_at(t, size, deadline, rate, falling) for t in sorted(times)]
    assert seen == sorted(seen, reverse=True)
    assert all(1 <= level <= levels for level in seen)
