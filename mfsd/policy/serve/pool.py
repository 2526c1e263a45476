"""The pool of orders (H-MAS 3.5, appendix C.2). Any of them can take over between two steps.

An order is rebuilt from the requests that wait, so nothing is lost. What it remembers beyond them (whom a fair share
has served) is in the Book. The Book starts afresh with each change of the order, as a new epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from mfsd.policy.serve import keys, lanes
from mfsd.policy.serve.config import Policy, ServeConfig
from mfsd.policy.serve.fit import Chosen
from mfsd.policy.serve.programs import attained_s, queue_of
from mfsd.policy.serve.view import Request

FAIR = frozenset({Policy.WFQ, Policy.STRIDE, Policy.LOTTERY, Policy.CFS, Policy.RR})


class Book(msgspec.Struct, frozen=True):
    """What an order remembers."""

    policy: Policy | None = None
    epoch: int = 0
    served: dict[str, float] = {}
    """Tenant -> where its next request starts in virtual time. Has tenants that wait, and those that are ahead."""
    virtual: float = 0.0
    """Virtual time: where the latest request started. A new tenant starts there, without credit."""
    fast_tokens: float = 0.0
    slow_tokens: float = 0.0


class Now(NamedTuple):
    """What orders may use besides the requests."""

    step: int
    prefill_s_per_token: float
    decode_step_s: float
    lane_cut_s: float | None


def rebuilt(book: Book, policy: Policy) -> Book:
    return book if book.policy is policy else Book(policy, book.epoch + 1)


def order(config: ServeConfig, book: Book, requests: Sequence[Request], now: Now) -> Iterable[Request]:
    """Sorts requests, which come in the order of their numbers, by the policy. Equal ones keep their order."""
    policy = config.policy
    if policy in FAIR:
        return _shared(config, book, requests, now)
    if policy is Policy.TWO_LANE:
        fast, slow = _split(config, requests, now)
        return lanes.merge(fast, slow, config.lane_weight, book.fast_tokens, book.slow_tokens)
    return by_key(requests, _keys(config, requests, now))


def by_key(requests: Sequence[Request], values: Sequence[float]) -> list[Request]:
    return [requests[i] for i in sorted(range(len(requests)), key=values.__getitem__)]


def _keys(config: ServeConfig, requests: Sequence[Request], now: Now) -> list[float]:
    each, decode = now.prefill_s_per_token, now.decode_step_s
    match config.policy:
        case Policy.FCFS:
            return [r.arrival_s for r in requests]
        case Policy.LLF:
            return [keys.slack_s(r, each) for r in requests]
        case Policy.SJF:
            return [keys.service_s(r, each, decode) for r in requests]
        case Policy.SRTF:
            return [keys.left_s(r, each, decode) for r in requests]
        case Policy.SRPF:
            return [float(r.num_prompt_tokens - r.num_computed_tokens) for r in requests]
        case Policy.HYBRID:
            queued_s = each * sum(r.prefill_left for r in requests)
            return keys.hybrid(requests, keys.alpha_s(config, queued_s, keys.tightest_budget_s(requests)))
        case Policy.MLFQ:
            return [float(queue_of(config, r)) for r in requests]
        case Policy.LAS:
            return [attained_s(r) for r in requests]
        case Policy.PRIORITY:
            return [float(-r.importance) for r in requests]
        case _:  # EDF, FIT
            return [r.due_s for r in requests]


def _split(config: ServeConfig, requests: Sequence[Request], now: Now) -> tuple[list[Request], list[Request]]:
    """Fast and slow lane, each by the hybrid key.

    H-MAS' urgency (Eq 5) alone would under overload serve what is about to be late anyway, so that one request after
    the other ends a little late.
    """
    queued_s = now.prefill_s_per_token * sum(r.prefill_left for r in requests)
    alpha = keys.alpha_s(config, queued_s, keys.tightest_budget_s(requests))
    fast = [r for r in requests if _is_fast(r, now)]
    slow = [r for r in requests if not _is_fast(r, now)]
    return by_key(fast, keys.hybrid(fast, alpha)), by_key(slow, keys.hybrid(slow, alpha))


def _is_fast(request: Request, now: Now) -> bool:
    cut = now.lane_cut_s
    return cut is None or keys.service_s(request, now.prefill_s_per_token, now.decode_step_s) <= cut


def _shared(config: ServeConfig, book: Book, requests: Sequence[Request], now: Now) -> Iterator[Request]:
    """Fair shares between tenants, first come first served within each."""
    queues: dict[str, list[Request]] = {}
    for r in requests:
        queues.setdefault(r.tenant, []).append(r)
    start = {tenant: book.served.get(tenant, book.virtual) for tenant in queues}
    at = dict.fromkeys(queues, 0)
    draw = 0
    while queues:
        if config.policy is Policy.LOTTERY:
            draw += 1
            tenant = _drawn(queues, at, _mixed(config.lottery_seed, now.step, draw))
        else:
            tenant = min(queues, key=lambda t: (_tag(config, start[t], queues[t][at[t]], now), t))
        head = queues[tenant][at[tenant]]
        yield head
        start[tenant] += _price(config, head, head.prefill_left, now)
        at[tenant] += 1
        if at[tenant] == len(queues[tenant]):
            del queues[tenant]


def _price(config: ServeConfig, request: Request, tokens: int, now: Now) -> float:
    """What these tokens cost the tenant: virtual tokens, seconds for cfs, a turn for rr."""
    if config.policy is Policy.RR:
        return 1.0
    if config.policy is Policy.CFS:
        return tokens * now.prefill_s_per_token / request.weight
    return tokens / request.weight


def _tag(config: ServeConfig, start: float, head: Request, now: Now) -> float:
    """wfq goes by where the request would end, all others by where it starts."""
    return start + _price(config, head, head.prefill_left, now) if config.policy is Policy.WFQ else start


def _mixed(seed: int, step: int, draw: int) -> float:
    """A share in [0, 1) that depends only on the arguments: splitmix64's finaliser."""
    x = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + draw * 0x94D049BB133111EB) & (2**64 - 1)
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (x ^ (x >> 31)) / 2**64


def _drawn(queues: dict[str, list[Request]], at: dict[str, int], share: float) -> str:
    """The tenant with the drawn ticket. A tenant has as many tickets as weight."""
    tenants = sorted(queues)
    left = share * sum(queues[t][at[t]].weight for t in tenants)
    for tenant in tenants:
        left -= queues[tenant][at[tenant]].weight
        if left < 0:
            return tenant
    return tenants[-1]


def charged(config: ServeConfig, book: Book, requests: Sequence[Request], chosen: Sequence[Chosen], now: Now) -> Book:
    """The book after a step. Counts what was really served, not what was considered. `requests`: all that waited."""
    if config.policy is Policy.TWO_LANE:
        fast = sum(c.tokens for c in chosen if _is_fast(c.request, now))
        slow = sum(c.tokens for c in chosen) - fast
        lanes_of = [_is_fast(r, now) for r in requests]
        waits = (any(lanes_of), not all(lanes_of))
        pair = lanes.charged(config.lane_weight, (book.fast_tokens, book.slow_tokens), (fast, slow), waits)
        return msgspec.structs.replace(book, fast_tokens=pair[0], slow_tokens=pair[1])
    if config.policy not in FAIR or config.policy is Policy.LOTTERY:
        return book
    waiting = {r.tenant for r in requests}
    served = {t: book.served.get(t, book.virtual) for t in sorted(waiting | set(book.served))}
    virtual = book.virtual
    for c in chosen:
        begin = served[c.request.tenant]
        virtual = max(virtual, begin)
        served[c.request.tenant] = begin + _price(config, c.request, c.tokens, now)
    kept = {tenant: at for tenant, at in served.items() if tenant in waiting or at > virtual}
    return msgspec.structs.replace(book, served=kept, virtual=virtual)
