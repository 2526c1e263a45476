"""Promotion of one flow: levels, class 0, the scavenger, and when to evaluate again."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfsd.policy import (
    NO_DEADLINE,
    Flow,
    PolicyConfig,
    Stage,
    Tier,
    Variant,
)
from tests.specification import evaluate, initial, next_evaluation_ns, tier_of
from tests.specification.flow import admits_to_class_0, laxity_ns

MS = 1_000_000
GB = 10**9
MB = 10**6  # takes 1 ms at 1 GB/s

configs = st.builds(
    PolicyConfig,
    variant=st.sampled_from(Variant),
    levels=st.integers(2, 8),
    threshold_base=st.floats(1.5, 8),
    threshold_top=st.floats(0.05, 1),
    critical_laxity_share=st.floats(0, 0.5),
)
flows = st.builds(
    Flow,
    stage=st.just(Stage.P2D),
    sequence=st.just(0),
    remaining_bytes=st.integers(0, 100 * MB),
    rate_bytes_per_s=st.integers(GB // 10, 10 * GB),
    deadline_ns=st.integers(0, 500 * MS),
    budget_ns=st.integers(0, 500 * MS),
    compute_end_ns=st.integers(0, 500 * MS),
    tail_bytes=st.integers(0, 10 * MB),
)
moments = st.integers(0, 600 * MS)
rhos = st.floats(0, 1)
slacks = st.none() | st.integers(-100 * MS, 500 * MS)


def p2d(**changes: object) -> Flow:
    """10 ms worth of KV, due at 100 ms."""
    flow = Flow(
        stage=Stage.P2D,
        sequence=0,
        remaining_bytes=10 * MB,
        rate_bytes_per_s=GB,
        deadline_ns=100 * MS,
        budget_ns=100 * MS,
    )
    return msgspec.structs.replace(flow, **changes)


@given(configs, flows, st.lists(st.tuples(moments, rhos, slacks), min_size=2, max_size=8))
def test_promotion_is_monotonic_and_only_the_scavenger_is_a_way_down(
    config: PolicyConfig, flow: Flow, points: list[tuple[int, float, int | None]]
) -> None:
    """However time, load and victims change, level and class 0 are kept; so the tier only falls when the request is
    lost: to the scavenger (variant paper) or back among the last stages."""
    decision = initial(config)
    for now, rho, slack in points:
        after = evaluate(config, flow, decision, now, rho, slack)
        assert after.level <= decision.level
        assert after.critical >= decision.critical
        before_tier, after_tier = tier_of(config, flow, decision), tier_of(config, flow, after)
        assert after_tier <= before_tier or (after.infeasible and after_tier in (Tier.LAST, Tier.SCAVENGER))
        if after.infeasible:
            assert laxity_ns(config, flow, now) < flow.budget_ns * config.readmission_margin + 1
        decision = after


@given(configs, flows, moments, rhos, slacks)
def test_looking_twice_at_one_moment_changes_nothing(
    config: PolicyConfig, flow: Flow, now: int, rho: float, slack: int | None
) -> None:
    once = evaluate(config, flow, initial(config), now, rho, slack)
    assert evaluate(config, flow, once, now, rho, slack) == once


@given(configs, flows, moments, rhos, slacks, st.floats(0, 1))
def test_nothing_changes_before_the_next_evaluation(
    config: PolicyConfig, flow: Flow, now: int, rho: float, slack: int | None, where: float
) -> None:
    """One timer per flow is enough: nothing an evaluation could change comes before it is due."""
    decision = evaluate(config, flow, initial(config), now, rho, slack)
    due = next_evaluation_ns(config, flow, decision, now, rho)
    end = now + 10**12 if due is None else due
    between = now + int((end - 1 - now) * where)
    if due is not None and due == now + config.promotion_interval_ns:
        return
    after = evaluate(config, flow, decision, between, rho, slack)
    if due is None:  # infeasible already: time does not bring it back
        assert after.infeasible == decision.infeasible
    else:
        assert after == decision


def test_the_next_evaluation_finds_something() -> None:
    config = PolicyConfig()
    flow = p2d()
    found = []
    decision, now = evaluate(config, flow, initial(config), 0), 0
    while (due := next_evaluation_ns(config, flow, decision, now)) is not None:
        after = evaluate(config, flow, decision, due)
        assert after != decision
        found.append((due, after.critical, after.infeasible))
        decision, now = after, due
    assert found == [
        (85 * MS + 1, True, False),  # laxity below 5 % of the budget
        (90 * MS + 1, True, True),  # too late
    ]


def test_the_next_evaluation_of_the_paper_finds_a_level() -> None:
    config = PolicyConfig(variant=Variant.PAPER, levels=3)
    decision, now, found = initial(config), 0, []
    while (due := next_evaluation_ns(config, p2d(), decision, now)) is not None:
        decision, now = evaluate(config, p2d(), decision, due), due
        found.append((due, decision.level, decision.critical, decision.infeasible))
    assert found == [
        (20 * MS, 2, False, False),  # MLU 0.125: 80 ms left for 10 ms of bytes
        (80 * MS, 1, True, False),  # MLU 0.5
        (90 * MS + 1, 1, True, True),  # too late
    ]


@given(flows, moments, rhos, slacks)
def test_in_mfs_there_are_no_levels_and_measured_load_decides_nothing(
    flow: Flow, now: int, rho: float, slack: int | None
) -> None:
    config = PolicyConfig()
    decision = evaluate(config, flow, initial(config), now, rho, slack)
    assert decision.level == 0
    for other in (config, PolicyConfig(levels=2, threshold_top=0.05, threshold_base=8.0, rho_max=0.0)):
        assert evaluate(other, flow, initial(other), now, 0.0, slack) == decision
        assert next_evaluation_ns(other, flow, decision, now, 0.0) == next_evaluation_ns(
            config, flow, decision, now, rho
        )


def test_looks_are_at_least_an_interval_apart() -> None:
    config = PolicyConfig(variant=Variant.PAPER, levels=3, promotion_interval_ns=30 * MS)
    assert next_evaluation_ns(config, p2d(), initial(config), 0) == 30 * MS


def test_the_paper_s_class_0_is_level_1() -> None:
    config = PolicyConfig(variant=Variant.PAPER)
    before, at = (evaluate(config, p2d(), initial(config), t) for t in (80 * MS - 1, 80 * MS))
    assert (before.level, before.critical) == (2, False)
    assert (at.level, at.critical) == (1, True)


def test_load_promotes_sooner() -> None:
    config = PolicyConfig(variant=Variant.PAPER)
    assert evaluate(config, p2d(), initial(config), 60 * MS, rho=0.0).level == 2
    assert evaluate(config, p2d(), initial(config), 60 * MS, rho=0.5).level == 1
    clipped = evaluate(config, p2d(), initial(config), 0, rho=float("inf"))
    assert clipped == evaluate(config, p2d(), initial(config), 0, rho=0.95)


@pytest.mark.parametrize(
    ("now", "unit_slack", "admitted"),
    [
        (85 * MS, None, False),  # laxity 5 ms is not below 5 ms
        (86 * MS, None, True),  # 4 ms, and nothing waits for it
        (86 * MS, 20 * MS, True),  # the unit keeps 10 ms
        (86 * MS, 14 * MS, True),  # the unit keeps as much as the flow has
        (86 * MS, 14 * MS - 1, False),
        (86 * MS, 5 * MS, False),  # more slack than the flow, but the transfer would eat it all
        (86 * MS, -MS, False),
        (90 * MS, None, True),  # the very last moment
        (91 * MS, None, False),  # lost
    ],
)
def test_class_0_admission(now: int, unit_slack: int | None, admitted: bool) -> None:
    assert admits_to_class_0(PolicyConfig(), p2d(), now, unit_slack) is admitted


def test_class_0_can_be_turned_off_and_needs_a_known_budget() -> None:
    assert not admits_to_class_0(PolicyConfig(critical_laxity_share=0.0), p2d(), 90 * MS, None)
    assert not admits_to_class_0(PolicyConfig(), p2d(budget_ns=0), 90 * MS, None)


def test_only_the_default_variant_counts_remaining_compute() -> None:
    flow = p2d(compute_end_ns=99 * MS, tail_bytes=2 * MB, computing=True)
    late = {v: evaluate(c := PolicyConfig(variant=v), flow, initial(c), 10 * MS).infeasible for v in Variant}
    assert late == {Variant.MFS: True, Variant.PAPER: False}


def test_bytes_alone_are_enough_to_be_lost() -> None:
    for variant in Variant:
        config = PolicyConfig(variant=variant)
        assert not evaluate(config, p2d(), initial(config), 90 * MS).infeasible
        assert evaluate(config, p2d(), initial(config), 90 * MS + 1).infeasible


def test_load_alone_never_makes_a_flow_infeasible() -> None:
    config = PolicyConfig()
    assert not evaluate(config, p2d(), initial(config), 85 * MS, rho=0.95).infeasible


def test_a_flow_returns_from_the_scavenger_with_a_margin() -> None:
    config = PolicyConfig()  # margin: 5 ms of 100 ms
    lost = evaluate(config, p2d(compute_end_ns=95 * MS, tail_bytes=6 * MB), initial(config), 0)
    assert lost.infeasible
    hardly = p2d(compute_end_ns=90 * MS, tail_bytes=6 * MB)  # 4 ms to spare
    assert evaluate(config, hardly, lost, 0).infeasible
    assert not evaluate(config, hardly, initial(config), 0).infeasible
    clearly = p2d(compute_end_ns=89 * MS, tail_bytes=6 * MB)  # 5 ms to spare
    assert not evaluate(config, clearly, lost, 0).infeasible


@pytest.mark.parametrize(
    "flow",
    [
        p2d(computing=True),  # only layer boundaries promote
        p2d(pruned=True),  # only the coordinator's next order brings it back
        p2d(deadline_ns=NO_DEADLINE),
        p2d(stage=Stage.REUSE),
        p2d(stage=Stage.COLLECTIVE),
        p2d(stage=77),
    ],
)
def test_flows_that_wait_for_events_have_no_timer(flow: Flow) -> None:
    config = PolicyConfig()
    assert next_evaluation_ns(config, flow, initial(config), 0) is None


@given(configs, moments, rhos)
def test_only_last_stages_with_a_deadline_are_promoted(config: PolicyConfig, now: int, rho: float) -> None:
    for flow in (p2d(stage=Stage.REUSE), p2d(stage=Stage.BACKGROUND), p2d(deadline_ns=NO_DEADLINE)):
        assert evaluate(config, flow, initial(config), now, rho) == initial(config)
