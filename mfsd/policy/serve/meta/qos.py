"""The QoS agents: take events of requests, and give views of two windows."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from mfsd.policy.serve.meta.config import MetaConfig
from mfsd.policy.serve.meta.view import LongView, ShortView, Views


class _Arrived(NamedTuple):
    at_s: float
    service_s: float
    known: bool


class _First(NamedTuple):
    """A request's first token came, or its deadline passed."""

    at_s: float
    tenant: str
    service_s: float
    late: bool


class _Timed(NamedTuple):
    at_s: float
    value: float


class Qos:
    """Windows of events. Times are the caller's and may not go back."""

    def __init__(self, config: MetaConfig) -> None:
        self._config = config
        self._arrived: deque[_Arrived] = deque()
        self._first: deque[_First] = deque()
        self._ttft: deque[_Timed] = deque()
        self._ended: deque[_Timed] = deque()
        """Value 1: tokens were late."""
        self._in_time = self._finished = 0

    def arrived(self, now_s: float, service_s: float, known: bool) -> None:
        self._arrived.append(_Arrived(now_s, service_s, known))

    def evaluated(self, now_s: float, tenant: str, service_s: float, late: bool) -> None:
        """Called once per request: when its first token comes in time, or when the deadline for it passes."""
        self._first.append(_First(now_s, tenant, service_s, late))

    def first_token(self, now_s: float, ttft_s: float) -> None:
        self._ttft.append(_Timed(now_s, ttft_s))

    def ended(self, now_s: float, in_time: bool, tokens_late: bool) -> None:
        self._ended.append(_Timed(now_s, float(tokens_late)))
        self._finished += 1
        self._in_time += in_time

    def decided(self) -> None:
        """Starts counting for the next decision."""
        self._in_time = self._finished = 0

    def views(self, now_s: float, queued_s: float = 0.0, tightest_s: float = 0.0) -> Views:
        since_s = now_s - self._config.long_s
        for events in (self._arrived, self._first, self._ttft, self._ended):
            while events and events[0].at_s < since_s:
                events.popleft()
        return Views(short=self._short(now_s), long=self._long(now_s), queued_s=queued_s, tightest_s=tightest_s)

    def _short(self, now_s: float) -> ShortView:
        since_s = now_s - self._config.short_s
        late = [one.late for one in _since(self._first, since_s)]
        ttft = sorted(one.value for one in _since(self._ttft, since_s))
        return ShortView(
            evaluated=len(late),
            late_share=_mean(late),
            ttft_p99_s=ttft[(99 * (len(ttft) - 1) + 99) // 100] if ttft else 0.0,
        )

    def _long(self, now_s: float) -> LongView:
        first, services = self._first, [one.service_s for one in self._arrived]
        mean = _mean(services)
        middle = sorted(one.service_s for one in first)[len(first) // 2] if first else 0.0
        span_s = min(self._config.long_s, now_s - self._arrived[0].at_s) if self._arrived else 0.0
        worst, others = self._tenants(middle)
        return LongView(
            arrived=len(services),
            arrivals_per_s=len(services) / span_s if span_s > 0 else 0.0,
            unknown_share=_mean([not one.known for one in self._arrived]),
            service_mean_s=mean,
            service_cv=_deviation(services, mean) / mean if mean > 0 else 0.0,
            evaluated=len(first),
            late_share=_mean([one.late for one in first]),
            late_short=_mean([one.late for one in first if one.service_s <= middle]),
            late_long=_mean([one.late for one in first if one.service_s > middle]),
            late_tokens_share=_mean([one.value > 0 for one in self._ended]),
            tenant_worst=worst,
            tenant_others=others,
            in_time_share=self._in_time / self._finished if self._finished else 0.0,
        )

    def _tenants(self, middle_s: float) -> tuple[float, float]:
        """Late share of the tenant that fares worst, and the mean of the others. 0 with fewer than two tenants.

        Of requests up to the median alone: a tenant whose requests are long is late because they are, which fair shares
        do not mend.
        """
        of: dict[str, list[bool]] = {}
        for one in self._first:
            if one.service_s <= middle_s:
                of.setdefault(one.tenant, []).append(one.late)
        shares = sorted(_mean(late) for late in of.values() if len(late) >= self._config.requests_min)
        return (shares[-1], _mean(shares[:-1])) if len(shares) > 1 else (0.0, 0.0)


def _since(events: deque, since_s: float) -> list:  # type: ignore[type-arg]
    found = []
    for one in reversed(events):
        if one.at_s < since_s:
            break
        found.append(one)
    return found


def _mean(values: Iterable[float]) -> float:
    of = list(values)
    return sum(of) / len(of) if of else 0.0


def _deviation(values: list[float], mean: float) -> float:
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
