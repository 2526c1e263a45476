"""The one estimator of transfer times, effective bandwidth and bytes ahead.

Promotion, feasibility, pruning and explanations all use these functions, so they cannot disagree about how
long bytes take. A result in nanoseconds is an integer and the same on every machine: sizes and rates are
integers, and where a real number enters (rho, a threshold) each step is one correctly rounded IEEE operation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from mfsd.policy.config import PolicyConfig, Variant
from mfsd.policy.types import NS_PER_S, Tier


def transfer_ns(size_bytes: int, rate_bytes_per_s: int) -> int:
    """Time that `size_bytes` take alone at that rate, rounded up (ns). The rate must be at least 1."""
    return -(-size_bytes * NS_PER_S // rate_bytes_per_s)


def effective_rate_bytes_per_s(rate_bytes_per_s: int, rho: float, rho_max: float) -> int:
    """B (1 - rho), what load leaves of a port (paper 4.3), rounded down, at least 1.

    rho is clipped to 0..rho_max; a load that is not a number counts as none.
    """
    clipped = min(rho, rho_max) if rho > 0.0 else 0.0
    return max(1, math.floor(rate_bytes_per_s * (1.0 - clipped)))


class Load(msgspec.Struct, frozen=True):
    """Measured load rho of one port: an exponential moving average, as a share of its rate (design)."""

    rho: float = 0.0

    def observe(self, served_bytes: int, elapsed_ns: int, rate_bytes_per_s: int, config: PolicyConfig) -> Load:
        """The load after `served_bytes` that count (`counts_as_load`) left in the last `elapsed_ns`.

        A moment of no length changes nothing: its bytes belong in the next call. One long interval and
        several short ones at the same rate give the same result, so the time between looks does not matter.
        """
        if elapsed_ns <= 0:
            return self
        share = served_bytes * NS_PER_S / (rate_bytes_per_s * elapsed_ns)
        weight = -math.expm1(-elapsed_ns / config.load_time_constant_ns)
        return Load(self.rho + weight * (share - self.rho))


def bottleneck_rho(loads: Iterable[Load]) -> float:
    """rho of a flow over several ports: that of the busiest (design). 0 without ports."""
    return max((load.rho for load in loads), default=0.0)


def counts_as_load(tier: Tier, config: PolicyConfig) -> bool:
    """Whether bytes served from this tier count in the rho that last-stage flows see.

    rho is the traffic that goes before them (design). In variant mfs the class-0 traffic does not count: it
    is there because promotion put it there, and counting it makes promotion feed itself.
    """
    if tier is Tier.CRITICAL:
        return config.variant is Variant.PAPER
    return tier is Tier.EARLY


def bytes_ahead(key: tuple[int, ...], queued: Iterable[tuple[tuple[int, ...], int]]) -> int:
    """Bytes that go before `key` among `queued`, pairs of (order key, bytes) (design)."""
    return sum(size for other, size in queued if other < key)


def overlapped_finish_ns(
    now_ns: int, compute_end_ns: int, remaining_bytes: int, tail_bytes: int, rate_bytes_per_s: int
) -> int:
    """Earliest finish of a request that ships KV while it still computes (design).

    remaining_bytes: everything it still has to ship, produced or not. tail_bytes: the part that exists only
    once compute has ended (the last layer's). Either the link is busy from now on, or it waits for the tail.
    """
    tail_bytes = min(tail_bytes, remaining_bytes)
    return max(
        now_ns + transfer_ns(remaining_bytes, rate_bytes_per_s),
        compute_end_ns + transfer_ns(tail_bytes, rate_bytes_per_s),
    )
