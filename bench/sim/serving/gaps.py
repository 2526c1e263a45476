"""Programs that wait for a tool or a person, on all replicas: since when, for what, and the expected end."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import NamedTuple

from mfsd.policy.serve.gaps import GapHistory

FORGOTTEN_S = 600.0
"""A program that has not returned by then is no longer expected."""


class Gap(NamedTuple):
    since_s: float
    then: str
    replica: int
    returns_s: float
    """When the gap will end, which only hindsight knows."""


class Gaps:
    def __init__(self, hindsight: bool) -> None:
        self._hindsight, self._history = hindsight, GapHistory()
        self._open: OrderedDict[str, Gap] = OrderedDict()

    def opened(self, program: str, gap: Gap) -> None:
        while self._open:
            oldest, first = next(iter(self._open.items()))
            if gap.since_s - first.since_s < FORGOTTEN_S:
                break
            del self._open[oldest]
            self._history.ended(first.then, math.inf)
        self._open[program] = gap

    def closed(self, program: str, now_s: float) -> None:
        gap = self._open.pop(program, None)
        if gap is not None:
            self._history.ended(gap.then, now_s - gap.since_s)

    def of(self, replica: int) -> list[str]:
        """Returns the programs that had their last turn on that replica."""
        return [program for program, gap in self._open.items() if gap.replica == replica]

    def at(self, program: str, replica: int) -> bool:
        return program in self._open and self._open[program].replica == replica

    def remaining_s(self, program: str, now_s: float) -> float:
        gap = self._open[program]
        if self._hindsight:
            return max(0.0, gap.returns_s - now_s)
        return self._history.remaining_s(gap.then, now_s - gap.since_s)
