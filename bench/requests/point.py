"""One run: a workload under a policy at a rate with a seed, and its row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.requests import inherit, meta, models, policies, workflow_runs, workloads
from bench.requests.errors import UsageError
from bench.requests.policies import Rule
from bench.requests.settings import ROUND_ROBIN, Settings
from bench.requests.tiers import BACKGROUND, NO_SLO
from bench.sim import serving
from bench.sim.serving import Apart, Belief, Control, NodeConfig, Outcome, Record, ReplicaConfig, Router, StoreConfig
from bench.sim.serving.cost import COSTS, KV_BYTES, KV_TOKENS, WEIGHTS_BYTES
from mfsd.policy import route
from mfsd.policy.route import Role, RouteConfig
from mfsd.policy.serve.meta import MetaConfig
from mfsd.policy.workflow import TierSpeeds

WINDOW_S = 60.0
DRAIN_S = 600.0
"""Time after the last arrival and the longest SLO; a request that has not ended by then is late in any case."""
PROGRAMS_END = 20.0
"""A run of programs stops after this multiple of the seconds of arrivals, however many are left."""
SLOTS = {"tiers": 256, "programs": 32, "agents": 32, "drift": 256}
REPLICAS = {"agents": 4}
"""Kinds with several replicas by default, because routers are compared."""
PROGRAMS = ("programs", "agents")
LANES = ("two-lane",)

Result = dict[str, Any]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A run. Equal points give equal rows, except cpu_s and plan_us."""

    what: str = "tiers"
    workload: str = "azure-code"
    policy: str = "qoserve"
    qps: float = 2.0
    seed: int = 1
    seconds: float = 1800.0
    traces: str | None = None
    settings: Settings = Settings()


def identity(point: Point) -> tuple[str, float, int]:
    return (point.policy, point.qps, point.seed)


def common(points: Sequence[Point]) -> dict[str, Any]:
    """Returns what all points of a file share."""
    shared: dict[str, Any] = msgspec.to_builtins(points[0])
    for key in ("policy", "qps", "seed"):
        del shared[key]
    return shared


def run(point: Point) -> Result:
    """Returns the row of a point."""
    if point.what == "workflows":
        for name in ("prefill", "models"):
            if given := getattr(point.settings, name):
                raise UsageError(f"--set {name}={given}: workflows have nodes and models of their own; use 0")
        return workflow_runs.run(point.policy, point.settings, point.qps, point.seed, point.seconds)
    rule = policies.OF[point.what][point.policy]
    split, shared = apart(point, rule), node(point, rule)
    made = workloads.generate(
        point.what,
        point.workload,
        point.settings,
        point.qps,
        point.seed,
        point.seconds,
        Path(point.traces) if point.traces else None,
    )
    work = models.asked(made.work, point.settings, point.seed)
    configs, router = engines(point, rule)
    try:
        outcome = serving.simulate(
            configs,
            work,
            point.seed,
            replicas=point.settings.models or replicas(point),
            router=router,
            until_s=_until_s(point),
            programs=inherit.table(rule.inherit, work),
            control=_control(rule, configs),
            control_every_s=meta.TICK_S,
            apart=split,
            node=shared,
        )
    except ValueError as error:  # a prompt that no replica could hold
        raise UsageError(f"--set kv_tokens={point.settings.kv_tokens}: {error}") from error
    return {
        **serving.row(outcome),
        "policy": point.policy,
        "seed": point.seed,
        "qps": point.qps,
        **_more(point, outcome),
        "source": made.source,
    }


def engines(point: Point, rule: Rule) -> tuple[ReplicaConfig | list[ReplicaConfig], Router | None]:
    """Returns the replicas' configurations, and how calls are spread: by the router, or in silos to their tier's
    replicas."""
    settings, count = point.settings, replicas(point)
    slots = settings.slots or SLOTS[point.what]
    config = ReplicaConfig(
        serve=policies.serve_config(rule, slots, settings.serve),
        cost=COSTS[settings.cost],
        noise=settings.step_noise,
        belief=Belief(profiled=settings.profiled, bias=settings.belief_scale, noise=settings.belief_noise),
        kv_tokens=settings.kv_tokens or KV_TOKENS[settings.cost],
        store=None if rule.store is None else StoreConfig(tokens_per_s=settings.store_tokens_per_s, **rule.store),
        expect=settings.expect,
        bound_outputs=rule.bounds,
        lanes=rule.meta is not None or rule.serve.get("policy") in LANES,
    )
    if not rule.silo:
        return config, _router(_router_of(point, rule), settings, count)
    pools = policies.silo_pools(count)
    configs = [config] * count
    for tier, members in pools.items():
        serve = policies.serve_config(rule, slots, {**policies.silo_step(tier), **settings.serve})
        for number in members:
            configs[number] = msgspec.structs.replace(config, serve=serve)
    return configs, serving.by_tier({**pools, NO_SLO: pools[BACKGROUND]})


def replicas(point: Point) -> int:
    return point.settings.replicas or REPLICAS.get(point.what, 1)


def apart(point: Point, rule: Rule) -> Apart | None:
    """Returns None if every replica computes prompts and decodes."""
    settings, count = point.settings, replicas(point)
    if not settings.prefill:
        return None
    given = f"--set prefill={settings.prefill}"
    if settings.prefill >= count:
        raise UsageError(f"{given}: use fewer than the replicas, which are {count}, or more of these (replicas=)")
    _plain(point, rule, given)
    rate = settings.kv_rate_gbit * 1e9 / 8
    return Apart(prefill=settings.prefill, kv_bytes_per_token=KV_BYTES[settings.cost], port_bytes_per_s=rate)


def node(point: Point, rule: Rule) -> NodeConfig | None:
    """Returns None if there is one model."""
    settings = point.settings
    if not settings.models:
        return None
    given = f"--set models={settings.models}"
    _plain(point, rule, given)
    if settings.prefill:
        raise UsageError(f"{given} --set prefill={settings.prefill}: use one of them")
    if (router := _router_of(point, rule)) != ROUND_ROBIN:
        raise UsageError(f"{given}: each model has one engine, so the router {router} has no choice; use 0, or none")
    weights = round(settings.weights_gb * 1e9) or WEIGHTS_BYTES[settings.cost]
    speeds = TierSpeeds(start_s=settings.start_s)
    return NodeConfig(
        running=replicas(point), weights_bytes=weights, speeds=speeds, host_bytes=round(settings.host_gb * 1e9)
    )


def _plain(point: Point, rule: Rule, given: str) -> None:
    """Raises UsageError unless replicas are all alike and have only their own memory."""
    other = ((rule.silo, "silos"), (rule.store is not None, "a store"), (rule.meta is not None, "a controller"))
    for has, what in other:
        if has:
            raise UsageError(f"{given}: the policy {point.policy} has {what}; use 0, or another policy")


def _router_of(point: Point, rule: Rule) -> str:
    given = point.settings.router
    if rule.router and given not in (ROUND_ROBIN, rule.router):
        raise UsageError(f"--set router={given}: the policy {point.policy} has its own, {rule.router}; leave one out")
    return rule.router or given


def _router(name: str, settings: Settings, count: int) -> Router | None:
    """Returns None for round robin."""
    if name == ROUND_ROBIN:
        return None
    config = RouteConfig(load=settings.router_load, locality_tokens=settings.locality_tokens)
    return serving.online(route.Router(name), count, config, Role.PREFILL if settings.prefill else Role.BOTH)


def _control(rule: Rule, configs: ReplicaConfig | list[ReplicaConfig]) -> Control | None:
    if rule.meta is None:
        return None
    base = configs[0] if isinstance(configs, list) else configs
    return meta.control(MetaConfig(strategy=rule.meta), base.serve)


def _until_s(point: Point) -> float:
    settings = point.settings
    if point.what in PROGRAMS:
        return point.seconds * PROGRAMS_END
    longest = max(settings.ttft_s, settings.batch_ttlt_s, settings.background_ttlt_s)
    return point.seconds + DRAIN_S + (longest if point.what == "tiers" else 0.0)


def _more(point: Point, outcome: Outcome) -> Result:
    if point.what == "programs":
        return serving.program_row(outcome)
    if point.what == "agents":
        return {**serving.program_row(outcome), "turn_ttft_s": serving.turn_ttft_s(outcome)}
    if point.what == "drift":
        phase_s = point.settings.phase_s
        return serving.drift_row(outcome, phases_s=(0.0, phase_s, 2 * phase_s))
    return {"over_time": over_time(outcome.records)}


def over_time(records: Sequence[Record]) -> list[dict[str, float]]:
    """Returns, by minute of arrival, requests/s, shares of late ones, and the slowest first token of an interactive
    one."""
    windows: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        windows[int(record.arrival_s / WINDOW_S)].append(record)
    rows = []
    for number, of in sorted(windows.items()):
        important = [r for r in of if r.importance > 0]
        waits = [r.first_token_s - r.arrival_s for r in of if r.ttft_slo_s is not None and r.first_token_s is not None]
        rows.append(
            {
                "at_s": number * WINDOW_S,
                "qps": len(of) / WINDOW_S,
                "late": sum(map(serving.is_late, of)) / len(of),
                "late_important": sum(map(serving.is_late, important)) / max(1, len(important)),
                "ttft_max_s": max(waits, default=0.0),
            }
        )
    return rows
