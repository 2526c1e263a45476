import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfsd.policy import robust_effective_deadline

deadlines = st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=20)


@given(deadlines)
def test_red_lies_between_the_first_and_the_last_deadline(d: list[int]) -> None:
    result = robust_effective_deadline(d)
    assert min(d) <= result.red_ns <= result.loose_ns <= max(d)
    assert result.loose_ns in d


@given(deadlines, st.randoms(use_true_random=False))
def test_red_does_not_depend_on_the_order_of_requests(d: list[int], random: object) -> None:
    shuffled = list(d)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert robust_effective_deadline(shuffled) == robust_effective_deadline(d)


@given(deadlines, st.integers(-(10**12), 10**12))
def test_shifting_the_clock_shifts_red(d: list[int], by: int) -> None:
    here, there = robust_effective_deadline(d), robust_effective_deadline(x + by for x in d)
    assert (there.red_ns - here.red_ns, there.loose_ns - here.loose_ns) == (by, by)


@given(deadlines)
def test_the_partition_is_at_the_widest_gap(d: list[int]) -> None:
    result = robust_effective_deadline(d)
    tight, loose = sorted(d)[: result.tight], sorted(d)[result.tight :]
    assert (result.loose_ns - max(tight) if loose else 0) == max(
        (b - a for a, b in zip(sorted(d), sorted(d)[1:], strict=False)), default=0
    )


def test_red_in_numbers() -> None:
    # One tight request among four: f = 1/4, RED = 10/4 + 3/4 * 100.
    assert robust_effective_deadline([100, 10, 104, 108]) == (77, 100, 1)  # 77.5 rounded down
    # Three tight of four: the tight ones weigh.
    assert robust_effective_deadline([10, 12, 14, 100]) == (32, 100, 3)  # 32.5 rounded down
    assert robust_effective_deadline([42]) == (42, 42, 1)
    assert robust_effective_deadline([42, 42, 42]) == (42, 42, 3)
    assert robust_effective_deadline([10, 20, 30]) == (16, 20, 1)  # the first of equal gaps


def test_an_outlier_does_not_hijack_the_batch() -> None:
    """The piggyback effect (paper 4.4.2): plain minimum deadline would put the mixed batch first."""
    mixed = robust_effective_deadline([10] + [1000] * 9)
    urgent = robust_effective_deadline([500] * 10)
    assert urgent.red_ns < mixed.red_ns


def test_no_requests_is_an_error() -> None:
    with pytest.raises(ValueError, match="give at least one"):
        robust_effective_deadline([])
