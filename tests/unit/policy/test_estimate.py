import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfsd.policy.estimate import bytes_ahead, overlapped_finish_ns, transfer_ns
from tests.specification.urgency import effective_rate_bytes_per_s

sizes = st.integers(0, 2**50)
rates = st.integers(1, 10**12)


@given(sizes, rates)
def test_a_transfer_takes_as_long_as_its_bytes_and_no_nanosecond_more(size: int, rate: int) -> None:
    time_ns = transfer_ns(size, rate)
    assert time_ns * rate >= size * 10**9 > (time_ns - 1) * rate or size == time_ns == 0


@given(rates, st.floats(), st.floats(0, 0.999))
def test_effective_rate_stays_within_what_the_clip_allows(rate: int, rho: float, rho_max: float) -> None:
    left = effective_rate_bytes_per_s(rate, rho, rho_max)
    assert max(1, math.floor(rate * (1 - rho_max))) <= left <= rate


def test_effective_rate() -> None:
    assert effective_rate_bytes_per_s(1000, 0.25, 0.95) == 750
    assert effective_rate_bytes_per_s(1000, 7.0, 0.75) == 250
    assert effective_rate_bytes_per_s(1000, math.nan, 0.95) == 1000


def test_bytes_ahead_are_those_with_smaller_keys() -> None:
    queued = [((0, 5), 10), ((1, 0), 20), ((1, 1), 40), ((2, 0), 80)]
    assert bytes_ahead((1, 1), queued) == 30


@pytest.mark.parametrize(
    ("compute_end", "tail", "finish"),
    [
        (0, 0, 110),  # compute is over: only bytes
        (60, 10, 110),  # compute ends while earlier layers are under way
        (105, 10, 115),  # the last layer waits for compute
        (105, 999, 205),  # nothing can go before compute ends; a tail is never more than what is left
    ],
)
def test_finish_with_overlap(compute_end: int, tail: int, finish: int) -> None:
    assert overlapped_finish_ns(10, compute_end, 100, tail, 10**9) == finish
