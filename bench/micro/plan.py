"""Time of one event of the incremental Algorithm 1 (PlanCore), its delta included, at 10^4 active batches; and of the
release of a few that are merged, as the coordinator does it.

Deadlines are spread over a horizon; the earliest batch departs, another arrives. The regime says how long the horizon
is for the load: `feasible` prunes next to nothing, `slight` some, `heavy` all that the drop budget allows. Beside it:
the same algorithm from scratch in C (`plan_walk.c`).
"""

from __future__ import annotations

import ctypes
import gc
import heapq
import random
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

from mfsd._native import PlanCore
from mfsd.policy import Batch, PolicyConfig, Request, Variant
from mfsd.policy.red import robust_effective_deadline

ROOT = Path(__file__).parents[2]
SEED = 11
BYTES_PER_NS = 50  # 400 Gbit/s
BATCHES = 10_000
EVENTS = 1000
MERGED = 4  # events of a release: two departures, two arrivals
REGIMES = {"feasible": 2.5, "slight": 1.4, "heavy": 0.7}
"""Horizon over the time that the load of an average port takes."""


class Shape(NamedTuple):
    """Ports of the cluster; ports of each batch's all-to-all (0: none), neighbours or anywhere."""

    ports: int
    spread: int = 0
    anywhere: bool = False


SHAPES = {
    "few_ports_of_2048": Shape(2048),
    "all_to_all_over_64": Shape(64, 64),
    "all_to_all_over_64_of_2048": Shape(2048, 64),
    "all_to_all_over_any_64_of_2048": Shape(2048, 64, anywhere=True),
}


def ns(rng: random.Random, least_bytes: int, most_bytes: int) -> int:
    return -(-rng.randrange(least_bytes, most_bytes) // BYTES_PER_NS)


class Cluster:
    """Batches of one shape, from a seed: 2 to 6 requests on two ports each, and the all-to-all as fixed load."""

    def __init__(self, shape: Shape, batches: int, room: float) -> None:
        self.shape, self.batches = shape, batches
        self.random = random.Random(SEED)
        self.requests = 0
        self.horizon_ns = 1000
        self.now_ns = 10**12
        sample = [self.batch(0) for _ in range(300)]
        load = sum(sum(b.fixed_loads.values()) + sum(sum(r.loads.values()) for r in b.requests) for b in sample)
        self.horizon_ns = int(room * load / len(sample) * batches / shape.ports)

    def batch(self, number: int, soonest: float = 0.02) -> Batch:
        """A batch whose first deadline lies in the part of the horizon from `soonest` on."""
        rng, shape = self.random, self.shape
        first = self.now_ns + int(self.horizon_ns * rng.uniform(soonest, 1.0))
        fixed = {}
        if shape.spread and shape.anywhere:
            fixed = {port: ns(rng, 1, 2_000_000) for port in rng.sample(range(shape.ports), shape.spread)}
        elif shape.spread:
            start = rng.randrange(shape.ports // shape.spread) * shape.spread
            fixed = {port: ns(rng, 1, 2_000_000) for port in range(start, start + shape.spread)}
        requests = []
        for _ in range(rng.randrange(2, 7)):
            self.requests += 1
            deadline = first + rng.randrange(1 + self.horizon_ns // 20)
            loads = {port: ns(rng, 1_000_000, 64_000_000) for port in rng.sample(range(shape.ports), 2)}
            requests.append(Request(self.requests, deadline, loads))
        return Batch(number, tuple(requests), rng.randrange(1 + self.horizon_ns // 200), fixed)


class Run:
    """A core in steady state. Times are of the events alone, of this thread's CPU and of the clock."""

    def __init__(self, cluster: Cluster, core: PlanCore) -> None:
        self.cluster, self.core = cluster, core
        self.batches: dict[int, Batch] = {}
        self.due: list[tuple[int, int]] = []
        self.number = 0
        self.changes = 0
        core.hold()
        for _ in range(cluster.batches):
            core.arrive(self.next_batch(0.02), cluster.now_ns)
        core.release(cluster.now_ns)
        core.delta()

    def next_batch(self, soonest: float) -> Batch:
        self.number += 1
        batch = self.cluster.batch(self.number, soonest)
        self.batches[batch.batch_id] = batch
        heapq.heappush(self.due, (min(r.deadline_ns for r in batch.requests), batch.batch_id))
        return batch

    def step(self, departures: int, arrivals: int) -> tuple[int, int]:
        """These events, merged when there are several: what they and their delta took."""
        gone = [heapq.heappop(self.due)[1] for _ in range(departures)]
        come = [self.next_batch(0.25) for _ in range(arrivals)]
        for number in gone:
            del self.batches[number]
        core, now_ns = self.core, self.cluster.now_ns
        began, cpu = time.perf_counter_ns(), time.thread_time_ns()
        if departures + arrivals > 1:
            core.hold()
        for number in gone:
            core.depart(number, now_ns)
        for batch in come:
            core.arrive(batch, now_ns)
        if departures + arrivals > 1:
            core.release(now_ns)
        delta = core.delta()
        took = time.thread_time_ns() - cpu, time.perf_counter_ns() - began
        self.changes += sum(len(part) for part in delta)
        return took

    def measure(self, events: int) -> dict[str, Any]:
        self.changes = 0
        times: dict[str, list[tuple[int, int]]] = {"arrival": [], "departure": [], "release": []}
        gc.collect()
        gc.disable()
        try:
            for event in range(events):
                self.cluster.now_ns += self.cluster.horizon_ns // self.cluster.batches // 2
                times["departure" if event % 2 else "arrival"].append(self.step(event % 2, 1 - event % 2))
            for _ in range(events):
                self.cluster.now_ns += self.cluster.horizon_ns // self.cluster.batches // 2 * MERGED
                times["release"].append(self.step(MERGED // 2, MERGED // 2))
        finally:
            gc.enable()
        both = times["arrival"] + times["departure"]
        result: dict[str, Any] = {"event_cpu_ms": spread([cpu for cpu, _ in both])}
        result["event_ms"] = spread([wall for _, wall in both])
        result |= {f"{kind}_cpu_ms": spread([cpu for cpu, _ in pairs]) for kind, pairs in times.items()}
        result["delta_entries_per_event"] = round(self.changes / events / (1 + MERGED), 2)
        result["counts"] = self.core.counts()._asdict()
        return result


def spread(ns: list[int]) -> dict[str, float]:
    ordered = sorted(ns)
    shares = {"min": 0.0, "p50": 0.5, "p99": 0.99, "max": 1.0}
    last = len(ordered) - 1
    return {name: round(ordered[min(last, int(share * len(ordered)))] / 1e6, 4) for name, share in shares.items()}


def from_scratch(cluster: Cluster, batches: dict[int, Batch], pruned: int) -> dict[str, float]:
    """ms of this thread's CPU for one event of `plan/walk.c` on these batches: sort and two walks alone, and with the
    literal readmission, a walk for each of the pruned."""
    folder = ROOT / "build/bench"
    folder.mkdir(parents=True, exist_ok=True)
    source, library = Path(__file__).with_name("plan_walk.c"), folder / "plan_walk.so"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared"]
    subprocess.run(["cc", *flags, str(source), "-o", str(library)], check=True)
    function = ctypes.CDLL(str(library)).mfs_plan_from_scratch
    function.restype = ctypes.c_int64
    red, first, ports, amounts = [], [0], [], []
    for batch in batches.values():
        total = dict(batch.fixed_loads)
        for request in batch.requests:
            for port, amount in request.loads.items():
                total[port] = total.get(port, 0) + amount
        red.append(robust_effective_deadline(r.deadline_ns for r in batch.requests).red_ns)
        ports += list(total)
        amounts += list(total.values())
        first.append(len(ports))
    tables = (
        (ctypes.c_int64 * len(red))(*red),
        (ctypes.c_uint32 * len(first))(*first),
        (ctypes.c_uint32 * len(ports))(*ports),
        (ctypes.c_int64 * len(amounts))(*amounts),
    )
    result = {}
    for name, walks, turns in (("two_walks_cpu_ms", 2, 15), ("literal_cpu_ms", 2 + pruned, 3)):
        best = None
        for _ in range(turns):
            began = time.thread_time_ns()
            function(len(red), *tables, cluster.shape.ports, ctypes.c_int64(10**9), walks)
            took = time.thread_time_ns() - began
            best = took if best is None else min(best, took)
        result[name] = round((best or 0) / 1e6, 3)
    return result


def run(batches: int = BATCHES, events: int = EVENTS) -> dict[str, Any]:
    """release_cpu_ms_p99: the worst scenario (the bar: 1 ms for each). event_..: over few ports of 2,048."""
    scenarios: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        for regime, room in REGIMES.items():
            for variant in Variant if name == "few_ports_of_2048" else (Variant.MFS,):
                cluster = Cluster(shape, batches, room)
                state = Run(cluster, PlanCore(PolicyConfig(variant=variant), shape.ports))
                result = state.measure(events)
                result["from_scratch_in_c"] = from_scratch(cluster, state.batches, result["counts"]["pruned"])
                scenarios[f"{name}/{regime}/{variant.value}"] = result
    few = [result for name, result in scenarios.items() if name.startswith("few_ports")]
    return {
        "seed": SEED,
        "batches": batches,
        "events_each": events,
        "event_ms_p99": max(result["event_ms"]["p99"] for result in few),
        "event_cpu_ms_p50": max(result["event_cpu_ms"]["p50"] for result in few),
        "event_cpu_ms_p99": max(result["event_cpu_ms"]["p99"] for result in few),
        "release_cpu_ms_p99": max(result["release_cpu_ms"]["p99"] for result in scenarios.values()),
        "scenarios": scenarios,
    }
