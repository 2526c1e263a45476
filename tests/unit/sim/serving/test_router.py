"""Which replica gets a call."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.sim.serving import Call, Program, ReplicaConfig, Snapshot, by_tier, chain, online, round_robin, simulate
from mfsd.policy.route import RouteConfig, Router
from mfsd.policy.serve import Policy, ProgramTable, ServeConfig
from tests.unit.sim.serving.workloads import calls, programs

ONLINE = (Router.LEAST_LOADED, Router.STICKY, Router.PREFIX, Router.LOCALITY)


def test_in_turn_and_by_tier() -> None:
    def at(router, tier: str = "") -> int:
        call = Call(prompt_tokens=100, output_tokens=1, tier=tier)
        return router(call, "", lambda: pytest.fail("no view is needed"), ProgramTable())

    turn, silo = round_robin(3), by_tier({"a": [0], "b": [2, 1]})
    assert [at(turn) for _ in range(4)] == [0, 1, 2, 0]
    assert [at(silo, t) for t in "abbab"] == [0, 2, 1, 0, 2]


@pytest.mark.parametrize("router", [None, *ONLINE])
def test_replicas_serve_all_that_is_routed(router: Router | None) -> None:
    work: list[Call | Program] = [*calls(40, 10.0), *programs(10, 2.0)]
    outcome = simulate(ReplicaConfig(), work, replicas=3, router=online(router, 3) if router else None)
    assert outcome.unfinished == 0
    assert {r.replica for r in outcome.records} == {0, 1, 2}
    assert sum(t.decode_tokens for t in outcome.replicas) == sum(r.output_tokens - 1 for r in outcome.records)
    if router is Router.STICKY:
        homes = {(r.program, r.replica) for r in outcome.records if r.program >= 0}
        assert len(homes) == 10


def turns(arrival_s: float, prompts: tuple[int, ...]) -> Program:
    """Each turn extends what the one before had."""
    made = [
        Call(prompt_tokens=prompt, output_tokens=1, prefix_tokens=prompts[n - 1] if n else 0, gap_s=1.0 * n)
        for n, prompt in enumerate(prompts)
    ]
    return chain(arrival_s, tuple(made))


@pytest.mark.parametrize(
    ("router", "second"), [(Router.LEAST_LOADED, 1), (Router.LOCALITY, 0), (Router.STICKY, 0), (Router.PREFIX, 0)]
)
def test_a_long_turn_returns_to_its_program_and_a_short_one_need_not(router: Router, second: int) -> None:
    """Replica 0 has a decode that lasts when the second turn arrives."""
    busy = Call(prompt_tokens=10, output_tokens=400, arrival_s=0.5)
    work: list[Call | Program] = [turns(0.0, (3000, 3100)), busy]

    def served(config: RouteConfig | None = None) -> list[int]:
        outcome = simulate(ReplicaConfig(), work, replicas=2, router=online(router, 2, config))
        return [r.replica for r in outcome.records]

    assert served() == [0, second, 0]
    if router is Router.LOCALITY:
        assert served(RouteConfig(locality_tokens=4000)) == [0, 1, 0]


def test_what_is_cached_is_seen_where_it_is() -> None:
    """A shared prefix counts for a program that has never run."""
    first, other = (
        Call(prompt_tokens=2000, output_tokens=1, shared="s", shared_tokens=1900, arrival_s=at) for at in (0.0, 2.0)
    )
    busy = Call(prompt_tokens=10, output_tokens=400, arrival_s=0.0)
    outcome = simulate(ReplicaConfig(), [first, busy, other], replicas=2, router=online(Router.PREFIX, 2))
    assert [r.replica for r in outcome.records] == [0, 1, 0]
    assert outcome.records[2].cached_tokens == 1900


def test_a_controller_sees_all_replicas_at_once_and_rules_each() -> None:
    seen: list[Sequence[Snapshot]] = []

    def control(now_s: float, replicas: Sequence[Snapshot]) -> dict[int, ServeConfig]:
        seen.append(replicas)
        return {1: ServeConfig(policy=Policy.SRPF)} if now_s == 4.0 else {}

    outcome = simulate(ReplicaConfig(), calls(60, 10.0), replicas=3, control=control, control_every_s=2.0)
    assert all([s.replica for s in replicas] == [0, 1, 2] for replicas in seen)
    assert [len(t.policies) for t in outcome.replicas] == [1, 2, 1]
    assert sum(len(s.arrived) for replicas in seen for s in replicas) == 60
    ended = [r.call for replicas in seen for s in replicas for r in s.ended]
    assert len(ended) == len(set(ended)) <= 60


def test_more_replicas_are_sooner_done() -> None:
    work = calls(60, 20.0)
    one, three = (simulate(ReplicaConfig(), work, replicas=n, router=online(Router.LEAST_LOADED, n)) for n in (1, 3))
    assert three.end_s < one.end_s
