"""Rules by failure pattern (H-MAS C.2): the default strategy, and the fallback of every other."""

from __future__ import annotations

from typing import Final

from mfsd.policy.serve.config import Policy
from mfsd.policy.serve.meta.config import MetaConfig
from mfsd.policy.serve.meta.view import Views

BY_OUTPUT: Final = frozenset({Policy.TWO_LANE, Policy.SJF, Policy.SRTF})
"""Orders that go by expected outputs, and so do not suit unknown requests."""


SHORT_FIRST: Final = (Policy.SRPF, Policy.TWO_LANE, Policy.HYBRID, Policy.EDF)
"""What helps where some must be late: shortest prompt first had the most in time in seven of nine simulated regimes."""


def allowed(config: MetaConfig, views: Views) -> tuple[Policy, ...]:
    """The pool without the orders that unknown requests rule out. Never empty."""
    if views.long.unknown_share <= config.unknown_max:
        return config.pool
    return tuple(p for p in config.pool if p not in BY_OUTPUT) or config.pool


def first_of(wanted: tuple[Policy, ...], pool: tuple[Policy, ...], otherwise: Policy) -> Policy:
    """The first of `wanted` that the pool has, else `otherwise`, else the pool's first."""
    return next((p for p in (*wanted, otherwise) if p in pool), pool[0])


def choose(config: MetaConfig, views: Views, now: Policy) -> tuple[Policy, str]:
    """Returns the order, and why."""
    pool, long = allowed(config, views), views.long
    if long.evaluated < config.requests_min:
        return first_of((now,), pool, now), "too few requests to say"
    if long.late_share <= config.late_share:
        return first_of((now,), pool, now), "nothing is wrong"
    if long.tenant_worst > config.unfairness * max(long.tenant_others, config.late_share):
        return first_of((Policy.WFQ, Policy.STRIDE, Policy.CFS), pool, now), "one tenant is late far more than others"
    if long.late_short > config.blocking * long.late_long:
        pattern = "long requests block short ones"
    elif views.load >= config.overload:
        pattern = "more is queued than can be in time"
    else:
        pattern = "deadlines are missed without a queue"
    return first_of(SHORT_FIRST, pool, now), pattern
