"""Who holds which blocks, where they are read from, and behind which NICs."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from bench.sim.caches import Caches, owners
from bench.sim.cluster import Cluster, Config, ConfigError
from bench.sim.point import Point, prepare, run
from bench.sim.routing import route
from bench.sim.workload import Row


def row(*blocks: int, at: float = 0.0, output: int = 1) -> Row:
    return Row(at, 64 * len(blocks), output, blocks, 64)


def cluster(**knobs: Any) -> Cluster:
    return Cluster(Config(**{"model": "dbrx", "gpus": 256, **knobs}))


def fetched(of: Cluster, caches: Caches, prompt: Row, unit: int) -> tuple[dict[int, float], int]:
    return owners(of, caches.prefix(prompt), unit, random.Random(1))


@pytest.mark.parametrize(("cache", "again"), [("keep", 0), ("first-owner", 128)])
def test_a_unit_keeps_what_it_fetches_or_fetches_it_again(cache: str, again: int) -> None:
    of = cluster(cache=cache)
    caches = Caches(of, 1)
    caches.store(row(1, 2), unit=0, group=3)
    assert fetched(of, caches, row(1, 2, 9), unit=1) == ({6: 0.5, 7: 0.5}, 128), "from the NICs of the owner's group"
    caches.store(row(1, 2, 9), unit=1, group=0)
    assert fetched(of, caches, row(1, 2, 9), unit=1)[1] == again
    assert fetched(of, caches, row(1, 2), unit=2)[0] == {6: 0.5, 7: 0.5}, "others still go to the first owner"


def test_the_least_recently_used_block_leaves_and_a_copy_elsewhere_stays() -> None:
    of = cluster(cache_tokens_per_gpu=6)  # three blocks of 64 in a unit of 32
    caches = Caches(of, 1)
    caches.store(row(1, 2, 3), unit=0, group=0)
    caches.store(row(1), unit=0, group=0)
    caches.store(row(3), unit=1, group=5)
    caches.store(row(7, 8), unit=0, group=0)
    assert [bool(caches.prefix(row(block))) for block in (1, 2, 3, 7, 8)] == [True, False, True, True, True]
    assert fetched(of, caches, row(3), unit=0) == ({42: 0.5, 43: 0.5}, 64)


def test_bytes_set_how_many_tokens_a_cache_holds() -> None:
    large, small = (
        Caches(cluster(model=model, gpus=64, cache_gb_per_gpu=40.0), 1) for model in ("deepseek-v3", "llama2-7b")
    )
    assert large.room[0] / 32 / small.room[0] == pytest.approx(32 * 16384 / (61 * 1152), rel=1e-3)


def test_replicas_and_stripes_spread_what_others_read() -> None:
    def share_of_busiest(**knobs: object) -> float:
        of = cluster(**knobs)
        caches = Caches(of, 1)
        rng = random.Random(1)
        read: dict[int, float] = {}
        for unit in (0, 1):
            caches.store(row(1), unit=unit, group=0)
        for _ in range(200):
            for nic, share in owners(of, caches.prefix(row(1)), 2, rng)[0].items():
                read[nic] = read.get(nic, 0.0) + share
        return max(read.values()) / 200

    assert share_of_busiest() == 0.5  # the two NICs of a group
    assert share_of_busiest(replicas=2) == pytest.approx(0.25, abs=0.05)
    assert share_of_busiest(stripe=True) == pytest.approx(1 / 8)


def test_a_store_serves_all_units_from_its_own_nics() -> None:
    of = cluster(store_nics=4)
    caches = Caches(of, 1)
    caches.store(row(*range(64)), unit=0, group=0)
    nics, tokens = fetched(of, caches, row(*range(64)), unit=1)
    assert tokens == 64 * 64 and set(nics) == {256, 257, 258, 259} and sum(nics.values()) == pytest.approx(1)
    assert fetched(of, caches, row(*range(64)), unit=0)[1] == 0, "what a unit has itself it reads from no other"
    caches.clear(0)
    assert fetched(of, caches, row(*range(64)), unit=0)[1] == 64 * 64, "a unit that restarts finds it there"


def test_cold_units_compute_again_what_only_they_had() -> None:
    rows = [row(n, at=-1.0) for n in range(200)] + [row(n, 1000 + n, at=0.5 * n) for n in range(200)]
    reused = [sum(r.context_tokens > 0 for r in route(cluster(cold=cold), rows, 1)) for cold in (0.0, 0.5, 1.0)]
    assert reused[0] == 200 and 60 < reused[1] < 140 and reused[2] == 0


def test_decode_workers_are_chosen_by_the_tokens_they_hold() -> None:
    rows = [row(n, at=0.001 * n, output=1000) for n in range(64)]
    spread = []
    for choice in ("load", "random"):
        requests = route(cluster(decode_nics=16, decode_choice=choice), rows, 1)
        spread.append(Counter(r.decode for r in requests))
    assert set(spread[0].values()) == {8} and max(spread[1].values()) > 8
    freed = [row(n, at=100.0 * n, output=10) for n in range(64)]
    assert len({r.decode for r in route(cluster(decode_nics=16), freed, 1)}) == 8, "idle ones take turns"


@pytest.mark.parametrize("shared", [1, 2])
def test_gpus_that_share_a_nic_share_its_rate(shared: int) -> None:
    """A unit of eight GPUs behind one NIC of 100 Gbit/s moves its KV as eight of 12.5 would, its decode worker too."""
    config = {"model": "llama3-70b", "gpus": 32, "slo_factor": 3.0, "fetch": "batch"}
    alone = Config(**config, link_gbps=shared * 100.0 / 8)  # type: ignore[arg-type]
    one = Config(**config, link_gbps=100.0, nics_per_server=shared)  # type: ignore[arg-type]
    points = [Point(config=c, rate=0.3, requests=20, warmup=5, policy="nocont") for c in (alone, one)]
    means = [run(point)["ttft_s"]["mean"] for point in points]
    assert means[0] == pytest.approx(means[1], rel=1e-6)
    of, _ = prepare(points[1])
    assert {of.topology.port(nic) for nic in range(16)} == set(range(0, 16, 8 // shared))


def test_an_instance_within_a_server_puts_no_collective_on_a_nic() -> None:
    for model in ("llama3-70b", "llama3-8b-gpu", "llama3-8b-node"):
        of = cluster(model=model, gpus=32)
        assert of.collective_paths(0, [1] * of.model.groups, 0) == () and of.collective_bytes(1000) == 0


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"cache": "all"}, "--cache all: use one of keep, first-owner"),
        ({"cold": 1.5}, "--cold 1.5: use a share"),
        ({"nics_per_server": 3}, "--nics-per-server 3: use a divisor of the server's 8 GPUs"),
        ({"decode_choice": "best"}, "--decode-choice best: use one of load, random"),
        ({"replicas": 0}, "--replicas 0: use at least 1"),
        ({"store_nics": -1}, "--store-nics -1: use at least 0"),
        ({"cache_gb_per_gpu": 0.0}, "--cache-gb 0.0: use a number above 0"),
    ],
)
def test_mistakes_name_the_option(knobs: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        cluster(**knobs)
