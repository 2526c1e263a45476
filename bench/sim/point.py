"""One point: a configuration, a workload at a rate, one policy, one seed; and what it measures."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.sim import controller, drift, generators, policies, serve
from bench.sim.cluster import Cluster, Config, ConfigError, Request
from bench.sim.engine import Simulation
from bench.sim.generators import HISTORY
from bench.sim.online import OnlineRouter
from bench.sim.reuse import ReuseConfig
from bench.sim.routing import route
from bench.sim.states import State
from bench.sim.workload import Row, TraceError, read_trace

MET_SLACK = 1 + 1e-6  # a policy that finishes exactly at the deadline must not fail by the last digit
TRACE_REQUESTS = 20_000  # limit of the requests read of a recorded trace
SATURATION_LIMIT = 1.5  # times what the GPUs can compute: beyond it a run only shows that queues grow


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a result depends on."""

    config: Config
    workload: str = "qwen-a"  # a generator's name or a trace file
    arrivals: str = "poisson"  # poisson, or trace: the recorded times, stretched to the rate
    policy: str = "mfs"
    scheduler: str = "fcfs"  # which queued requests form the next batch, see bench.sim.serve
    reuse: ReuseConfig = ReuseConfig()  # decisions by what the network owes, see bench.sim.reuse
    rate: float = 0.1  # requests/s per prefill GPU
    seed: int = 1
    requests: int = 1024
    warmup: int = 512


def under(point: Point, name: str) -> Point:
    """Returns the point under a policy, or under POLICY+SCHEDULER."""
    policy, plus, scheduler = name.rpartition("+")
    if plus and (scheduler in serve.SCHEDULERS or scheduler in controller.NAMES):
        return msgspec.structs.replace(point, policy=policy, scheduler=scheduler)
    return msgspec.structs.replace(point, policy=name)


def described(point: Point) -> dict[str, Any]:
    """Returns the point as result files have it: without options that are as before they were introduced."""
    content: dict[str, Any] = msgspec.to_builtins(point)
    if point.scheduler == "fcfs":
        del content["scheduler"]
    if point.reuse == ReuseConfig():
        del content["reuse"]
    else:
        for name in ("router", "parts"):
            if getattr(point.reuse, name) == getattr(ReuseConfig(), name):
                del content["reuse"][name]
    if not point.config.bypass_share:
        for name in ("bypass_share", "bypass_burst_s", "bypass_read_s"):
            del content["config"][name]
    if point.config.max_hold_s is None:
        del content["config"]["max_hold_s"]
    if not point.config.reads:
        del content["config"]["reads"]
    if point.config.unit_models is None:
        del content["config"]["unit_models"]
    if not point.config.moves_share and point.config.unit_models is None:
        for name in ("moves_share", "moves_gb_per_nic", "moves_due", "moves_as"):
            del content["config"][name]
    return content


def workload_rows(point: Point, workload: str, count: int, total_rate: float, number: int = 0) -> list[Row]:
    """Returns the rows of the `number`th model with arrival times. Generated workloads are preceded by a history that
    fills the caches."""
    burst = point.config.burst
    seed = point.seed + 1_000_003 * number
    if workload in drift.NAMES:
        return drift.rows(workload, count, total_rate, seed, burst)
    if workload in generators.NAMES:
        if point.arrivals == "trace":
            raise ConfigError(
                f"--arrivals trace: {workload} is generated and has no recorded times; use poisson or --trace FILE"
            )
        rows = generators.generate(workload, count, seed, burst)
        history = rows[: generators.HISTORY]
        return history + generators.schedule(rows[generators.HISTORY :], total_rate, seed, burst)
    path = Path(workload)
    recorded = _recorded(path, path.stat().st_mtime_ns if path.is_file() else 0)
    if len(recorded) < count:
        raise TraceError(
            f"{workload}: {len(recorded)} requests, but --warmup {point.warmup} and "
            f"--requests {point.requests} need {count}; lower them"
        )
    # Each seed takes requests of its own; those before them fill the caches, as they did when they were recorded.
    first = random.Random(f"window {seed}").randint(0, len(recorded) - count)
    rows = recorded[first : first + count]
    if point.arrivals == "trace" and rows[-1].arrival_s <= rows[0].arrival_s:
        raise TraceError(f"{workload}: all {count} requests arrive at once; use --arrivals poisson")
    history = [msgspec.structs.replace(row, arrival_s=-1.0) for row in recorded[max(0, first - HISTORY) : first]]
    return history + generators.schedule(rows, total_rate, seed, burst, recorded=point.arrivals == "trace")


@functools.lru_cache(maxsize=2)
def _recorded(path: Path, _changed_ns: int) -> list[Row]:
    """Returns the trace's first requests. Cached, so that all points of a study read them once."""
    return read_trace(path, TRACE_REQUESTS)


def saturation(cluster: Cluster, requests: Sequence[Request]) -> float:
    """Returns the requests/s per prefill GPU that the GPUs can compute if batches are always full and the network costs
    nothing beyond its isolated time."""
    budget, seconds = cluster.config.batch_tokens, 0.0
    batch: list[tuple[int, int]] = []
    room = budget
    for request in requests:
        if batch and request.new_tokens > room:
            seconds += cluster.batch_s(batch)
            batch, room = [], budget
        batch.append((request.new_tokens, request.context_tokens))
        room -= request.new_tokens
    seconds += cluster.batch_s(batch)
    return len(requests) / seconds / cluster.model.instance_gpus


def prepare(point: Point) -> tuple[Cluster, list[Request]]:
    """Returns the cluster and its requests in the order of arrival. Several models get equal numbers of them."""
    # No policy affects them, so consecutive comparisons reuse them.
    cluster, requests = _prepared(
        msgspec.json.encode(msgspec.structs.replace(point, policy="", scheduler="", reuse=ReuseConfig()))
    )
    return cluster, [msgspec.structs.replace(request) for request in requests]


@functools.lru_cache(maxsize=8)
def _prepared(encoded: bytes) -> tuple[Cluster, tuple[Request, ...]]:
    point = msgspec.json.decode(encoded, type=Point)
    cluster = Cluster(point.config, point.seed)
    requests: list[Request] = []
    for part, rows in zip(cluster.parts, _rows(point, cluster), strict=True):
        requests += route(part, rows, point.seed)
    if len(cluster.parts) > 1:
        requests.sort(key=lambda request: request.arrival_s)
        for number, request in enumerate(requests):
            request.number = number
    return cluster, tuple(requests)


def _rows(point: Point, cluster: Cluster) -> list[list[Row]]:
    """Returns the rows of each part of the cluster."""
    parts, workloads = cluster.parts, point.workload.split(",")
    if len(workloads) not in (1, len(parts)):
        raise ConfigError(f"--workload {point.workload}: give one for all models or one for each of {len(parts)}")
    return [
        workload_rows(
            point,
            workloads[part.number % len(workloads)],
            (point.requests + point.warmup + part.number) // len(parts),
            point.rate * part.prefill_gpus,
            part.number,
        )
        for part in parts
    ]


def simulation_of(point: Point, cluster: Cluster, requests: Sequence[Request]) -> Simulation:
    """Returns the prepared point under its policy."""
    return controlled(point, cluster, requests)[0]


def controlled(
    point: Point, cluster: Cluster, requests: Sequence[Request]
) -> tuple[Simulation, controller.Controllers | None]:
    """Returns the prepared point under its policy, and the controllers of its batches, if any."""
    router = None
    if point.reuse.router != ReuseConfig().router:
        if point.config.unit_models:
            raise ConfigError(f"--router {point.reuse.router}: with unit_models use locality, which knows models")
        router = functools.partial(OnlineRouter, config=point.reuse, rows=_rows(point, cluster), seed=point.seed)
    policy = policies.find(point.policy)
    if point.scheduler not in controller.NAMES:
        scheduler = serve.scheduler(point.scheduler, cluster)
        return Simulation(cluster, requests, policy, scheduler, point.reuse, router), None
    config = controller.config_of(point.scheduler)
    planner = serve.Planner(cluster, serve.config_of(config.pool[0].value), switches=True)
    simulation = Simulation(cluster, requests, policy, planner, point.reuse, router)
    return simulation, controller.Controllers(simulation, planner, config)


def limit_of(cluster: Cluster, requests: Sequence[Request]) -> float:
    """Returns the saturation of the model that saturates first."""
    return min(saturation(part, [r for r in requests if cluster.of(r.unit) is part]) for part in cluster.parts)


def run(point: Point) -> dict[str, Any]:
    """Runs a point. Raises ConfigError, TraceError or LookupError with one line if it cannot be run."""
    policies.find(point.policy)
    wall, cpu = time.perf_counter(), time.process_time()
    cluster, requests = prepare(point)
    limit = limit_of(cluster, requests)
    if point.rate > SATURATION_LIMIT * limit:
        raise ConfigError(
            f"--rate {point.rate:g}: the GPUs can compute {limit:.3g} requests/s per GPU of this workload; "
            f"above that queues only grow. Use at most {SATURATION_LIMIT * limit:.3g}"
        )
    simulation, controllers = controlled(point, cluster, requests)
    simulation.run()
    result = measure(simulation, point.warmup)
    if simulation.reuse is not None:
        result["reuse"] = simulation.reuse.counts()
    if controllers is not None:
        result["control"] = {"switches": controllers.switches, "orders": controllers.orders()}
    return {
        "policy": point.policy,
        "scheduler": point.scheduler,
        "rate": point.rate,
        "seed": point.seed,
        "requests": point.requests,
        **result,
        "load": round(point.rate / limit, 4),
        "wall_s": round(time.perf_counter() - wall, 3),
        "cpu_s": round(time.process_time() - cpu, 3),
        "flow_events": simulation.network.flow_events(),
    }


def measure(simulation: Simulation, warmup: int) -> dict[str, Any]:
    """Returns statistics of the requests after the warm-up and of the collectives posted while they were there. Raises
    ConfigError if a request never ended: it has no TTFT, and would count as in time."""
    if simulation.unfinished:
        raise ConfigError(
            f"{simulation.unfinished} of {len(simulation.states)} requests never end; let the policy's network give "
            "every flow a rate at some time"
        )
    states = simulation.states[warmup:]
    begin = states[0].request.arrival_s
    end = states[-1].request.arrival_s
    result = summary(
        [(s.finish_s - s.request.arrival_s, s.request.budget_s) for s in states],
        [d for posted, d in simulation.collective_s if begin <= posted <= end],
    )
    if simulation.cluster.config.slo_tiers:
        weights = [s.request.weight for s in states]
        met = [s.finish_s - s.request.arrival_s <= s.request.budget_s * MET_SLACK for s in states]
        result["weighted_attainment"] = round(sum(w for w, m in zip(weights, met, strict=True) if m) / sum(weights), 6)
    result["lost"] = lost(states)
    if simulation.moves is not None:
        result["moves"] = simulation.moves.measure(begin, end)
    if simulation.activations is not None:
        result["activations"] = {
            **simulation.activations.measure(begin, end),
            "collectives": collective_slowdown(simulation, begin, end),
        }
    parts = simulation.cluster.parts
    if len(parts) > 1:
        result["models"] = {}
        for part in parts:
            own = [(s.finish_s - s.request.arrival_s, s.request.budget_s) for s in states if s.cluster is part]
            figures = summary(own, []) if own else {"slo_attainment": None, "ttft_s": None}
            result["models"][f"{part.number} {part.model.name}"] = {
                "requests": len(own), "slo_attainment": figures["slo_attainment"], "ttft_s": figures["ttft_s"]
            }  # fmt: skip
    return result


def collective_slowdown(simulation: Simulation, begin_s: float, end_s: float) -> float:
    """Returns what collectives took over what they take alone. Later activations make other batches, so that times are
    of other collectives; this is of the network alone."""
    both = zip(simulation.collective_s, simulation.collective_alone_s, strict=True)
    within = [(took, alone) for (posted, took), alone in both if begin_s <= posted <= end_s]
    alone = sum(alone for _, alone in within)
    return round(sum(took for took, _ in within) / alone, 6) if alone else 1.0


def lost(states: Sequence[State]) -> dict[str, float]:
    """Returns the requests that ended late or pruned, and the KV that the network moved for them. Loads that were given
    up count with the part that had arrived."""
    gone = [s for s in states if s.pruned or s.finish_s - s.request.arrival_s > s.request.budget_s * MET_SLACK]
    return {
        "requests": len(gone),
        "pruned": sum(s.pruned for s in gone),
        "fetched_bytes": round(sum(s.fetched_bytes for s in gone)),
        "shipped_bytes": round(sum(s.p2d_total for s in gone)),
    }


def summary(requests: Sequence[tuple[float, float]], collectives: Sequence[float]) -> dict[str, Any]:
    """Returns statistics of requests given as (TTFT, budget) and of collectives' durations, all in seconds."""
    met = [ttft <= budget * MET_SLACK for ttft, budget in requests]
    ttft = sorted(t for t, _ in requests)
    cct = sorted(collectives) or [0.0]
    earliness = sorted(budget - ttft for ttft, budget in requests)
    return {
        "slo_attainment": round(sum(met) / len(met), 6),
        "ttft_s": {"mean": _mean(ttft), **_quantiles(ttft, (50, 90, 99))},
        "cct_s": {"mean": _mean(cct), **_quantiles(cct, (99,))},
        "earliness_s": {
            "mean": _mean(earliness),
            "non_negative_mean": _mean([e for e in earliness if e >= 0]),
            **_quantiles(earliness, (1, 10, 25, 50, 75, 90, 99)),
        },
    }


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 9) if values else 0.0


def _quantiles(ordered: Sequence[float], percents: Sequence[int]) -> dict[str, float]:
    return {f"p{p}": round(ordered[min(len(ordered) - 1, int(len(ordered) * p / 100))], 9) for p in percents}


def knee(point: Point, target: float = 0.9, seeds: int = 1) -> float:
    """Returns the rate at which NOCONT still meets `target` of the deadlines, over the point's seed and those after it.
    Other rates are relative to it. Long prompts are few: one seed can be off by a third."""
    of_seeds = [msgspec.structs.replace(point, policy="nocont", seed=point.seed + i) for i in range(seeds)]
    low, high = 0.0, min(limit_of(*prepare(one)) for one in of_seeds)
    for _ in range(7):
        rate = (low + high) / 2
        met = [run(msgspec.structs.replace(one, rate=rate))["slo_attainment"] for one in of_seeds]
        low, high = (rate, high) if sum(met) / seeds >= target else (low, rate)
    return low
