"""Robust effective deadline of a batch (paper 4.4.2, appendix B step 1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class EffectiveDeadline(NamedTuple):
    """`red_ns` orders batches; feasibility is checked against `loose_ns` (D^Lo). Both are on the caller's clock."""

    red_ns: int
    loose_ns: int
    tight: int
    """k*: the number of requests in the tight set."""


def robust_effective_deadline(deadlines_ns: Iterable[int]) -> EffectiveDeadline:
    """RED of d_1 <= ... <= d_n: k* = argmax_k (d_{k+1} - d_k), f = k*/n, RED = f d_1 + (1 - f) d_{k*+1}.

    Of equal gaps the first counts. RED is rounded down. Shifting all deadlines shifts RED by the same time. With one
    request or equal deadlines, RED = D^Lo = d_1. Raises ValueError without deadlines.
    """
    d = sorted(deadlines_ns)
    n = len(d)
    if n == 0:
        raise ValueError("a batch without requests has no deadline: give at least one")
    if d[0] == d[-1]:
        return EffectiveDeadline(d[0], d[0], n)
    k = max(range(1, n), key=lambda i: d[i] - d[i - 1])
    return EffectiveDeadline((k * d[0] + (n - k) * d[k]) // n, d[k], k)
