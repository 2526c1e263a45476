"""Small runs give what they gave before the step was moved into C, to the bit."""

from __future__ import annotations

import hashlib
import random

import msgspec
import pytest

from bench.sim.serving import Belief, Call, Outcome, Program, ReplicaConfig, chain, online, simulate
from mfsd.policy.route import Router
from mfsd.policy.serve import Policy, Relegation, ServeConfig
from tests.unit.sim.serving.workloads import fixed

RUNS = {
    "fcfs": (fixed(Policy.FCFS), "0cc2275e18b50024"),
    "edf": (fixed(Policy.EDF), "bc69e098e249ef4d"),
    "hybrid": (ServeConfig(policy=Policy.HYBRID, step_tokens=4096, chunk_max=2500), "58703c1190ee8572"),
    "fit": (
        ServeConfig(policy=Policy.FIT, step_tokens=4096, chunk_max=2500, relegation=Relegation.LOST),
        "e834c62e7496db1f",
    ),
}


def work(count: int) -> list[Call]:
    """More than is carried. Drawn without logarithms: they differ between C libraries."""
    chance, at_s, made = random.Random(7), 0.0, []
    for number in range(count):
        at_s += chance.random() * 0.4
        ttft_s, tbt_s, ttlt_s = ((6.0, 0.05, None), (None, None, 20.0), (None, None, 60.0))[number % 3]
        made.append(
            Call(
                prompt_tokens=chance.randint(1, 4000),
                output_tokens=chance.randint(1, 60),
                arrival_s=at_s,
                tier=f"q{number % 3}",
                importance=number % 2,
                ttft_s=ttft_s,
                tbt_s=tbt_s,
                ttlt_s=ttlt_s,
            )
        )
    return made


def digest(outcome: Outcome) -> str:
    outcome.cpu_s = 0.0
    for totals in outcome.replicas:
        totals.plan_us = []
    written = msgspec.to_builtins(outcome)
    for record in written["records"]:  # younger than the digests; where a call is served by one replica no KV moves
        assert (record.pop("decoder"), record.pop("prefilled_s"), record.pop("moving_s")) == (-1, None, None)
        assert record.pop("waited_s") == 0
    for totals in written["replicas"]:  # younger than the digests; without a store nothing is read
        assert (totals.pop("fetched_tokens"), totals.pop("ahead_tokens")) == (0, 0)
        assert (totals.pop("loads"), totals.pop("wakes"), totals.pop("loading_s")) == (0, 0, 0)
    return hashlib.sha256(msgspec.json.encode(written)).hexdigest()[:16]


@pytest.mark.parametrize("name", RUNS)
def test_a_small_run_gives_what_it_gave_before(name: str) -> None:
    serve = msgspec.structs.replace(RUNS[name][0], pace_forget=0.998)  # the default was that
    config = ReplicaConfig(serve=serve, belief=Belief(profiled=False), kv_tokens=60_000)
    assert digest(simulate(config, work(600))) == RUNS[name][1]


ROUTED = {
    Router.LEAST_LOADED: "697a33abdb98026e",
    Router.PREFIX: "e702b321dc28bc67",
    Router.LOCALITY: "b4d3128006598dc8",
}


@pytest.mark.parametrize("router", ROUTED)
def test_replicas_that_do_both_give_what_they_gave_before(router: Router) -> None:
    """Before prefill and decode could be apart."""
    mixed: list[Call | Program] = [*work(200)]
    for number, turn in enumerate(work(60)):
        grown = msgspec.structs.replace(
            turn, prompt_tokens=turn.prompt_tokens + 500, prefix_tokens=turn.prompt_tokens, gap_s=0.5
        )
        mixed.append(chain(number / 3, (turn, grown)))
    config = ReplicaConfig(belief=Belief(profiled=False), kv_tokens=20_000)
    assert digest(simulate(config, mixed, replicas=3, router=online(router, 3))) == ROUTED[router]
