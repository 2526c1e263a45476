"""How long until a program's next turn: from how long what it waits for took before, and how long it has waited.

The name of what runs is read from the output that asked for it (a tool); how long it takes is not known. What is
predicted is a quantile of what is left, given that it has not come yet: a script that takes twenty seconds is due soon
after nineteen, a person who has not answered for a minute will hardly do so in the next.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import Final

WINDOW: Final = 256
"""Gaps remembered of each name, the latest."""
FEWEST: Final = 8
"""Of a name, from which on they say more than all gaps together."""
QUANTILE: Final = 0.5
NAMES_MAX: Final = 1024


class GapHistory:
    """Gaps by name, each in the order of time and of size. Names beyond NAMES_MAX count among all alone."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[deque[float], list[float]]] = {}
        self._all: tuple[deque[float], list[float]] = (deque(), [])

    def ended(self, name: str, gap_s: float) -> None:
        """A gap has ended; infinite: the program was forgotten without coming back."""
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
        """Until it ends, now that it has lasted for age_s; infinite when none has lasted as long. With nothing seen, as
        long as it has lasted: what has just begun ends first, which is least recently used."""
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
