"""The planner that keeps the queue between steps gives plan_step's plans to the bit."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.sim.serving import Belief, Call, Eviction, Expect, Program, ReplicaConfig, Snapshot, simulate
from bench.sim.serving.kept import KEPT, can_keep
from mfsd.policy.serve import Policy, Preemption, Relegation, ServeConfig, TokenDeadline
from tests.unit.sim.serving.workloads import calls, programs

serves = st.builds(
    ServeConfig,
    policy=st.sampled_from(sorted(KEPT)),
    relegation=st.sampled_from([Relegation.NONE, Relegation.LOST]),
    preemption=st.sampled_from(Preemption),
    token_deadline=st.sampled_from(TokenDeadline),
    step_tokens=st.sampled_from([8, 256, 2560]),
    chunk_min=st.sampled_from([1, 128]),
    requests_max=st.sampled_from([4, 16, 1024]),
    overdue_every=st.sampled_from([1, 10]),
    overdue_budgets=st.sampled_from([0.0, 1.0, 4.0]),
    cut_prompts=st.booleans(),
    skips_max=st.sampled_from([0, 64]),
    alpha_low_s=st.sampled_from([0.0, 0.001]),
)
configs = st.builds(
    ReplicaConfig,
    serve=serves,
    kv_tokens=st.sampled_from([None, 20_000, 60_000]),
    eviction=st.sampled_from(Eviction),
    belief=st.builds(Belief, profiled=st.booleans(), bias=st.sampled_from([0.6, 1.0]), learns=st.booleans()),
    noise=st.sampled_from([0.0, 0.2]),
)


@given(configs, st.integers(0, 1 << 20), st.sampled_from([1.0, 5.0, 20.0]))
@settings(deadline=None, max_examples=10)
def test_kept_plans_are_the_asked_ones(config: ReplicaConfig, seed: int, qps: float) -> None:
    both_ways(config, [*calls(40, qps, seed), *programs(6, qps / 4, seed)], seed)


@given(configs, st.integers(0, 1 << 20))
@settings(deadline=None, max_examples=10)
def test_kept_plans_are_the_asked_ones_where_memory_is_short(config: ReplicaConfig, seed: int) -> None:
    """And where several begin in a step."""
    work = calls(60, 60.0, seed, prompt=150)
    both_ways(msgspec.structs.replace(config, kv_tokens=2_500), work, seed)


@given(configs, st.integers(0, 1 << 20))
@settings(deadline=None, max_examples=10)
def test_kept_plans_are_the_asked_ones_where_memory_is_kept_for_some(config: ReplicaConfig, seed: int) -> None:
    """Some prompts need nearly all of the memory, and others pass them until they have waited for too long."""
    long = [msgspec.structs.replace(call, prompt_tokens=2_100) for call in calls(4, 2.0, seed + 1)]
    serve = msgspec.structs.replace(config.serve, overdue_budgets=0.1)
    both_ways(msgspec.structs.replace(config, kv_tokens=2_500, serve=serve), [*calls(80, 40.0, seed, 150), *long], seed)


@given(configs, st.integers(0, 1 << 20), st.sampled_from([Eviction.RECOMPUTE, Eviction.PREFIX, Eviction.SWAP]))
@settings(deadline=None, max_examples=10)
def test_kept_plans_are_the_asked_ones_where_decodes_give_way(config: ReplicaConfig, seed: int, how: Eviction) -> None:
    """Outputs are longer than expected, and a deadline that had passed is renewed."""
    serve = msgspec.structs.replace(config.serve, overdue_every=3, requests_max=1024, step_tokens=2560)
    short = msgspec.structs.replace(config, kv_tokens=5_000, eviction=how, expect=Expect.NONE, serve=serve)
    both_ways(short, calls(60, 30.0, seed, prompt=150, output=300), seed)


def test_a_call_whose_deadline_was_renewed_is_overdue_by_that() -> None:
    """It was overdue as a prompt, and gave way while it decoded."""
    serve = ServeConfig(
        policy=Policy.EDF, relegation=Relegation.NONE, overdue_every=1, overdue_budgets=0.05, step_tokens=2560
    )
    config = ReplicaConfig(serve=serve, kv_tokens=5_000, expect=Expect.NONE)
    both_ways(config, calls(60, 30.0, 0, prompt=150, output=300), 0)


def both_ways(config: ReplicaConfig, work: Sequence[Call | Program], seed: int) -> None:
    kept = simulate(config, work, seed)
    asked = simulate(msgspec.structs.replace(config, ask_always=True), work, seed)
    assert kept.records == asked.records
    for a, b in zip(kept.replicas, asked.replicas, strict=True):
        a.plan_us = b.plan_us = []
        assert a == b


@pytest.mark.parametrize("policy", sorted(KEPT))
def test_it_is_used(policy: Policy) -> None:
    """And where nothing is asked, nothing is compared above."""
    relegation = Relegation.NONE if policy is Policy.FCFS else Relegation.LOST
    assert can_keep(ReplicaConfig(), ServeConfig(policy=policy, relegation=relegation))
    assert not can_keep(ReplicaConfig(bound_outputs=True), ServeConfig(policy=policy))


def test_another_order_takes_over_between_two_steps() -> None:
    work = calls(120, 8.0)

    def control(now_s: float, replicas: Sequence[Snapshot]) -> dict[int, ServeConfig]:
        return {0: ServeConfig(policy=Policy.FIT if replicas[0].policy is Policy.HYBRID else Policy.HYBRID)}

    config = ReplicaConfig(serve=ServeConfig(policy=Policy.HYBRID))
    outcomes = [
        simulate(c, work, control=control, control_every_s=2.0)
        for c in (config, msgspec.structs.replace(config, ask_always=True))
    ]
    assert outcomes[0].records == outcomes[1].records and outcomes[0].unfinished == 0
    assert outcomes[0].replicas[0].policies[:3] == ("hybrid", "fit", "hybrid")
