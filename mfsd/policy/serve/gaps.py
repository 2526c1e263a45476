"""Predicts the time until a program's next turn, from earlier gaps of the same kind and the time waited so far.

The name of what runs (a tool) is read from the output that asked for it; its duration is not known. The prediction is a
quantile of the time left, given that the gap has not ended yet. A script that takes twenty seconds is due soon after
nineteen; a person who has not answered for a minute will hardly do so in the next.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import Final

WINDOW: Final = 256
"""Latest gaps that are remembered for each name."""
FEWEST: Final = 8
"""Gaps of a name from which on they say more than all gaps together."""
QUANTILE: Final = 0.5
NAMES_MAX: Final = 1024


class GapHistory:
    """Gaps by name, each by time and by size. Names beyond NAMES_MAX only count among all gaps."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[deque[float], list[float]]] = {}
        self._all: tuple[deque[float], list[float]] = (deque(), [])

    def ended(self, name: str, gap_s: float) -> None:
        """Records a gap. Infinite: the program was forgotten without coming back."""
        if math.isnan(gap_s) or gap_s < 0:
            return
        if name not in self._of and len(self._of) < NAMES_MAX:
            self._of[name] = (deque(), [])
        kept = [self._all, self._of[name]] if name in self._of else [self._all]
        for latest, ordered in kept:
            if len(latest) >= WINDOW:
                del ordered[bisect_left(ordered, latest.popleft())]
            latest.append(gap_s)
            insort(ordered, gap_s)

    def remaining_s(self, name: str, age_s: float, quantile: float = QUANTILE) -> float:
        """Time until the gap ends, now that it has lasted for age_s. Infinite if none has lasted as long.

        With nothing seen it is age_s: what has just begun ends first, which is least recently used.
        """
        ordered = self._of[name][1] if name in self._of else []
        if len(ordered) < FEWEST:
            ordered = self._all[1]
        if not ordered:
            return age_s
        first = bisect_right(ordered, age_s)
        left = len(ordered) - first
        if left == 0:
            return math.inf
        return ordered[first + min(left - 1, max(0, math.ceil(quantile * left) - 1))] - age_s
