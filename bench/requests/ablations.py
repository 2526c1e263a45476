"""Every default that no paper gives, halved and doubled: what late requests, or a program's latency, become.

On seeds of its own, which neither the claims nor the choice of the defaults use. A number of tiers is judged twice: at
a load that the policy carries, where it should change nothing, and beyond it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.requests.errors import UsageError
from bench.requests.lab import Lab
from bench.requests.point import Point
from mfsd.policy.serve import ServeConfig

FACTORS = (0.5, 1.0, 2.0)
QPS, OVERLOAD_QPS = 4.4, 5.0
"""Of the tiers: near what `qoserve` carries on Azure code, and beyond."""
CHAT_QPS, DRIFT_QPS = 1.2, 4.0

TIERS = (
    "pace_margin", "chunk_min", "chunk_block", "load_low", "load_high", "overdue_budgets", "overdue_every", "skips_max",
)  # fmt: skip
PROGRAMS = ("queue_first_s", "queues", "starvation_ratio")
DRIFT = ("kv_margin", "step_target_s", "decode_tokens_gain", "requests_gain", "regulate_window", "lane_weight")


class Ablation(msgspec.Struct, frozen=True):
    """One number: what came out with half of it, with the default, and with twice as much."""

    name: str
    measure: str
    default: float
    values: tuple[float, ...]
    results: tuple[float, ...]
    scale: str = ""
    """How long the runs were and on which seeds."""


class Group(NamedTuple):
    """Numbers that are judged on the same point."""

    names: tuple[str, ...]
    measure: str
    point: Callable[[Lab, int], Point]
    of: Callable[[dict[str, Any]], float]


def _late(row: dict[str, Any]) -> float:
    return 100 * float(row["violations"]["all"])


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
)


def values_of(name: str) -> tuple[float, ...]:
    """Half, the default, and twice; whole numbers stay whole."""
    default = getattr(ServeConfig(), name)
    return tuple(max(1, round(default * f)) if isinstance(default, int) else default * f for f in FACTORS)


def one(lab: Lab, group: Group, name: str) -> Ablation:
    results = []
    for value in values_of(name):
        rows = []
        for seed in lab.scale.ablation_seeds:
            point = group.point(lab, seed)
            serve = {} if value == values_of(name)[1] else {name: value}
            settings = msgspec.structs.replace(point.settings, serve=serve)
            rows.append(group.of(lab.run(msgspec.structs.replace(point, settings=settings))))
        results.append(sum(rows) / len(rows))
    seconds = f"{group.point(lab, 0).seconds:g} s, seeds {', '.join(map(str, lab.scale.ablation_seeds))}"
    return Ablation(name, group.measure, float(values_of(name)[1]), values_of(name), tuple(results), seconds)


def measure(lab: Lab, path: Path) -> list[Ablation]:
    """Each ablation, written as it finishes."""
    found: list[Ablation] = []
    for group in GROUPS:
        for name in group.names:
            found.append(one(lab, group, name))
            path.write_text(json.dumps(msgspec.to_builtins(found), indent=1) + "\n")
    return found


def missing(found: Sequence[Ablation]) -> list[str]:
    """What was not measured, as `name` (measure)."""
    have = {(a.name, a.measure) for a in found}
    return [f"`{name}` ({g.measure})" for g in GROUPS for name in g.names if (name, g.measure) not in have]


def load(path: Path) -> list[Ablation]:
    if not path.exists():
        return []
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Ablation])
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: holds no ablations ({error}); measure them with --ablations FILE") from error
