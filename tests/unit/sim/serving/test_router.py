"""Which replica gets a call."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.sim.serving import (
    Call,
    Load,
    Program,
    ReplicaConfig,
    by_tier,
    least_loaded,
    locality,
    round_robin,
    simulate,
    sticky,
)
from tests.unit.sim.serving.workloads import calls, programs

LOADS = [Load(3, 100, 9), Load(1, 900, 5), Load(2, 50, 7)]
NONE: frozenset[int] = frozenset()


def call(prompt: int = 100, tier: str = "") -> Call:
    return Call(prompt_tokens=prompt, output_tokens=1, tier=tier)


def test_routers() -> None:
    turn, silo = round_robin(), by_tier({"a": [0], "b": [2, 1]})
    assert [turn(call(), -1, NONE, LOADS) for _ in range(4)] == [0, 1, 2, 0]
    assert [silo(call(tier=t), -1, NONE, LOADS) for t in "abbab"] == [0, 2, 1, 0, 2]
    assert least_loaded()(call(), -1, NONE, LOADS) == 1
    assert least_loaded("tokens")(call(), -1, NONE, LOADS) == 2
    home = frozenset({0, 2})
    assert locality()(call(2047), 5, home, LOADS) == 1 and locality()(call(2048), 5, home, LOADS) == 2
    assert sticky()(call(1), 5, frozenset({0}), LOADS) == 0 and sticky()(call(1), 5, NONE, LOADS) == 1


@pytest.mark.parametrize("router", [round_robin, least_loaded, sticky, locality])
def test_replicas_serve_all_that_is_routed(router) -> None:
    work: list[Call | Program] = [*calls(40, 10.0), *programs(10, 2.0)]
    outcome = simulate(ReplicaConfig(), work, replicas=3, router=router())
    assert outcome.unfinished == 0
    served = Counter(r.replica for r in outcome.records)
    assert set(served) == {0, 1, 2}
    assert sum(t.decode_tokens for t in outcome.replicas) == sum(r.output_tokens - 1 for r in outcome.records)
    if router is sticky:
        homes = {(r.program, r.replica) for r in outcome.records if r.program >= 0}
        assert len(homes) == 10


def test_more_replicas_are_sooner_done() -> None:
    work = calls(60, 20.0)
    one, three = (simulate(ReplicaConfig(), work, replicas=n, router=least_loaded()) for n in (1, 3))
    assert three.end_s < one.end_s
