"""The only estimator of transfer times and bytes ahead.

Feasibility, pruning and explanations all use these functions, so they cannot disagree about how long bytes take.
Results in nanoseconds are integers and the same on every machine, since sizes and rates are integers.
"""

from __future__ import annotations

from collections.abc import Iterable

from mfsd.policy.types import NS_PER_S


def transfer_ns(size_bytes: int, rate_bytes_per_s: int) -> int:
    """The time that `size_bytes` alone take at that rate, in nanoseconds, rounded up. The rate must be at least 1."""
    return -(-size_bytes * NS_PER_S // rate_bytes_per_s)


def bytes_ahead(key: tuple[int, ...], queued: Iterable[tuple[tuple[int, ...], int]]) -> int:
    """The bytes in `queued`, pairs of (order key, bytes), that go before `key` (design)."""
    return sum(size for other, size in queued if other < key)


def overlapped_finish_ns(
    now_ns: int, compute_end_ns: int, remaining_bytes: int, tail_bytes: int, rate_bytes_per_s: int
) -> int:
    """The earliest finish of a request that ships KV while it still computes (design).

    `remaining_bytes` is everything it still has to ship, produced or not. `tail_bytes` is the part that exists only
    once compute has ended (the last layer's). Either the link is busy from now on, or it waits for the tail.
    """
    tail_bytes = min(tail_bytes, remaining_bytes)
    return max(
        now_ns + transfer_ns(remaining_bytes, rate_bytes_per_s),
        compute_end_ns + transfer_ns(tail_bytes, rate_bytes_per_s),
    )
