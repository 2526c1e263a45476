"""The arbitration order on one NIC."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfsd.policy import (
    NO_DEADLINE,
    NO_RANK,
    EarlyOrder,
    Flow,
    PolicyConfig,
    Stage,
    Tier,
    Variant,
)
from tests.specification import Decision, evaluate, order_key, tier_of

MFS, PAPER = PolicyConfig(), PolicyConfig(variant=Variant.PAPER)
BY_RANK = PolicyConfig(early_order=EarlyOrder.RANK)
NEUTRAL = Decision(8)

configs = st.builds(PolicyConfig, variant=st.sampled_from(Variant), early_order=st.sampled_from(EarlyOrder))
queues = st.lists(
    st.tuples(
        st.builds(
            Flow,
            stage=st.integers(0, 6),
            sequence=st.just(0),
            remaining_bytes=st.integers(0, 5),
            rate_bytes_per_s=st.integers(1, 3),
            layer_target=st.integers(0, 5),
            rank=st.integers(0, 3),
            deadline_ns=st.integers(0, 5) | st.just(NO_DEADLINE),
            pruned=st.booleans(),
            batch_running=st.booleans(),
        ),
        st.builds(Decision, level=st.integers(1, 8), critical=st.booleans(), infeasible=st.booleans()),
        st.integers(0, 5),
    ),
    max_size=12,
).map(lambda q: [(msgspec.structs.replace(f, sequence=i), d, layer) for i, (f, d, layer) in enumerate(q)])


def flow(stage: int, sequence: int = 0, **facts: Any) -> Flow:
    return Flow(stage=stage, sequence=sequence, **({"remaining_bytes": 10, "rate_bytes_per_s": 10} | facts))


def served(config: PolicyConfig, queue: list[tuple[Flow, Decision]], layer: int = 0) -> list[int]:
    """Sequence numbers in the order in which the flows are served."""
    return [f.sequence for f, _ in sorted(queue, key=lambda entry: order_key(config, entry[0], entry[1], layer))]


@given(configs, queues, st.randoms(use_true_random=False))
def test_a_permutation_of_the_queue_is_served_alike(
    config: PolicyConfig, queue: list[tuple[Flow, Decision, int]], shuffler: random.Random
) -> None:
    keys = [order_key(config, *entry) for entry in queue]
    assert len(set(keys)) == len(keys)
    shuffled = list(keys)
    shuffler.shuffle(shuffled)
    assert sorted(shuffled) == sorted(keys)


@given(configs, queues)
def test_the_link_never_idles_while_anything_waits(
    config: PolicyConfig, queue: list[tuple[Flow, Decision, int]]
) -> None:
    """Work conservation: serving the first until none is left serves every flow, scavengers too."""
    waiting = {order_key(config, *entry) for entry in queue}
    for _ in queue:
        waiting.remove(min(waiting))
    assert not waiting


@given(configs, queues)
def test_tiers_come_first(config: PolicyConfig, queue: list[tuple[Flow, Decision, int]]) -> None:
    ordered = sorted(queue, key=lambda entry: order_key(config, *entry))
    tiers = [tier_of(config, f, d) for f, d, _ in ordered]
    if config.variant is Variant.MFS and config.early_order is EarlyOrder.SHORTEST:
        tiers = [max(tier, Tier.EARLY) for tier in tiers]  # critical ones are among the early stages
    assert tiers == sorted(tiers)


@given(st.sampled_from([BY_RANK, PAPER]), queues)
def test_early_stages_follow_rli_then_rank(config: PolicyConfig, queue: list[tuple[Flow, Decision, int]]) -> None:
    early = [
        (0 if f.stage != Stage.REUSE else max(0, f.layer_target - layer), f.rank)
        for f, d, layer in sorted(queue, key=lambda entry: order_key(config, *entry))
        if tier_of(config, f, d) is Tier.EARLY
    ]
    assert early == sorted(early)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (PAPER, [1, 0, 4, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12]),
        (BY_RANK, [1, 0, 4, 2, 3, 5, 7, 8, 6, 9, 10, 11, 12]),  # last stages by deadline, lost ones among them
    ],
)
def test_the_whole_ladder(config: PolicyConfig, expected: list[int]) -> None:
    critical = Decision(1, critical=True)
    queue = [
        (flow(Stage.P2D, 0, deadline_ns=20), critical),
        (flow(Stage.P2D, 1, deadline_ns=10), critical),
        (flow(Stage.COLLECTIVE, 2, rank=1), NEUTRAL),
        (flow(Stage.REUSE, 3, rank=1, layer_target=4), NEUTRAL),
        (flow(Stage.REUSE, 4, rank=0, layer_target=4), NEUTRAL),
        (flow(Stage.REUSE, 5, rank=0, layer_target=5), NEUTRAL),
        (flow(Stage.P2D, 6, deadline_ns=30), Decision(2)),
        (flow(Stage.P2D, 7, deadline_ns=5), Decision(3)),
        (flow(Stage.P2D, 8, deadline_ns=6), Decision(3)),
        (flow(Stage.P2D, 9, deadline_ns=1), Decision(1, critical=True, infeasible=True)),
        (flow(Stage.P2D, 10, deadline_ns=2, pruned=True), critical),
        (flow(Stage.BACKGROUND, 11), NEUTRAL),
        (flow(99, 12), NEUTRAL),
    ]
    assert served(config, queue, layer=4) == expected


def test_keys_in_numbers() -> None:
    """What another implementation must produce."""
    reuse = flow(Stage.REUSE, 7, layer_target=9, rank=3, remaining_bytes=5000)
    running = msgspec.structs.replace(reuse, batch_running=True)
    idle = (63 << 32) + NO_RANK
    assert order_key(MFS, running, NEUTRAL, 4) == (1, 5, (3 << 32) + 3, 2, 7)  # 4 KiB: of 4 up to 8
    assert order_key(MFS, reuse, NEUTRAL, 4) == (1, 5, idle, 2, 7)
    large = msgspec.structs.replace(running, remaining_bytes=2**60, rank=NO_RANK)
    assert order_key(MFS, large, NEUTRAL, 4) == (1, 5, (51 << 32) + NO_RANK, 2, 7)
    assert order_key(MFS, flow(Stage.CONTROL, 9), NEUTRAL, 4) == (1, 0, idle, 0, 9)
    for by_rank in (PAPER, BY_RANK):
        assert order_key(by_rank, running, NEUTRAL, 4) == (1, 5, 3, 2, 7)
        assert order_key(by_rank, flow(Stage.REUSE, 7, layer_target=2), NEUTRAL, 4) == (1, 0, NO_RANK, 2, 7)
        assert order_key(by_rank, flow(Stage.COLLECTIVE, 8, layer_target=9, rank=3), NEUTRAL, 4) == (1, 0, 3, 1, 8)
    collective_first = PolicyConfig(early_order=EarlyOrder.COLLECTIVE_FIRST)
    assert order_key(collective_first, reuse, NEUTRAL, 4) == (1, 6, 3, 2, 7)
    assert order_key(collective_first, flow(Stage.COLLECTIVE, 8), NEUTRAL, 4) == (1, 0, NO_RANK, 1, 8)
    last = flow(Stage.P2D, 1, deadline_ns=50)
    assert order_key(MFS, last, Decision(3)) == (2, 0, 50, 0, 1)
    assert order_key(PAPER, last, Decision(3)) == (2, 3, 50, 0, 1)
    assert order_key(MFS, last, Decision(3, True)) == (1, 0, 0, 3, 1)
    longer = msgspec.structs.replace(last, remaining_bytes=8 << 10, rank=5)
    assert order_key(MFS, longer, Decision(3, True)) == (1, 0, 4 << 32, 3, 1)
    assert order_key(BY_RANK, last, Decision(3, True)) == (0, 0, 50, 0, 1)
    assert order_key(PAPER, last, Decision(3, True, True)) == (3, 0, 50, 0, 1)
    assert order_key(MFS, flow(Stage.BACKGROUND, 1), NEUTRAL) == (3, 0, NO_DEADLINE, 0, 1)


def test_a_lost_request_is_due_again_four_budgets_later() -> None:
    """It delays nothing that is due before, and is not starved by what is due after."""
    lost = Decision(1, critical=True, infeasible=True)
    last = flow(Stage.P2D, 1, deadline_ns=50, budget_ns=40)
    assert order_key(MFS, last, lost) == (2, 0, 50 + 4 * 40, 0, 1)
    assert order_key(MFS, flow(Stage.P2D, 1, deadline_ns=50), lost) == (2, 0, NO_DEADLINE, 0, 1)
    others = [(flow(Stage.P2D, n, deadline_ns=d), NEUTRAL) for n, d in [(2, 209), (3, 211)]]
    assert served(MFS, [(last, lost), *others]) == [2, 1, 3]
    assert served(PAPER, [(last, lost), *others]) == [2, 3, 1]
    assert tier_of(MFS, msgspec.structs.replace(last, pruned=True), lost) is Tier.SCAVENGER


def test_stage_2_before_stage_1_of_the_same_batch_then_arrival() -> None:
    queue = [(flow(stage, i, rank=1), NEUTRAL) for i, stage in enumerate([1, 2, 1, 2, 0])]
    assert served(BY_RANK, queue) == [4, 1, 3, 0, 2]


def test_early_orders_differ_where_they_should() -> None:
    queue = [
        (flow(Stage.REUSE, 0, rank=0, remaining_bytes=31 << 10, batch_running=True), NEUTRAL),
        (flow(Stage.REUSE, 1, rank=3, remaining_bytes=10 << 10, batch_running=True), NEUTRAL),
        (flow(Stage.COLLECTIVE, 2, rank=2, remaining_bytes=20 << 10, batch_running=True), NEUTRAL),
        (flow(Stage.REUSE, 3, rank=1, remaining_bytes=30 << 10, batch_running=True), NEUTRAL),
    ]
    by = {order: served(PolicyConfig(early_order=order), queue) for order in EarlyOrder}
    assert by == {
        EarlyOrder.RANK: [0, 3, 2, 1],
        EarlyOrder.COLLECTIVE_FIRST: [2, 0, 3, 1],
        EarlyOrder.SHORTEST: [1, 0, 3, 2],  # of 16 to 32 KiB the rank decides
    }


@pytest.mark.parametrize(
    ("variant", "running", "tier"),
    [
        (Variant.MFS, True, Tier.EARLY),  # its peers would stall
        (Variant.MFS, False, Tier.SCAVENGER),
        (Variant.PAPER, True, Tier.SCAVENGER),
        (Variant.PAPER, False, Tier.SCAVENGER),
    ],
)
def test_stage_1_of_a_pruned_request(variant: Variant, running: bool, tier: Tier) -> None:
    config = PolicyConfig(variant=variant)
    assert tier_of(config, flow(Stage.REUSE, pruned=True, batch_running=running), NEUTRAL) is tier


def test_collectives_are_never_demoted() -> None:
    for config in (MFS, PAPER):
        assert tier_of(config, flow(Stage.COLLECTIVE, pruned=True), Decision(8, infeasible=True)) is Tier.EARLY


def test_a_load_that_comes_too_late_counts_as_four_times_as_large() -> None:
    """At 10 bytes a second 5000 take 500 s."""
    load = flow(Stage.REUSE, 7, remaining_bytes=5000, without_batch=True, deadline_ns=500 * 10**9)
    in_time, late = (evaluate(MFS, load, NEUTRAL, now) for now in (0, 1))
    assert (in_time.infeasible, late.infeasible) == (False, True)
    assert order_key(MFS, load, in_time) == (1, 0, (3 << 32) + NO_RANK, 2, 7)
    assert order_key(MFS, load, late) == (1, 0, (5 << 32) + NO_RANK, 2, 7)
    of_a_batch = msgspec.structs.replace(load, without_batch=False, batch_running=True)
    unknown = msgspec.structs.replace(load, deadline_ns=NO_DEADLINE)
    assert (
        not evaluate(MFS, of_a_batch, NEUTRAL, 1).infeasible and not evaluate(MFS, unknown, NEUTRAL, 2**70).infeasible
    )
