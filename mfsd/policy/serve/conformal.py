"""A bound on the output of a request that holds for all but a small share: split conformal prediction by prompt length.

H-MAS Eq 4 and algorithm 2; Maestro's bounds for memory are the same. Lengths are predicted badly, but a bound holds
however badly: it adds the (1 - epsilon) quantile of the latest errors, kept apart for short and long prompts.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from typing import Final

BUCKETS: Final = 8
WINDOW: Final = 512
EPSILON: Final = 0.05
SHORTEST_TOKENS: Final = 256
"""Longest prompt of the first bucket. Each further bucket doubles it."""


def bucket_of(num_prompt_tokens: int, buckets: int = BUCKETS) -> int:
    return min(buckets - 1, max(0, (max(1, num_prompt_tokens) - 1) // SHORTEST_TOKENS).bit_length())


class LengthBounds:
    """Errors of the latest requests by bucket, each by time and by size."""

    def __init__(self, epsilon: float = EPSILON, window: int = WINDOW, buckets: int = BUCKETS) -> None:
        if not 0 < epsilon < 1:
            raise ValueError(f"epsilon is {epsilon}: use a share above 0 and below 1")
        self._epsilon, self._window = epsilon, window
        self._latest: list[deque[float]] = [deque() for _ in range(buckets)]
        self._sorted: list[list[float]] = [[] for _ in range(buckets)]

    def ended(self, num_prompt_tokens: int, predicted: float, produced: int) -> None:
        """Records the end of a request. Do not call it for a forced end (cancelled, cut by its own limit)."""
        error = produced - predicted
        if not math.isfinite(error):
            return
        bucket = bucket_of(num_prompt_tokens, len(self._latest))
        latest, ordered = self._latest[bucket], self._sorted[bucket]
        if len(latest) >= self._window:
            del ordered[bisect_left(ordered, latest.popleft())]
        latest.append(error)
        insort(ordered, error)

    def bound(self, num_prompt_tokens: int, predicted: float, limit: float) -> float:
        """Upper bound on the output: at least 1, at most `limit`, the request's own.

        It is the limit itself while too little was seen for the share that may exceed it: ceil((n + 1)(1 - epsilon)) of
        n.
        """
        ordered = self._sorted[bucket_of(num_prompt_tokens, len(self._sorted))]
        rank = math.ceil((len(ordered) + 1) * (1 - self._epsilon))
        if rank > len(ordered):
            return limit
        return min(limit, max(1.0, predicted + ordered[rank - 1]))
