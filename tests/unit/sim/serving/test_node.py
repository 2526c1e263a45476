"""Engines of several models that share a node's memory: times by hand, and every call is served."""

from __future__ import annotations

import msgspec
import pytest

from bench.sim.serving import Apart, Call, NodeConfig, Outcome, Program, ReplicaConfig, model_name, row, simulate
from bench.sim.serving.cost import Linear
from mfsd.policy.serve import Policy
from mfsd.policy.workflow import TierSpeeds
from tests.unit.sim.serving.workloads import calls, fixed, programs

STEP = (0.1, 0.0, 0.001, 0.0, 0.0, 0.0)
"""Seconds of a step: 0.1, and 0.001 for each token of a prompt."""
PLAIN = ReplicaConfig(serve=fixed(Policy.FCFS), cost=Linear(small=STEP, large=STEP), kv_tokens=None)
NODE = NodeConfig(
    running=1,
    weights_bytes=6_000,
    speeds=TierSpeeds(host_bytes_per_s=6_000, disk_bytes_per_s=2_000, start_s=6.0),
)
"""A start takes 10 s: 6, 1 to the GPU and 3 from disk."""


def call(model: int, arrival_s: float, prompt: int = 100, output: int = 1, **more: object) -> Call:
    return Call(
        model=model_name(model),
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        **more,  # type: ignore[arg-type]
    )


def served(work: list[Call], models: int, node: NodeConfig = NODE, config: ReplicaConfig = PLAIN) -> Outcome:
    outcome = simulate(config, work, replicas=models, node=node)
    assert outcome.unfinished == 0
    return outcome


def firsts(outcome: Outcome) -> list[float | None]:
    return [r.first_token_s for r in outcome.records]


def test_two_models_take_turns_by_hand() -> None:
    """The second one begins to be loaded when the first one's call has ended, at 10.2 s, and the first one again."""
    outcome = served([call(0, 0.0), call(1, 1.0, 50), call(0, 12.0)], 2)
    assert firsts(outcome) == pytest.approx([10.2, 20.35, 30.55])
    assert [r.waited_s for r in outcome.records] == pytest.approx([10.0, 19.2, 18.35])
    assert [r.replica for r in outcome.records] == [0, 1, 0]
    assert [(t.loads, t.loading_s) for t in outcome.replicas] == [(2, pytest.approx(20)), (1, pytest.approx(10))]
    assert row(outcome)["models"]["loads"] == 3 and row(outcome)["models"]["loading_s"] == pytest.approx(30)


def test_engines_that_sleep_take_turns_by_hand() -> None:
    """A second to fall asleep, 1.5 to wake. The second one waits for the first one to sleep, from 10.2 to 11.2 s, and
    starts. At 21.35 s it has no calls and the first one is wanted, which wakes when the second one sleeps: at 22.35 s.
    """
    speeds = msgspec.structs.replace(NODE.speeds, wake_s=0.5)
    node = msgspec.structs.replace(NODE, speeds=speeds, host_bytes=12_000)
    work = [call(0, 0.0), call(1, 1.0, 50), call(0, 12.0), call(1, 40.0, 50)]
    outcome = served(work, 2, node)
    assert firsts(outcome) == pytest.approx([10.2, 21.35, 24.05, 42.65])
    assert [(t.loads, t.wakes) for t in outcome.replicas] == [(1, 1), (1, 1)]
    assert row(outcome)["models"]["loading_s"] == pytest.approx(20 + 3)


def test_host_memory_for_one_is_the_first_sleepers() -> None:
    """It keeps it as it wakes, so that the other one is stopped."""
    work = [call(n % 2, 30.0 * n, 50) for n in range(6)]
    outcome = served(work, 2, msgspec.structs.replace(NODE, host_bytes=6_000))
    assert [(t.loads, t.wakes) for t in outcome.replicas] == [(1, 2), (3, 0)]


def test_the_one_used_the_longest_ago_gives_way() -> None:
    """Two fit. The third one takes the place of the first, though that was loaded last."""
    two = msgspec.structs.replace(NODE, running=2)
    outcome = served([call(1, 0.0), call(0, 5.0), call(1, 20.0), call(2, 30.0), call(1, 45.0), call(0, 50.0)], 3, two)
    assert [r.waited_s for r in outcome.records] == pytest.approx([10, 10, 0, 10, 0, 10])
    assert [t.loads for t in outcome.replicas] == [2, 1, 1]


def test_it_was_used_when_its_last_call_ended() -> None:
    """The first model's call began before the second one's and ended after it."""
    two = msgspec.structs.replace(NODE, running=2)
    outcome = served([call(0, 0.0, output=300), call(1, 0.0), call(1, 15.0), call(2, 45.0), call(0, 60.0)], 3, two)
    assert [t.loads for t in outcome.replicas] == [1, 1, 1]


def test_one_is_given_calls_again_when_another_gave_way() -> None:
    """At 17 s the second model is held for the third, since it was used before the first; that has no calls from about
    22.3 s on and gives way. What waited for the second one since 18 s is served from the next look on, at 23 s."""
    two = msgspec.structs.replace(NODE, running=2)
    work = [call(0, 0.0), call(1, 0.0, output=400), call(0, 11.0, output=112), call(2, 12.0), call(1, 18.0)]
    outcome = served(work, 3, two)
    assert [t.loads for t in outcome.replicas] == [1, 1, 1]
    assert outcome.records[4].waited_s == pytest.approx(5.0)
    assert outcome.records[3].waited_s == pytest.approx(20.3, abs=0.3)


def test_what_waited_for_a_held_engine_is_served_though_nothing_more_comes() -> None:
    busy = [call(0, float(n), output=30) for n in range(23)]
    outcome = served([*busy, call(1, 15.5)], 2)
    assert outcome.records[22].waited_s > 20.0 and [t.loads for t in outcome.replicas] == [2, 1]


def test_one_that_is_always_busy_is_held_for_another() -> None:
    """Calls of 3 s come each second for the first model. The second one, wanted at 15 s, is waited for by those that
    come from 20 s on; those before end by 23.3 s, and it serves 10 s later."""
    busy = [call(0, float(n), output=30) for n in range(40)]
    outcome = served([*busy, call(1, 15.5)], 2)
    other = outcome.records[-1]
    assert other.begin_s is not None and 32.0 < other.begin_s < 35.0
    held = [r for r in outcome.records[:-1] if 21.5 < r.arrival_s < other.begin_s]
    assert held and all(r.begin_s > other.begin_s for r in held)  # type: ignore[operator]
    assert [t.loads for t in outcome.replicas] == [2, 1]


def test_the_busiest_does_not_give_way_since_it_alone_is_there() -> None:
    """The third model takes the memory of the second one, which is wanted again while that starts, from 20.2 to 30.2 s.
    It waits for it, though the first one could be held from 26.2 s on."""
    two = msgspec.structs.replace(NODE, running=2)
    busy = [call(0, float(n), output=30) for n in range(60)]
    outcome = served([*busy, call(1, 0.5), call(2, 20.2), call(1, 21.5)], 3, two)
    assert [t.loads for t in outcome.replicas] == [1, 2, 1]
    assert not any(r.waited_s for r in outcome.records[11:60])


def test_a_stopped_engine_has_no_cache() -> None:
    work = [call(n, at, shared="s", shared_tokens=90) for n, at in ((0, 0.0), (0, 20.0), (1, 40.0), (0, 60.0))]
    config = msgspec.structs.replace(PLAIN, kv_tokens=1000)
    outcome = served(work, 2, config=config)
    assert [r.cached_tokens for r in outcome.records] == [0, 90, 0, 0]


@pytest.mark.parametrize("running", [1, 2, 3])
def test_every_call_is_served_once_and_runs_repeat(running: int) -> None:
    def asking(n: int, one: Call | Program) -> Call | Program:
        name = model_name(n % 3)
        if isinstance(one, Call):
            return msgspec.structs.replace(one, model=name)
        return msgspec.structs.replace(one, calls=tuple(msgspec.structs.replace(c, model=name) for c in one.calls))

    mixed: list[Call | Program] = [*calls(60, 2.0), *programs(12, 0.5)]
    work = [asking(n, one) for n, one in enumerate(mixed)]
    node = msgspec.structs.replace(NODE, running=running)
    one, two = (simulate(ReplicaConfig(kv_tokens=20_000), work, replicas=3, node=node) for _ in range(2))
    assert one.records == two.records and one.unfinished == 0
    assert all(r.produced == r.output_tokens for r in one.records)
    assert sum(t.decode_tokens for t in one.replicas) == sum(r.output_tokens - 1 for r in one.records)
    loads = [t.loads for t in one.replicas]
    assert loads == [1, 1, 1] if running == 3 else sum(loads) > 3


def test_what_cannot_be_served_is_refused() -> None:
    with pytest.raises(ValueError, match="model is '': use one of model 0, model 1"):
        simulate(PLAIN, [Call(prompt_tokens=1, output_tokens=1)], replicas=2, node=NODE)
    with pytest.raises(ValueError, match="node"):
        simulate(PLAIN, [call(0, 0.0)], replicas=2, node=NODE, apart=Apart(prefill=1))
    with pytest.raises(ValueError, match="running is 0: use 1 or more"):
        NodeConfig(running=0)
    with pytest.raises(ValueError, match="host_bytes is -1: use 0 or more"):
        NodeConfig(running=1, host_bytes=-1)
