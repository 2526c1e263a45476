"""Halves and doubles every default that no paper gives: the effect on late requests, or on a program's latency.

Uses seeds of its own, which neither the claims nor the choice of the defaults use. Numbers of the tiers are judged
twice: at a load that the policy carries, where they should change nothing, and beyond it. Numbers that have no effect
in this setting are judged in one of their own, where they matter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import msgspec

from bench.requests.errors import UsageError
from bench.requests.lab import Lab
from bench.requests.point import Point
from bench.requests.settings import Settings
from bench.requests.tiers import NO_SLO
from mfsd.policy.serve import Relegation, ServeConfig

FACTORS = (0.5, 1.0, 2.0)
QPS, OVERLOAD_QPS = 4.4, 5.0
"""Of the tiers: near what `qoserve` carries on Azure code, and beyond."""
CHAT_QPS, DRIFT_QPS = 1.2, 4.0
SHARED_QPS = 3.2
"""On a machine that has other work half of the time."""
UNKNOWN_QPS, UNKNOWN_SHARE, UNKNOWN_S = 4.7, 0.2, 7200.0
"""Rate, share and length of a run with requests that ask for no deadline; nothing is shortened."""
PROJECTED_QPS, PROJECTED_S = 6.0, 450.0
"""With relegation by projection, which takes long to simulate under overload: twice the longest deadline."""
START_QPS, START_S = 6.0, 60.0
"""From an engine that knows nothing of itself yet. Deadlines of batch tiers are short, so that first due times
matter."""

TIERS = (
    "pace_margin", "chunk_min", "chunk_block", "load_low", "load_high", "overdue_budgets", "overdue_every", "skips_max",
)  # fmt: skip
PROGRAMS = ("queue_first_s", "queues", "starvation_ratio")
RELEGATED = ("drop_budget", "readmission_margin")
DRIFT = ("kv_margin", "step_target_s", "requests_gain", "regulate_window", "lane_weight")


class Ablation(msgspec.Struct, frozen=True):
    """One number: the results with half of it, with the default, and with twice as much."""

    name: str
    measure: str
    default: float
    values: tuple[float, ...]
    results: tuple[float, ...]
    scale: str = ""
    """How long the runs were and on which seeds."""
    errors: tuple[float, ...] = ()
    """Standard errors over the seeds: of the default's mean, and of the others' differences from it seed by seed. Empty
    with one seed."""


class Group(NamedTuple):
    """Numbers that are judged on the same point."""

    names: tuple[str, ...]
    measure: str
    point: Callable[[Lab, int], Point]
    of: Callable[[dict[str, Any]], float]


def _late(row: dict[str, Any]) -> float:
    return 100 * float(row["violations"]["all"])


def _late_important(row: dict[str, Any]) -> float:
    return 100 * float(row["violations"]["important"])


def _waits_without(row: dict[str, Any]) -> float:
    return float(row["tiers"][NO_SLO]["ttft_s"]["mean"])


def _projected(lab: Lab, seed: int) -> Point:
    settings = Settings(batch_ttlt_s=75.0, background_ttlt_s=225.0, serve={"relegation": Relegation.PROJECTION.value})
    return Point(policy="fit", qps=PROJECTED_QPS, seed=seed, seconds=PROJECTED_S, settings=settings)


def _without_slo(lab: Lab, seed: int) -> Point:
    return Point(
        policy="fit", qps=UNKNOWN_QPS, seed=seed, seconds=UNKNOWN_S, settings=Settings(no_slo_share=UNKNOWN_SHARE)
    )


def _start(lab: Lab, seed: int) -> Point:
    settings = Settings(profiled=False, batch_ttlt_s=20.0, background_ttlt_s=40.0)
    return Point(policy="fit", qps=START_QPS, seed=seed, seconds=START_S, settings=settings)


GROUPS = (
    Group(
        TIERS,
        f"% late, qoserve, {OVERLOAD_QPS:g}/s",
        lambda lab, seed: lab.tiers("qoserve", OVERLOAD_QPS, seed),
        _late,
    ),
    Group(
        PROGRAMS,
        f"ms a token, plas, chats at {CHAT_QPS:g}/s",
        lambda lab, seed: Point(
            what="programs", workload="chat", policy="plas", qps=CHAT_QPS, seed=seed, seconds=lab.scale.programs_s
        ),
        lambda row: 1e3 * float(row["per_token_s"]["mean"]),
    ),
    Group(TIERS, f"% late, qoserve, {QPS:g}/s", lambda lab, seed: lab.tiers("qoserve", QPS, seed), _late),
    Group(
        DRIFT,
        f"% in time, hmas, rate, {DRIFT_QPS:g}/s",
        lambda lab, seed: Point(what="drift", workload="rate", policy="hmas", qps=DRIFT_QPS, seed=seed, seconds=600.0),
        lambda row: 100 * float(row["goodput_rate"]),
    ),
    *(
        Group(
            ("pace_forget",),
            f"% late, {policy}, {SHARED_QPS:g}/s on a machine whose steps take 1.5 x half of the time",
            lambda lab, seed, policy=policy: lab.tiers(policy, SHARED_QPS, seed, cost="llama3-8b-a100-shared"),  # type: ignore[misc]
            _late,
        )
        for policy in ("qoserve", "fit")
    ),
    Group(
        ("pace_forget",),
        f"% late, fit, {QPS:g}/s, step times noisy by 15 %",
        lambda lab, seed: lab.tiers("fit", QPS, seed, step_noise=0.15),
        _late,
    ),
    Group(
        ("ttft_unknown_s",),
        f"% late, fit, {UNKNOWN_QPS:g}/s, a fifth without SLO",
        _without_slo,
        _late,
    ),
    Group(
        ("ttft_unknown_s",),
        f"mean s to the first token of those without, fit, {UNKNOWN_QPS:g}/s",
        _without_slo,
        _waits_without,
    ),
    Group(
        ("decode_step_s",),
        f"% late, fit, {START_QPS:g}/s, from nothing known, batch tiers due in 20 and 40 s",
        _start,
        _late,
    ),
    Group(
        RELEGATED,
        f"% late, fit with projection, {PROJECTED_QPS:g}/s, batch tiers due in 75 and 225 s",
        _projected,
        _late,
    ),
    Group(RELEGATED, f"% of important late, fit with projection, {PROJECTED_QPS:g}/s", _projected, _late_important),
)


def values_of(name: str) -> tuple[float, ...]:
    """Returns half, the default, and twice; whole numbers stay whole. For the weight of the past, what a step forgets
    is halved and doubled."""
    default = getattr(ServeConfig(), name)
    if name == "pace_forget":
        return tuple(round(1 - (1 - default) * factor, 9) for factor in FACTORS)
    return tuple(max(1, round(default * f)) if isinstance(default, int) else default * f for f in FACTORS)


def one(lab: Lab, group: Group, name: str) -> Ablation:
    values, seeds = values_of(name), lab.scale.ablation_seeds
    wanted = [_with(group.point(lab, seed), {} if v == values[1] else {name: v}) for v in values for seed in seeds]
    rows = [group.of(row) for row in lab.runs(wanted)]
    found = [rows[n * len(seeds) : (n + 1) * len(seeds)] for n in range(len(values))]
    seconds = f"{group.point(lab, 0).seconds:g} s, seeds {', '.join(map(str, seeds))}"
    results = tuple(fmean(of) for of in found)
    return Ablation(name, group.measure, float(values[1]), values, results, seconds, errors_of(found))


def _with(point: Point, serve: dict[str, Any]) -> Point:
    settings = msgspec.structs.replace(point.settings, serve={**point.settings.serve, **serve})
    return msgspec.structs.replace(point, settings=settings)


def errors_of(found: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Computes the errors from results by seed; the middle one is the default."""
    default = found[1]
    if len(default) < 2:
        return ()
    apart = [default if rows is default else [a - b for a, b in zip(rows, default, strict=True)] for rows in found]
    return tuple(stdev(rows) / len(rows) ** 0.5 for rows in apart)


def measure(lab: Lab, path: Path) -> list[Ablation]:
    """Measures each ablation; writes it as it finishes."""
    found: list[Ablation] = []
    for group in GROUPS:
        for name in group.names:
            found.append(one(lab, group, name))
            path.write_text(json.dumps(msgspec.to_builtins(found), indent=1) + "\n")
    return found


def missing(found: Sequence[Ablation]) -> list[str]:
    """Returns what was not measured, as `name` (measure)."""
    have = {(a.name, a.measure) for a in found}
    return [f"`{name}` ({g.measure})" for g in GROUPS for name in g.names if (name, g.measure) not in have]


def load(path: Path) -> list[Ablation]:
    if not path.exists():
        return []
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Ablation])
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: holds no ablations ({error}); measure them with --ablations FILE") from error
