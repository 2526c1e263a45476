import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfsd.policy import Flow, PolicyConfig, Tier, Variant
from tests.specification import Decision, is_near, load_step, wire_class

all_k = st.integers(2, 8)
variants = st.sampled_from(Variant)


def reuse(k: int, variant: Variant = Variant.MFS) -> list[int]:
    return [wire_class(k, Tier.EARLY, rli=i, reuse=True, variant=variant) for i in range(8)]


def collective(k: int, variant: Variant = Variant.MFS) -> int:
    return wire_class(k, Tier.EARLY, variant=variant)


def last(k: int, variant: Variant = Variant.MFS) -> list[int]:
    return [wire_class(k, Tier.LAST, level=i, variant=variant) for i in range(1, 9)]


def near(k: int, variant: Variant = Variant.MFS) -> int:
    return wire_class(k, Tier.LAST, near=True, variant=variant)


@pytest.mark.parametrize(
    ("k", "collectives", "reuse_by_rli", "last_stages"),
    [
        (8, 1, [2, 3, 4, 4, 4, 4, 4, 4], 6),
        (6, 1, [2] * 8, 4),
        (5, 1, [2] * 8, 3),
        (4, 1, [1] * 8, 2),
        (3, 0, [0] * 8, 1),
        (2, 0, [0] * 8, 1),
    ],
)
def test_class_maps(k: int, collectives: int, reuse_by_rli: list[int], last_stages: int) -> None:
    assert collective(k) == collectives
    assert reuse(k) == reuse_by_rli
    assert last(k) == [last_stages] * 8


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
def test_class_maps_of_the_paper(k: int, early_by_rli: list[int], last_by_level: list[int]) -> None:
    assert reuse(k, Variant.PAPER) == early_by_rli
    assert collective(k, Variant.PAPER) == early_by_rli[0]
    assert last(k, Variant.PAPER) == last_by_level


@given(all_k, variants)
def test_nothing_passes_class_0_and_nothing_waits_below_the_scavenger(k: int, variant: Variant) -> None:
    assert wire_class(k, Tier.CRITICAL, variant=variant) == 0
    assert wire_class(k, Tier.SCAVENGER, variant=variant) == k - 1
    used = {collective(k, variant), *reuse(k, variant), *last(k, variant), near(k, variant)}
    assert used <= set(range(k))
    if k > 3:
        assert used == set(range(1, k - 1))


@given(all_k, variants)
def test_more_urgent_is_never_a_lower_class(k: int, variant: Variant) -> None:
    assert reuse(k, variant) == sorted(reuse(k, variant))
    assert last(k, variant) == sorted(last(k, variant))
    assert collective(k, variant) <= min(reuse(k, variant))


@given(all_k)
def test_a_last_stage_that_may_wait_is_below_every_early_stage(k: int) -> None:
    """Sharing a class with collectives stretches them: it cost more than any other choice (docs/simulation.md)."""
    assert max(reuse(k)) < near(k) <= min(last(k))


@given(all_k)
def test_what_is_near_is_a_class_up_where_there_is_one(k: int) -> None:
    assert near(k) == min(last(k)) - (k >= 6)
    assert near(k, Variant.PAPER) == last(k, Variant.PAPER)[0]


@pytest.mark.parametrize("k", [-1, 0, 1, 9])
def test_other_numbers_of_classes_are_refused(k: int) -> None:
    with pytest.raises(ValueError, match=f"classes is {k}: use 2 to 8"):
        wire_class(k, Tier.EARLY)


MS = 1_000_000


def load(left_ms: int, known: bool = True) -> Flow:
    """Of so many milliseconds at 1 GB/s."""
    return Flow(
        stage=1,
        sequence=0,
        remaining_bytes=left_ms * MS,
        rate_bytes_per_s=10**9,
        without_batch=True,
        request_known=known,
    )


@pytest.mark.parametrize(
    ("left_ms", "late", "step"), [(10, 0, 0), (11, 0, 1), (40, 0, 1), (41, 0, 2), (10, 1, 1), (11, 1, 2)]
)
def test_loads_have_classes_by_how_long_their_rest_takes(left_ms: int, late: bool, step: int) -> None:
    config = PolicyConfig(short_load_ns=10 * MS)
    assert load_step(config, load(left_ms), Decision(1, infeasible=late)) == step


def test_a_load_of_which_the_size_is_not_known_has_no_class_by_size() -> None:
    assert load_step(PolicyConfig(), load(1, known=False), Decision(1)) is None
    assert load_step(PolicyConfig(short_load_ns=0), load(1), Decision(1)) is None
    assert load_step(PolicyConfig(variant=Variant.PAPER), load(1), Decision(1)) is None


def test_a_last_stage_is_near_that_is_due_soon_lost_ones_by_the_deadline_that_they_are_given() -> None:
    config = PolicyConfig(soon_ns=100 * MS)
    flow = Flow(
        stage=3, sequence=0, remaining_bytes=0, rate_bytes_per_s=10**9, deadline_ns=1000 * MS, budget_ns=100 * MS
    )
    assert [is_near(config, flow, Decision(1), now_ms * MS) for now_ms in (900, 901)] == [False, True]
    assert [is_near(config, flow, Decision(1, infeasible=True), now_ms * MS) for now_ms in (1300, 1301)] == [
        False,
        True,
    ]
