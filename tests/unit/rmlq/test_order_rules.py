"""What the binding's OrderRules answers is what tests/specification says: same place, same class, same decision."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mfsd import _native
from mfsd.policy import NO_DEADLINE, NO_RANK, EarlyOrder, Flow, PolicyConfig, Stage, Tier, Variant, native_policy
from mfsd.policy.urgency import thresholds
from tests.specification import (
    Decision,
    due_step,
    evaluate,
    initial,
    load_step,
    next_evaluation_ns,
    order_key,
    tier_of,
    wire_class,
)
from tests.specification.flow import admits_to_class_0, guard_ns, laxity_ns
from tests.specification.order import by_size, due_ns, rli_of
from tests.specification.urgency import crossing_ns, effective_rate_bytes_per_s

MS = 1_000_000
NOW = 10**12
near = st.integers(-20 * MS, 600 * MS).map(lambda offset: NOW + offset)
sizes = st.one_of(st.integers(0, 3000), st.integers(0, 10**9), st.integers(0, 2**40))


def values(name: str, parameter: _native.Parameter) -> st.SearchStrategy[Any]:
    """Of every parameter that the core has, so that a new rule is drawn without a change here."""
    if name == "variant":
        return st.sampled_from(Variant)
    if name == "early_order":
        return st.sampled_from(EarlyOrder)
    if isinstance(parameter.most, float):
        return st.sampled_from([0.0, 0.05, 0.3, 0.95])
    if name.endswith("_ns"):
        return st.sampled_from([parameter.least, MS, 32 * MS, 500 * MS])
    return st.integers(max(2, parameter.least), parameter.most)


configs = st.builds(
    PolicyConfig,
    threshold_top=st.sampled_from([0.125, 0.5, 1.0]),
    **{name: values(name, parameter) for name, parameter in _native.POLICY_PARAMETERS.items()},
)
shared: dict[str, Any] = {
    "sequence": st.integers(0, 100),
    "remaining_bytes": sizes,
    "rate_bytes_per_s": st.sampled_from([1, 999_983, 10**9, 12_500_000_000]),
    "deadline_ns": st.one_of(st.just(NO_DEADLINE), near),
    "pruned": st.booleans(),
}
lasts = st.builds(
    Flow,
    stage=st.just(3),
    budget_ns=st.one_of(st.just(0), st.integers(0, 2_000 * MS), st.just(2**57)),
    compute_end_ns=st.one_of(st.just(0), near),
    tail_bytes=sizes,
    **shared,
)
earlies = st.builds(
    Flow,
    stage=st.sampled_from([0, 1, 1, 1, 2, 4, 200]),
    layer_target=st.integers(0, 90),
    rank=st.one_of(st.just(NO_RANK), st.integers(0, 3)),
    without_batch=st.booleans(),
    request_known=st.booleans(),
    whole_bytes=st.one_of(st.none(), sizes),
    batch_running=st.booleans(),
    **shared,
)


def rules_of(config: PolicyConfig) -> _native.OrderRules:
    return _native.OrderRules(native_policy(config))


def expected_place(config: PolicyConfig, flow: Flow, decision: Decision, layer: int) -> tuple[Any, Tier, int]:
    tier = tier_of(config, flow, decision)
    early = tier is Tier.EARLY
    carried = wire_class(
        config.classes,
        tier,
        rli_of(flow, layer) if early else 0,
        decision.level,
        reuse=flow.stage == Stage.REUSE,
        load_step=load_step(config, flow, decision) if early else None,
        due_step=due_step(config, flow, decision, NOW),
        variant=config.variant,
    )
    return order_key(config, flow, decision, layer), tier, carried


@settings(max_examples=500)
@given(configs, earlies, st.integers(0, 90))
def test_places_of_early_flows(config: PolicyConfig, flow: Flow, layer: int) -> None:
    rules = rules_of(config)
    assert rules.first() == initial(config)
    assume((flow.stage == Stage.REUSE and not flow.batch_running) or not flow.without_batch)  # only reuse comes so
    decision = evaluate(config, flow, initial(config), NOW)
    place = rules.place(flow, rules.first(), NOW, layer)
    assert place[:3] == expected_place(config, flow, decision, layer)
    counts = by_size(config) and place.tier == Tier.EARLY
    assert place.late == (decision.infeasible and counts)


@settings(max_examples=500)
@given(configs, lasts, st.integers(1, 8), st.booleans(), st.booleans())
def test_places_of_last_stages(config: PolicyConfig, flow: Flow, level: int, critical: bool, lost: bool) -> None:
    paper = config.variant is Variant.PAPER
    decision = Decision(min(level, config.levels) if paper else 0, critical, lost and flow.deadline_ns != NO_DEADLINE)
    assert rules_of(config).place(flow, decision, NOW)[:3] == expected_place(config, flow, decision, 0)


@settings(max_examples=1000)
@given(
    config=configs,
    flow=lasts,
    critical=st.booleans(),
    lost=st.booleans(),
    rho=st.floats(0, 1),
    slack=st.one_of(st.none(), st.integers(-10 * MS, 10**9)),
)
def test_decisions(
    config: PolicyConfig,
    flow: Flow,
    critical: bool,
    lost: bool,
    rho: float,
    slack: int | None,
) -> None:
    rules = rules_of(config)
    last = initial(config)._replace(critical=critical, infeasible=lost and flow.deadline_ns != NO_DEADLINE)
    decision, next_ns = rules.evaluate(flow, last, NOW, rho, slack)
    assert decision == evaluate(config, flow, last, NOW, rho, slack)
    if flow.deadline_ns == NO_DEADLINE or decision.infeasible:
        assert next_ns is None
        return
    assert next_ns is not None
    reasons = rules.reasons(flow, decision, NOW, rho)
    assert reasons.laxity_ns == laxity_ns(config, flow, NOW)
    assert reasons.due_ns == due_ns(config, flow, decision)
    if config.variant is Variant.MFS:
        assert reasons.guard_ns == guard_ns(config, flow)
        assert reasons.level_ns is None
        if not last.critical:
            assert decision.critical == admits_to_class_0(config, flow, NOW, slack)
    else:
        rate = effective_rate_bytes_per_s(flow.rate_bytes_per_s, rho, config.rho_max)
        assert reasons.effective_rate_bytes_per_s == rate
        if decision.level > 1:
            threshold = thresholds(config)[decision.level - 2]
            lead = crossing_ns(flow.remaining_bytes, flow.deadline_ns, rate, threshold)
            assert reasons.level_ns == max(lead, flow.deadline_ns - (2**60 - 1))
    if flow.compute_end_ns <= NOW and not flow.pruned:
        following = next_evaluation_ns(config, flow, decision, NOW, rho)
        assert following is not None and next_ns <= following, "the paper's is half way, since the load may rise"
        if config.variant is Variant.MFS:
            assert next_ns == following
