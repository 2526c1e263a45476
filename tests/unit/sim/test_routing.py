"""Where requests go before the run: one after the other, by locality."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from bench.sim import settings
from bench.sim.cluster import Cluster, Config
from bench.sim.point import prepare
from bench.sim.routing import Arrivals, Arriving, Choose, Fetched
from bench.sim.workload import Row


def digest(setting: str, **knobs: Any) -> str:
    """Of everything that is decided before the run."""
    base = settings.base_of(setting, "dbrx", "qwen-a", 90)
    config = msgspec.structs.replace(base.config, **knobs)
    requests = prepare(msgspec.structs.replace(base, config=config, rate=0.2, seed=5))[1]
    decided = [(r.unit, r.decode, r.new_tokens, r.context_tokens, r.remote_tokens, r.owners) for r in requests]
    return hashlib.sha256(msgspec.json.encode(decided)).hexdigest()[:16]


@pytest.mark.parametrize(
    ("setting", "knobs", "known"),
    [
        ("hot", {}, "2414a7a3c8dcbfab"),
        ("egress", {"replicas": 2}, "3ec5661822a1889b"),
        ("llama2-7b.qwen-a.cold", {}, "dbc3309d3e34b79b"),
        ("llama3-8b-gpu.qwen-a.tenants", {}, "5951557ed7007d89"),
    ],
)
def test_static_routing_is_what_it_was(setting: str, knobs: dict[str, Any], known: str) -> None:
    """From before requests were routed one after the other; every recorded result depends on it."""
    assert digest(setting, **knobs) == known


def row(*blocks: int, at: float = 0.0) -> Row:
    return Row(at, 64 * len(blocks), 1, blocks, 64)


def test_a_request_goes_where_it_is_sent_and_its_prefix_stays_there() -> None:
    """Each is told what every unit would fetch as caches are then, which depends on where those before it went."""
    seen: list[list[int]] = []

    def to(unit: int) -> Choose:
        def choose(arriving: Arriving, fetched: Callable[[int], Fetched]) -> int:
            seen.append([fetched(unit)[1] for unit in range(4)])
            return unit

        return choose

    arrivals = Arrivals(Cluster(Config(model="dbrx", gpus=256)), 1)
    arrivals.before_run(row(7, 8, at=-1.0))
    assert arrivals.arrive(row(1, 2, 3), to(2)).unit == 2
    second = arrivals.arrive(row(1, 2, 9), to(1))
    assert (second.number, second.unit, second.new_tokens, second.remote_tokens) == (1, 1, 64, 128)
    third = arrivals.arrive(row(1, 2, 5), to(1))
    assert (third.new_tokens, third.remote_tokens, third.owners) == (64, 0, ())
    assert seen == [[0, 0, 0, 0], [128, 128, 0, 128], [128, 0, 0, 128]]


def test_a_hot_prefix_is_fetched_from_the_first_nic_by_all_units_but_its_own() -> None:
    fetched_by: list[Fetched] = []

    def choose(arriving: Arriving, fetched: Callable[[int], Fetched]) -> int:
        fetched_by.extend(fetched(unit) for unit in range(3))
        return 1

    arrivals = Arrivals(Cluster(Config(model="dbrx", gpus=256, hot_fraction=1.0, cache="first-owner")), 1)
    arrivals.arrive(row(1, 2, 3), lambda arriving, fetched: 1)
    arrivals.arrive(row(1, 2, 9), choose)
    assert fetched_by == [({}, 0), ({}, 0), ({0: 1.0}, 128)], "unit 0 has the hot NIC, unit 1 the blocks"
