from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfsd.policy import Flow, PolicyConfig, Tier, Variant
from tests.specification import Decision, due_step, load_step, wire_class

all_k = st.integers(2, 8)
variants = st.sampled_from(Variant)


def reuse(k: int, variant: Variant = Variant.MFS) -> list[int]:
    return [wire_class(k, Tier.EARLY, rli=i, reuse=True, variant=variant) for i in range(8)]


def loads(k: int) -> list[int]:
    return [wire_class(k, Tier.EARLY, rli=7, reuse=True, load_step=i) for i in range(4)]


def collective(k: int, variant: Variant = Variant.MFS) -> int:
    return wire_class(k, Tier.EARLY, variant=variant)


def critical(k: int, variant: Variant = Variant.MFS) -> int:
    return wire_class(k, Tier.CRITICAL, variant=variant)


def last(k: int) -> list[int]:
    return [wire_class(k, Tier.LAST, due_step=i) for i in range(3)]


def last_by_level(k: int) -> list[int]:
    return [wire_class(k, Tier.LAST, level=i, variant=Variant.PAPER) for i in range(1, 9)]


@pytest.mark.parametrize(
    ("k", "collectives", "by_step", "by_due"),
    [
        (8, 0, [1, 2, 3, 5], [4, 5, 6]),
        (7, 0, [1, 2, 2, 4], [3, 4, 5]),
        (6, 0, [1, 2, 2, 3], [3, 3, 4]),
        (5, 0, [1, 1, 1, 2], [2, 2, 3]),
        (4, 0, [1, 1, 1, 2], [2, 2, 2]),
        (3, 0, [0, 0, 0, 0], [1, 1, 1]),
        (2, 0, [0, 0, 0, 0], [1, 1, 1]),
    ],
)
def test_class_maps(k: int, collectives: int, by_step: Sequence[int], by_due: Sequence[int]) -> None:
    assert collective(k) == collectives
    assert critical(k) == by_step[0]
    assert loads(k) == by_step
    assert last(k) == by_due
    assert reuse(k) == [*by_step[:2], *[by_step[2]] * 6]


@pytest.mark.parametrize(
    ("k", "early_by_rli", "by_level"),
    [
        (8, [1, 2, 3, 4, 5, 6, 6, 6], [1, 1, 2, 3, 4, 5, 6, 6]),
        (5, [1, 2, 3, 3, 3, 3, 3, 3], [1, 1, 2, 3, 3, 3, 3, 3]),
        (4, [1, 2, 2, 2, 2, 2, 2, 2], [1, 1, 2, 2, 2, 2, 2, 2]),
        (3, [1] * 8, [1] * 8),
        (2, [0] * 8, [1] * 8),
    ],
)
def test_class_maps_of_the_paper(k: int, early_by_rli: Sequence[int], by_level: Sequence[int]) -> None:
    assert reuse(k, Variant.PAPER) == early_by_rli
    assert collective(k, Variant.PAPER) == early_by_rli[0]
    assert last_by_level(k) == by_level
    assert critical(k, Variant.PAPER) == 0


@given(all_k, variants)
def test_every_class_is_used_and_nothing_waits_below_the_scavenger(k: int, variant: Variant) -> None:
    paper = variant is Variant.PAPER
    assert wire_class(k, Tier.SCAVENGER, variant=variant) == k - 1
    by_kind = last_by_level(k) if paper else [*loads(k), *last(k)]
    used = {collective(k, variant), critical(k, variant), *reuse(k, variant), *by_kind}
    assert used == set(range(k if k == 2 else k - 1))


@given(all_k, variants)
def test_more_urgent_is_never_a_lower_class(k: int, variant: Variant) -> None:
    assert reuse(k, variant) == sorted(reuse(k, variant))
    assert loads(k) == sorted(loads(k))
    assert last(k) == sorted(last(k))
    assert last_by_level(k) == sorted(last_by_level(k))
    assert collective(k, variant) <= min(reuse(k, variant))


@given(st.integers(4, 8))
def test_collectives_share_with_nothing(k: int) -> None:
    """A last stage that shares a class with them stretches them."""
    assert collective(k) < min(*loads(k), *reuse(k), *last(k), critical(k))


@given(all_k)
def test_only_what_takes_the_port_long_waits_for_a_last_stage(k: int) -> None:
    assert max(*reuse(k), *loads(k)[:3]) < min(last(k))


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
    ("left_ms", "late", "step"),
    [(2, 0, 0), (3, 0, 1), (8, 0, 1), (9, 0, 2), (32, 0, 2), (33, 0, 3), (2, 1, 1), (3, 1, 2), (8, 1, 2), (9, 1, 3)],
)
def test_loads_have_classes_by_how_long_their_rest_takes(left_ms: int, late: bool, step: int) -> None:
    config = PolicyConfig(short_load_ns=8 * MS)
    assert load_step(config, load(left_ms), Decision(1, infeasible=late)) == step


def test_a_load_of_which_the_size_is_not_known_has_no_class_by_size() -> None:
    assert load_step(PolicyConfig(), load(1, known=False), Decision(1)) is None
    assert load_step(PolicyConfig(short_load_ns=0), load(1), Decision(1)) is None
    assert load_step(PolicyConfig(variant=Variant.PAPER), load(1), Decision(1)) is None


def test_last_stages_have_classes_by_when_they_are_due_lost_ones_by_the_deadline_that_they_are_given() -> None:
    config = PolicyConfig(soon_ns=100 * MS)
    flow = Flow(
        stage=3, sequence=0, remaining_bytes=0, rate_bytes_per_s=10**9, deadline_ns=1000 * MS, budget_ns=100 * MS
    )
    times_ms = (900, 901, 990, 991, 1001)
    assert [due_step(config, flow, Decision(1), ms * MS) for ms in times_ms] == [2, 1, 1, 0, 0]
    assert [due_step(config, flow, Decision(1, infeasible=True), (ms + 400) * MS) for ms in times_ms] == [2, 1, 1, 0, 0]


def test_a_last_stage_that_is_not_known_to_be_due_goes_last() -> None:
    flow = Flow(stage=3, sequence=0, remaining_bytes=0, rate_bytes_per_s=10**9, budget_ns=100 * MS)
    assert due_step(PolicyConfig(), flow, Decision(1), 0) == 2
    due = Flow(stage=3, sequence=0, remaining_bytes=0, rate_bytes_per_s=10**9, deadline_ns=MS, budget_ns=100 * MS)
    assert due_step(PolicyConfig(), due, Decision(1), 0) == 0
    assert due_step(PolicyConfig(soon_ns=0), due, Decision(1), 0) == 2
