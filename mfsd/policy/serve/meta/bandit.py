"""A contextual bandit, LinUCB (Li et al. 2010): picks the order whose gain, as far as it is known, may be the largest.

Each order has the inverse of its design matrix and its reward vector, updated by Sherman and Morrison. That takes
twenty lines, no imports, no random numbers, and its state is readable as JSON. The gain is the share of requests that
ended in time since the previous decision.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from mfsd.policy.serve.config import Policy
from mfsd.policy.serve.meta import rules, table
from mfsd.policy.serve.meta.config import MetaConfig
from mfsd.policy.serve.meta.view import Views


class Arm(msgspec.Struct, frozen=True):
    inverse: tuple[tuple[float, ...], ...]
    reward: tuple[float, ...]


class Pulled(msgspec.Struct, frozen=True):
    """The latest choice. Its gain is not known yet."""

    policy: Policy
    context: tuple[float, ...]


class Chosen(NamedTuple):
    policy: Policy
    reason: str
    pulled: Pulled | None


def context_of(views: Views) -> tuple[float, ...]:
    return (1.0, *table.features(views))


def choose(config: MetaConfig, views: Views, now: Policy, arms: dict[str, Arm]) -> Chosen:
    pool = rules.allowed(config, views)
    if views.long.evaluated < config.requests_min:
        return Chosen(rules.first_of((now,), pool, now), "too few requests to say", None)
    context = context_of(views)
    best = max(pool, key=lambda p: (_bound(arms.get(p.value), context, config.exploration), p is now))
    return Chosen(best, "largest bound on its gain", Pulled(best, context))


def _bound(arm: Arm | None, context: tuple[float, ...], exploration: float) -> float:
    known = arm or fresh(len(context))
    weighted = _times(known.inverse, context)
    mean = _dot(_times(known.inverse, known.reward), context)
    return mean + exploration * math.sqrt(max(0.0, _dot(weighted, context)))


def learned(arms: dict[str, Arm], pulled: Pulled, gain: float) -> dict[str, Arm]:
    x = pulled.context
    arm = arms.get(pulled.policy.value) or fresh(len(x))
    ax = _times(arm.inverse, x)
    scale = 1.0 + _dot(ax, x)
    inverse = tuple(
        tuple(value - ax[i] * ax[j] / scale for j, value in enumerate(row)) for i, row in enumerate(arm.inverse)
    )
    reward = tuple(b + gain * v for b, v in zip(arm.reward, x, strict=True))
    return {**arms, pulled.policy.value: Arm(inverse, reward)}


def fresh(size: int) -> Arm:
    return Arm(tuple(tuple(float(i == j) for j in range(size)) for i in range(size)), (0.0,) * size)


def _times(matrix: tuple[tuple[float, ...], ...], vector: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(_dot(row, vector) for row in matrix)


def _dot(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
