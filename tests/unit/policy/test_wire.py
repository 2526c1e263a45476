import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfsd.policy import Tier, wire_class

all_k = st.integers(2, 8)


def early(k: int) -> list[int]:
    return [wire_class(k, Tier.EARLY, rli=i) for i in range(8)]


def last(k: int) -> list[int]:
    return [wire_class(k, Tier.LAST, level=i) for i in range(1, 9)]


@pytest.mark.parametrize(
    ("k", "early_by_rli", "last_by_level"),
    [
        (8, [1, 2, 3, 4, 5, 6, 6, 6], [1, 1, 2, 3, 4, 5, 6, 6]),
        (5, [1, 2, 3, 3, 3, 3, 3, 3], [1, 1, 2, 3, 3, 3, 3, 3]),
        (4, [1, 2, 2, 2, 2, 2, 2, 2], [1, 1, 2, 2, 2, 2, 2, 2]),
        (3, [1] * 8, [1] * 8),
        (2, [0] * 8, [1] * 8),
    ],
)
def test_class_maps(k: int, early_by_rli: list[int], last_by_level: list[int]) -> None:
    assert early(k) == early_by_rli
    assert last(k) == last_by_level


@given(all_k)
def test_nothing_passes_class_0_and_nothing_waits_below_the_scavenger(k: int) -> None:
    assert wire_class(k, Tier.CRITICAL) == 0
    assert wire_class(k, Tier.SCAVENGER) == k - 1
    used = set(early(k) + last(k))
    assert used <= set(range(k))
    if k > 2:
        assert used == set(range(1, k - 1))


@given(all_k)
def test_more_urgent_is_never_a_lower_class(k: int) -> None:
    assert early(k) == sorted(early(k))
    assert last(k) == sorted(last(k))


@pytest.mark.parametrize("k", [-1, 0, 1, 9])
def test_other_numbers_of_classes_are_refused(k: int) -> None:
    with pytest.raises(ValueError, match=f"classes is {k}: use 2 to 8"):
        wire_class(k, Tier.EARLY)
