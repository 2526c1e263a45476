"""What a paired comparison shows: the median of the pairs and how far it is known."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

CONFIDENCE = 0.95


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Two of the values between which the median of the population lies with at least 95 %: order statistics, which
    assume no distribution, only that the values do not depend on each other. The lowest and the highest of too few."""
    ordered, n = sorted(values), len(values)
    # So many values as of n fair coins show heads lie below the median: it is between the k-th from each end unless at
    # most k show heads, or at most k tails.
    half = statistics.NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * math.sqrt(n) / 2
    k = max(0, math.floor(n / 2 - half) - 1)
    return ordered[k], ordered[n - 1 - k]
