"""Decides whether a request's reused KV is fetched or computed again.

Reuse saves computing where the network brings it in time. Where it does not, the request is faster without: a port that
many read from owes more than a deadline leaves. The backlog decides. The request's bytes over the port's rate, which is
all that an engine knows by itself, say next to nothing (docs/results/outlook.md).
"""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple

EXTRA_SHARE = 0.25
"""The most of a request's time limit that computing again may take. That time is lost to later requests: without a
bound an engine near its limit computes again until all are late (docs/results/outlook.md)."""


class ReuseRule(Enum):
    """When reuse is computed again although it could be fetched."""

    ALWAYS = "always"
    """Never: it is always fetched."""
    SLO = "slo"
    """If the request would be late with it and in time without, and computing again takes little of its time limit."""
    COST = "cost"
    """If the request gains more time than computing again takes from all requests that wait for the engine."""


class Choice(Enum):
    FETCH = "fetch"
    RECOMPUTE = "recompute"
    PART = "part"
    """Fetch the first part, which arrives before the engine could begin, and compute the rest again."""
    WAIT = "wait"
    """Ask again later. The engine is busy for that long, so computing again would begin no later. Only simulated: it
    lost points, and no live engine waits."""


class Reason(Enum):
    """Why, as a short clause. A closed set, since a metric has them as labels."""

    NO_RULE = "reuse is always fetched"
    KEPT_ELSEWHERE = "another instance keeps it until it is read"
    NOTHING_MEASURED = "no step has been measured yet"
    BACKLOG_UNKNOWN = "the network's backlog is unknown"
    NO_TIME = "the estimate is no time"
    NO_DEADLINE = "the request has no deadline"
    IN_TIME = "in time with the reuse"
    LATE_EITHER_WAY = "late either way"
    TAKES_TOO_MUCH = "computing it again takes too much of the engine"
    COSTS_MORE = "computing it again costs more than it gains"
    LATE_WITH_IT = "late with the reuse, in time without"
    GAINS_MORE = "computing it again gains more than it costs"
    OUTLIVES_LEASE = "the load would outlive its lease"
    ENGINE_BUSY = "the engine is busy, and the backlog may shrink"

    @property
    def label(self) -> str:
        return self.name.lower()


REASONS_AGAIN = (Reason.LATE_WITH_IT, Reason.GAINS_MORE, Reason.OUTLIVES_LEASE)
"""Reasons to compute reuse, or a part of it, again. ENGINE_BUSY decides later; for all others it is fetched."""


class ReuseView(NamedTuple):
    """What is known at the decision. Times are seconds from now."""

    fetch_s: float | None
    """Until all of the KV would be here, including the bytes that go before it. None: unknown."""
    queue_s: float
    """Until the engine could begin the prompt."""
    rest_s: float
    """Duration of the prefill with the reuse."""
    whole_s: float
    """Duration of the prefill without it."""
    left_s: float | None
    """Until the first token is due; negative when that is past. None: no deadline."""
    limit_s: float | None = None
    """From the request's arrival until its first token is due. None: no deadline."""
    waiting: int = 0
    """Number of other requests that wait for the engine. A longer prefill delays each of them."""
    before_s: float | None = None
    """Until the first bytes of the KV would be here, as part of `fetch_s`. None: it is fetched whole or not at all."""
    lease_s: float | None = None
    """How long the store keeps the KV for its reader: a longer load fails, maybe with its request. None: no limit."""


class Decision(NamedTuple):
    choice: Choice
    reason: Reason
    fetched_s: float | None = None
    """When the prefill would end with the reuse."""
    recomputed_s: float | None = None
    """When it would end without the reuse, or with the part that is here before the engine could begin."""
    share: float = 0.0
    """That part, as a share of the reuse. Only PART fetches it."""


def decide(rule: ReuseRule, view: ReuseView, recheck_s: float = 0.0, extra_share: float = EXTRA_SHARE) -> Decision:
    """Applies the rule.

    Unknown or impossible times count as no knowledge: then reuse is fetched, as without a rule. `recheck_s` is how long
    a request may wait for a later answer while its engine is busy. 0: it never waits, as in a live engine.
    """
    if rule is ReuseRule.ALWAYS:
        return Decision(Choice.FETCH, Reason.NO_RULE)
    if view.fetch_s is None:
        return Decision(Choice.FETCH, Reason.BACKLOG_UNKNOWN)
    if not _possible(view):
        return Decision(Choice.FETCH, Reason.NO_TIME)
    share = _share_in_the_queue(view, view.fetch_s)
    extra_s = (1 - share) * (view.whole_s - view.rest_s)
    fetched_s = max(view.queue_s, view.fetch_s) + view.rest_s
    recomputed_s = view.queue_s + view.whole_s - share * (view.whole_s - view.rest_s)
    if view.lease_s is not None and view.fetch_s > view.lease_s:
        choice, reason = Choice.RECOMPUTE, Reason.OUTLIVES_LEASE
    elif rule is ReuseRule.SLO:
        choice, reason = _by_deadline(fetched_s, recomputed_s, extra_s, view, extra_share)
    else:
        choice, reason = _by_cost(fetched_s, recomputed_s, extra_s, view)
    if choice is Choice.RECOMPUTE and _may_wait(view, recomputed_s, recheck_s):
        choice, reason = Choice.WAIT, Reason.ENGINE_BUSY
    elif choice is Choice.RECOMPUTE and share > 0:
        choice = Choice.PART
    return Decision(choice, reason, fetched_s, recomputed_s, share)


def _share_in_the_queue(view: ReuseView, fetch_s: float) -> float:
    """The share of the reuse that is here before the engine could begin: it costs no time.

    The prompt would have to wait for more, which pays only where all of it is fetched.
    """
    until_s = view.queue_s if view.lease_s is None else min(view.queue_s, view.lease_s)
    if view.before_s is None or not view.before_s < until_s < fetch_s:
        return 0.0
    return (until_s - view.before_s) / (fetch_s - view.before_s)


def _possible(view: ReuseView) -> bool:
    times = (view.fetch_s, view.queue_s, view.rest_s, view.whole_s)
    if not all(time is not None and math.isfinite(time) and time >= 0 for time in times):
        return False
    if view.before_s is not None and not (math.isfinite(view.before_s) and view.before_s >= 0):
        return False
    return all(time is None or math.isfinite(time) for time in (view.left_s, view.limit_s, view.lease_s))


def _by_deadline(
    fetched_s: float, recomputed_s: float, extra_s: float, view: ReuseView, extra_share: float
) -> tuple[Choice, Reason]:
    if view.left_s is None or view.limit_s is None:
        return Choice.FETCH, Reason.NO_DEADLINE
    if fetched_s <= view.left_s:
        return Choice.FETCH, Reason.IN_TIME
    if recomputed_s > view.left_s:
        return Choice.FETCH, Reason.LATE_EITHER_WAY
    if extra_s > extra_share * view.limit_s:
        return Choice.FETCH, Reason.TAKES_TOO_MUCH
    return Choice.RECOMPUTE, Reason.LATE_WITH_IT


def _by_cost(fetched_s: float, recomputed_s: float, extra_s: float, view: ReuseView) -> tuple[Choice, Reason]:
    gained_s = fetched_s - recomputed_s
    taken_s = extra_s * (1 + view.waiting)
    if gained_s <= max(0.0, taken_s):
        return Choice.FETCH, Reason.COSTS_MORE
    return Choice.RECOMPUTE, Reason.GAINS_MORE


def _may_wait(view: ReuseView, recomputed_s: float, recheck_s: float) -> bool:
    """Whether a later answer loses nothing: the engine is busy until then, and without the reuse the request would
    still be as much in time as now."""
    return 0 < recheck_s <= view.queue_s and (view.left_s is None or recomputed_s <= view.left_s)
