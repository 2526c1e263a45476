"""Detects whether the mean of a stream has changed: ADWIN (Bifet and Gavalda 2007), with buckets that double.

Written by hand, since this package imports nothing and a state must be readable as JSON. The window is the paper's; a
cut is tried at every border between buckets.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

PER_SIZE: Final = 5
"""Most buckets of one size. With one more, the two oldest become one of twice the size."""
SHORTEST: Final = 5
"""Least values on either side of a cut."""


class Window(msgspec.Struct, frozen=True):
    """Buckets as (values, sum, sum of squares), oldest first."""

    buckets: tuple[tuple[int, float, float], ...] = ()

    @property
    def mean(self) -> float:
        count = sum(b[0] for b in self.buckets)
        return sum(b[1] for b in self.buckets) / count if count else 0.0


def added(window: Window, value: float, confidence: float) -> tuple[Window, bool]:
    """Returns the window with one more value (0 to 1), and whether it was cut because its older part differs."""
    buckets = _merged([*window.buckets, (1, value, value * value)])
    cut = False
    while len(buckets) > 1 and _differs(buckets, confidence):
        del buckets[0]
        cut = True
    return Window(tuple(buckets)), cut


def _merged(buckets: list[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    size = 1
    while True:
        of = [i for i, b in enumerate(buckets) if b[0] == size]
        if len(of) <= PER_SIZE:
            return buckets
        a, b = buckets[of[0]], buckets[of[1]]
        buckets[of[0] : of[1] + 1] = [(a[0] + b[0], a[1] + b[1], a[2] + b[2])]
        size *= 2


def _differs(buckets: list[tuple[int, float, float]], confidence: float) -> bool:
    count, total = sum(b[0] for b in buckets), sum(b[1] for b in buckets)
    variance = max(0.0, sum(b[2] for b in buckets) / count - (total / count) ** 2)
    spread = math.log(2 * math.log(max(count, 3)) / confidence)
    old, old_sum = 0, 0.0
    for b in buckets[:-1]:
        old, old_sum = old + b[0], old_sum + b[1]
        new = count - old
        if old < SHORTEST or new < SHORTEST:
            continue
        each = 1 / (1 / old + 1 / new)
        bound = math.sqrt(2 / each * variance * spread) + 2 / (3 * each) * spread
        if abs(old_sum / old - (total - old_sum) / new) > bound:
            return True
    return False
