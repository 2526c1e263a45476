"""Rules of workflows (Maestro): memory margin, residency, degradation, fitness, remaining time, preemption."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfsd.policy.types import Stage
from mfsd.policy.workflow import (
    Action,
    Candidate,
    Engine,
    EngineState,
    Fitness,
    MemoryMargin,
    ModelProfile,
    RemainingTimes,
    Residence,
    Residency,
    StageKey,
    TierSpeeds,
    WorkflowConfig,
    activation_s,
    effective_remaining_s,
    exec_s,
    intent_bin,
    kv_bytes,
    plan_degradation,
    preempts,
    weight_flows,
)
from mfsd.policy.workflow.fitness import RobustRange

CONFIG = WorkflowConfig()


def model(name: str, weights: int = 100, context: int = 10) -> ModelProfile:
    return ModelProfile(
        name=name, weights_bytes=weights, context_bytes=context, kv_bytes_per_token=2, prefill_fixed_s=0.01,
        prefill_s_per_token=0.001, decode_s_per_token=0.02,
    )  # fmt: skip


def models(*weights: int) -> dict[str, ModelProfile]:
    return {f"m{i}": model(f"m{i}", w) for i, w in enumerate(weights)}


def engines_of(count: int, host: int, gpu: int, sleepless: tuple[str, ...] = ()) -> Residency:
    """A node of live engines: weights of 100, contexts of 10 and pools of 40."""
    profiles = {f"m{i}": msgspec.structs.replace(model(f"m{i}"), pool_bytes=40) for i in range(count)}
    return Residency(profiles, gpu, host, 1000, on_disk=profiles, processes=True, sleepless=sleepless)


# Configuration and costs


@pytest.mark.parametrize(("field", "value"), [("preempt_gain", 1.5), ("margin_quantile", math.nan), ("aging_s", -1)])
def test_a_number_outside_its_range_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} is .*: use "):
        WorkflowConfig(**{field: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"margin_min is 2.*use at most margin_max"):
        WorkflowConfig(margin_min=2)


def test_equations_2_and_3() -> None:
    assert exec_s(model("m"), 100, 50) == pytest.approx(0.01 + 0.1 + 1.0)
    assert kv_bytes(model("m"), 100, 50) == 300
    with pytest.raises(ValueError, match="weights_bytes is 0"):
        model("m", weights=0)


# Memory margin


def test_the_margin_is_the_most_until_enough_ends_were_seen_and_then_the_quantile() -> None:
    margin = MemoryMargin(CONFIG)
    assert margin.rho == CONFIG.margin_max and margin.need_bytes(100) == 200
    for _ in range(18):
        margin.ended(100, 90)
    assert margin.rho == CONFIG.margin_max, "18 ends say nothing about one in twenty"
    margin.ended(100, 90)
    assert margin.rho == CONFIG.margin_min and margin.need_bytes(100) == 105


@given(st.lists(st.tuples(st.floats(1, 1e6), st.floats(0, 1e7)), min_size=40, max_size=900))
@settings(max_examples=30, deadline=None)
def test_the_margin_covers_its_share_of_the_window(ends: list[tuple[float, float]]) -> None:
    margin = MemoryMargin(WorkflowConfig(margin_max=10))
    for predicted, needed in ends:
        margin.ended(predicted, needed)
    rho, window = margin.rho, ends[-CONFIG.margin_window :]
    within = sum(max(0.0, needed / predicted - 1) <= rho for predicted, needed in window)
    assert CONFIG.margin_min <= rho <= 10
    assert rho == 10 or within >= math.floor(CONFIG.margin_quantile * len(window))


def test_a_prediction_that_is_no_number_teaches_nothing() -> None:
    margin = MemoryMargin(WorkflowConfig(margin_window=20))
    for bad in (0.0, -1.0, math.nan, math.inf):
        margin.ended(bad, 5.0)
    assert margin.rho == CONFIG.margin_max


# Residency


def test_activation_takes_longer_the_further_away_the_model_is() -> None:
    speeds = TierSpeeds(host_bytes_per_s=100, disk_bytes_per_s=50, remote_bytes_per_s=10, wake_s=0.5, start_s=3.0)
    took = {state: activation_s(model("m"), state, speeds) for state in Residence}
    assert took == {
        Residence.RUNNING: 0.0, Residence.SLEEPING: 1.5, Residence.CPU: 4.0, Residence.DISK: 6.0,
        Residence.REMOTE: 14.0,
    }  # fmt: skip


def test_weights_cascade_from_gpu_to_host_to_disk_and_out() -> None:
    node = Residency(models(100, 100, 100, 100), gpu_bytes=130, host_bytes=100, disk_bytes=100)
    for name in ("m0", "m1", "m2", "m3"):
        assert node.activate(name, 0) is not None
    assert node.states == {
        "m0": Residence.DISK, "m1": Residence.REMOTE, "m2": Residence.SLEEPING, "m3": Residence.RUNNING,
    }  # fmt: skip
    assert (node.gpu_used_bytes, node.host_used_bytes, node.disk_used_bytes) == (120, 100, 100)


def test_the_least_recently_used_gives_way() -> None:
    node = Residency(models(100, 100, 100), gpu_bytes=230, host_bytes=1000, disk_bytes=0)
    node.activate("m0", 0)
    node.activate("m1", 0)
    node.used("m0")
    moves = node.activate("m2", 0)
    assert moves is not None and [(m.model, m.target) for m in moves] == [
        ("m1", Residence.SLEEPING), ("m2", Residence.RUNNING),
    ]  # fmt: skip
    assert node.headroom_bytes(0) == 230 - 100 - 10 - 100 - 10 - 10


def test_busy_models_stay_and_a_refusal_changes_nothing() -> None:
    node = Residency(models(100, 100), gpu_bytes=150, host_bytes=1000, disk_bytes=0)
    node.activate("m0", 0)
    before = node.states
    assert node.activate("m1", 0, busy={"m0"}) is None and node.states == before
    assert node.activate("m0", 50) is None, "its own weights leave 40"
    assert node.activate("m0", 40) == []


def test_contexts_go_once_no_running_model_is_left_to_sleep() -> None:
    node = Residency(models(100, 100), gpu_bytes=215, host_bytes=1000, disk_bytes=0)
    node.activate("m0", 0)
    assert node.activate("m1", 0) is not None and node.state("m0") is Residence.SLEEPING
    moves = node.activate("m1", 105)
    assert moves is not None and moves[0].target is Residence.CPU and moves[0].size_bytes == 0


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(0, 200), st.integers(0, 150), st.integers(0, 150),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 80), st.integers(0, 63)), max_size=30),
)  # fmt: skip
@settings(max_examples=120, deadline=None)
@pytest.mark.parametrize("processes", [False, True])
def test_no_tier_is_ever_overfull(
    processes: bool, weights: list[int], gpu: int, host: int, disk: int, calls: list[tuple[int, int, int]]
) -> None:
    node = Residency(models(*weights), gpu, host, disk, processes=processes)
    names = list(node.states)
    for index, kv, busy_bits in calls:
        name = names[index % len(names)]
        busy = {n for i, n in enumerate(names) if busy_bits >> i & 1}
        before = node.states
        moves = node.activate(name, kv, busy)
        if moves is None:
            assert node.states == before
            continue
        assert node.gpu_used_bytes + kv <= gpu
        assert node.host_used_bytes <= host and node.disk_used_bytes <= disk
        assert not (processes and Residence.CPU in node.states.values())
        assert node.state(name) is Residence.RUNNING and list(node.states)[-1] == name
        after = node.states
        assert all(after[n] is s for n, s in before.items() if n in busy and n != name and s is Residence.RUNNING)


def test_a_live_engine_gives_up_its_pool_to_sleep_and_keeps_its_place_in_host_memory() -> None:
    node = engines_of(2, host=100, gpu=160)
    node.activate("m0", 0)
    assert node.gpu_used_bytes == 150 and node.lacks_bytes("m1") == 140
    assert node.activate("m1", 0) == [("m0", Residence.RUNNING, Residence.SLEEPING, 100),
                                      ("m1", Residence.DISK, Residence.RUNNING, 100)]  # fmt: skip
    assert (node.gpu_used_bytes, node.host_used_bytes) == (160, 100)
    assert node.lacks_bytes("m0") == 140, "its own context is there"
    assert node.activate("m0", 0) is not None, "the other one finds no host memory, since this one pins it"
    assert node.states == {"m1": Residence.DISK, "m0": Residence.RUNNING} and node.host_used_bytes == 100
    node.activate("m1", 0)
    assert node.states == {"m0": Residence.SLEEPING, "m1": Residence.RUNNING}
    assert [move.target for move in node.stop("m0")] == [Residence.DISK] and node.host_used_bytes == 0
    assert node.stop("m0") == []


def test_of_live_engines_the_one_that_slept_the_longest_ends_for_the_next_one() -> None:
    node = engines_of(3, host=100, gpu=170)
    for name in ("m0", "m1"):
        node.activate(name, 0)
    moves = node.activate("m2", 0)
    assert moves is not None and [(move.model, move.target) for move in moves] == [
        ("m0", Residence.DISK), ("m1", Residence.SLEEPING), ("m2", Residence.RUNNING),
    ]  # fmt: skip


def test_a_live_engine_ends_where_its_context_is_needed_or_it_cannot_sleep() -> None:
    tight = engines_of(2, host=100, gpu=155)
    tight.activate("m0", 0)
    tight.activate("m1", 0)
    assert tight.states == {"m0": Residence.DISK, "m1": Residence.RUNNING} and tight.host_used_bytes == 0
    node = engines_of(3, host=100, gpu=170, sleepless=("m1",))
    for name in ("m0", "m1", "m2"):
        node.activate(name, 0)
    assert node.states == {"m0": Residence.SLEEPING, "m1": Residence.DISK, "m2": Residence.RUNNING}
    assert [move.target for move in node.sleep("m2")] == [Residence.DISK, Residence.SLEEPING]


def test_what_cannot_fit_in_host_memory_displaces_nothing_there() -> None:
    node = Residency(models(50, 200, 50), gpu_bytes=230, host_bytes=100, disk_bytes=1000)
    for name in ("m0", "m1", "m2"):
        node.activate(name, 0)
    assert node.states == {"m0": Residence.SLEEPING, "m1": Residence.DISK, "m2": Residence.RUNNING}


def test_loads_are_background_flows_due_when_the_stage_wants_to_start() -> None:
    node = Residency(models(100, 100), gpu_bytes=130, host_bytes=0, disk_bytes=100, on_disk=["m0"])
    node.activate("m0", 0)
    flows = weight_flows(node.activate("m1", 0) or (), due_s=7.0)
    assert [(f.model, f.size_bytes, f.deadline_s, f.over_network) for f in flows] == [("m1", 100, 7.0, True)]
    assert flows[0].stage is Stage.BACKGROUND
    with pytest.raises(ValueError, match="on_disk has m1"):
        Residency(models(100, 100), 1, 0, 100, on_disk=["m0", "m1"])


# Degradation


def engine(name: str, state: EngineState, **given: float) -> Engine:
    sizes = {"weights_bytes": 100, "context_bytes": 10, "kv_bytes": 50}
    times = {"reload_s": 1.0, "restart_s": 20.0, "swap_s": 2.0, "recompute_s": 5.0}
    return Engine(model=name, state=state, **{**sizes, **times, **given})  # type: ignore[arg-type]


def test_levels_are_taken_in_order_and_only_as_far_as_needed() -> None:
    engines = [
        engine("active", EngineState.ACTIVE), engine("asleep", EngineState.SLEEPING), engine("idle", EngineState.IDLE),
    ]  # fmt: skip
    first = plan_degradation(60, engines, 1000, 6.0)
    assert first is not None and [(s.model, s.action) for s in first.steps] == [("idle", Action.SLEEP)]
    assert not first.interrupts and first.cost_s == 1.0
    everything = plan_degradation(130, engines, 1000, 6.0)
    assert everything is not None and [s.action for s in everything.steps] == [Action.SLEEP, Action.EVICT, Action.SWAP]
    assert everything.interrupts and everything.cost_s == 1.0 + 20.0 + 2.0 + 6.0
    assert plan_degradation(161, engines, 1000, 6.0) is None


def test_without_host_memory_engines_stop_and_stages_are_aborted() -> None:
    plan = plan_degradation(150, [engine("a", EngineState.ACTIVE), engine("i", EngineState.IDLE)], 0, 6.0)
    assert plan is not None and [s.action for s in plan.steps] == [Action.STOP, Action.ABORT]
    assert plan.freed_bytes == 160 and plan.cost_s == 21.0 + 5.0 + 6.0
    going = plan_degradation(1, [engine("g", EngineState.FALLING_ASLEEP)], 1000, 6.0)
    assert going is not None and going.steps[0].action is Action.STOP


@given(
    st.lists(st.tuples(st.sampled_from(EngineState), st.integers(0, 99), st.integers(0, 99)), max_size=8),
    st.integers(0, 400), st.integers(0, 200),
)  # fmt: skip
def test_a_plan_frees_enough_and_its_last_step_is_needed(
    given_engines: list[tuple[EngineState, int, int]], required: int, host: int
) -> None:
    engines = [
        engine(f"e{i}", s, weights_bytes=w, context_bytes=1, kv_bytes=k) for i, (s, w, k) in enumerate(given_engines)
    ]
    plan = plan_degradation(required, engines, host, 6.0)
    if plan is None:
        most = sum(
            e.kv_bytes
            if e.state is EngineState.ACTIVE
            else 1
            if e.state is EngineState.SLEEPING
            else e.weights_bytes + 1
            for e in engines
        )
        slept = sum(e.state is EngineState.IDLE for e in engines)
        assert most - slept < required, "idle ones that sleep keep their context"
        return
    assert plan.freed_bytes >= required
    assert not plan.steps or plan.freed_bytes - plan.steps[-1].freed_bytes < required
    order = [next(e.state for e in engines if e.model == s.model) for s in plan.steps]
    assert order == sorted(order)


# Fitness


def candidate(node: int, **given: float) -> Candidate:
    return Candidate(node, *({"rtt": 1.0, "head": 1000, "queue": 0.0, "act": 0.0, "deg": 0.0, **given}).values())  # type: ignore[arg-type]


def test_the_ready_node_wins_over_the_near_one_that_must_load() -> None:
    choice = Fitness(CONFIG).choose([candidate(0, act=30_000.0), candidate(1, rtt=40.0)], 100, interactive=False)
    assert choice is not None and choice.node == 1


def test_the_tighter_fit_wins_among_equally_ready_ones() -> None:
    choice = Fitness(CONFIG).choose([candidate(0, head=5000), candidate(1, head=200)], 100, interactive=False)
    assert choice is not None and choice.node == 1


def test_interactive_stages_weigh_the_network_more() -> None:
    config = WorkflowConfig(network_share=0.1, network_share_interactive=0.9)
    nodes = [candidate(0, head=5000), candidate(1, head=200, rtt=50.0)]
    chosen = {who: Fitness(config).choose(nodes, 100, interactive=who) for who in (False, True)}
    assert [choice and choice.node for choice in (chosen[False], chosen[True])] == [1, 0]


def test_what_cannot_hold_the_stage_or_is_not_allowed_is_no_candidate() -> None:
    assert Fitness(CONFIG).choose([candidate(0, head=99), candidate(1)._replace(allowed=False)], 100, True) is None


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=600), st.floats(-1e10, 1e10), st.floats(-1e10, 1e10))
def test_normalised_is_between_0_and_1_and_rises(values: list[float], a: float, b: float) -> None:
    bounds = RobustRange(256, 0.05, 0.95)
    for value in values:
        bounds.add(value)
    low, high = bounds.normalised(min(a, b)), bounds.normalised(max(a, b))
    assert 0 <= low <= high <= 1


# Remaining time and preemption

KEY = StageKey("travel", "planner", "plan", 0, 2)


def test_the_median_of_the_finest_key_that_was_seen_often_enough() -> None:
    times = RemainingTimes(CONFIG)
    assert times.remaining_s(KEY, 3.0) == 3.0, "nothing is known of what follows"
    for seconds in (1.0, 2.0, 100.0, 3.0, 2.5):
        times.ended(KEY._replace(workflow="news", role="x"), seconds)
    assert times.future_s(KEY) == 2.5, "of all workflows"
    for seconds in (7.0, 8.0, 9.0, 10.0, 11.0):
        times.ended(KEY._replace(intent=0), seconds)
    assert times.future_s(KEY) == 9.0, "of the same place, whatever the intent"
    for _ in range(5):
        times.ended(KEY, 20.0)
    assert times.remaining_s(KEY, 3.0) == 23.0
    times.ended(KEY, math.nan)
    assert times.future_s(KEY) == 20.0


def test_only_the_window_counts() -> None:
    times = RemainingTimes(WorkflowConfig(profile_window=5))
    for seconds in (100.0,) * 5 + (1.0,) * 5:
        times.ended(KEY, seconds)
    assert times.future_s(KEY) == 1.0


def test_intent_bins_share_the_unit_interval() -> None:
    assert [intent_bin(p, 4) for p in (-0.1, 0.0, 0.24, 0.25, 0.99, 1.0)] == [0, 0, 0, 1, 3, 3]


def test_a_job_gives_way_only_for_a_real_gain_and_not_again_at_once() -> None:
    assert preempts(CONFIG, 100.0, 79.0, 60.0)
    assert not preempts(CONFIG, 100.0, 81.0, 60.0)
    assert not preempts(CONFIG, 100.0, 1.0, 4.9)
    assert not preempts(CONFIG, 100.0, 1.0, 60.0, interactive=True)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_waiting_only_helps_and_the_order_of_those_that_wait_stays(
    remaining: float, waited: float, other: float, more: float
) -> None:
    now, later = (effective_remaining_s(CONFIG, remaining, waited + t) for t in (0.0, more))
    assert later <= now <= remaining
    assert effective_remaining_s(CONFIG, 3600.0, 3600.0 * 61) < 0.0, "a long wait beats any new job"
    behind = effective_remaining_s(CONFIG, other, 0.0) - now
    assert effective_remaining_s(CONFIG, other, more) - later == pytest.approx(behind, abs=1e-6)
    assert effective_remaining_s(WorkflowConfig(aging_s=0), remaining, waited) == remaining
