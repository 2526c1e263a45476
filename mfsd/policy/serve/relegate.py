"""Sets requests aside: those that are lost in any case, and as few others as let the rest be in time.

QoServe 3.4 relegates what will be late itself. The projection walks the queue by deadline instead. Where a request
would be late, it relegates the longest of the least important requests so far (Moore and Hodgson's rule, which leaves
the fewest late), while the drop budget lasts. Only with the projection do the network's pruned requests count against
the same budget.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from typing import NamedTuple

from mfsd.policy.serve.config import Relegation, ServeConfig
from mfsd.policy.serve.pace import Alone
from mfsd.policy.serve.view import Request

_PPM = 1_000_000


class SetAside(NamedTuple):
    lost: frozenset[int]
    """Requests that would be late even alone, with all KV loaded that may be loaded. They cost no budget."""
    relegated: frozenset[int]
    drop_budget: int


NONE = SetAside(frozenset(), frozenset(), 0)


def drop_budget(config: ServeConfig, active_requests: int) -> int:
    """The share of active requests, rounded up, as for the network's pruning (mfsd.policy.pruning)."""
    return -(-active_requests * round(config.drop_budget * _PPM) // _PPM)


def set_aside(
    config: ServeConfig,
    waiting: Sequence[Request],
    active_requests: int,
    prefill_s_per_token: float,
    alone: Alone,
    now_s: float,
    before: Collection[int] = (),
    pruned: Collection[int] = (),
) -> SetAside:
    """Decides which of `waiting` to set aside.

    `waiting` has those that may be, sorted by deadline (equal ones by number). A prompt that has begun may not: what
    was spent on it would be lost.
    """
    if config.relegation is Relegation.NONE:
        return NONE
    budget = drop_budget(config, active_requests)
    from_s, each = now_s + alone.fixed_s, alone.per_token_s
    lost = frozenset(
        [
            r.request_id
            for r in waiting
            if from_s + (1 if r.may_load else r.num_prompt_tokens - r.num_computed_tokens) * each > r.due_s
            and r.num_computed_tokens <= r.num_cached_tokens
        ]
    )
    if config.relegation is Relegation.LOST:
        return SetAside(lost, frozenset(), budget)
    gone = set(pruned)
    relegated = gone & {r.request_id for r in waiting} if gone else set()
    relegated = set(sorted(relegated - lost)[:budget])
    _project(config, waiting, lost, relegated, budget, prefill_s_per_token, now_s, frozenset(before))
    return SetAside(lost, frozenset(relegated), budget)


def _project(
    config: ServeConfig,
    waiting: Sequence[Request],
    lost: frozenset[int],
    relegated: set[int],
    budget: int,
    each: float,
    now_s: float,
    before: frozenset[int],
) -> None:
    """Adds to `relegated`."""
    skip = lost | relegated
    pool: list[tuple[int, int, int]] = []  # importance, -tokens, -number: the smallest is relegated first
    end_s = now_s
    push, pop = heapq.heappush, heapq.heappop
    for r in waiting:
        number = r.request_id
        if number in skip:
            continue
        tokens, due_s = r.num_prompt_tokens - r.num_computed_tokens, r.due_s
        begun = r.num_computed_tokens > r.num_cached_tokens
        if number in before and not begun and len(relegated) < budget:
            kept = config.readmission_margin * max(0.0, due_s - now_s)
            if end_s + tokens * each > due_s - kept:
                relegated.add(number)
                continue
        end_s += tokens * each
        if not begun:
            push(pool, (r.importance, -tokens, -number))
        while end_s > due_s and pool and len(relegated) < budget:
            _, longest, victim = pop(pool)
            relegated.add(-victim)
            end_s += longest * each
