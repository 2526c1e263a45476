"""The engine's clock, and the measured times of its steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from mfsd.policy.serve import Observed, StepLoad

ERRORS_MAX: Final = 512
UNDER_WAY_MAX: Final = 64
OBSERVED_MAX: Final = 64
"""Limit of the steps kept since the last plan, for an engine that makes no more plans and so never takes them."""


class Clock:
    """A clock that never goes back. If its source does, the time stands still until the source has caught up."""

    def __init__(self, source: Callable[[], float]) -> None:
        self._source = source
        self._latest = source()

    def __call__(self) -> float:
        self._latest = max(self._latest, self._source())
        return self._latest


class Begun(NamedTuple):
    """A step that was given to the engine. `key` is the engine's own object for it."""

    key: object
    load: StepLoad
    names: tuple[str, ...]
    begun_s: float
    estimate_s: float
    """Estimate without the margin; 0: there is none."""


class Steps:
    """Measures steps, which end in the order in which they began. An engine that runs a step ahead begins one before
    the previous one has ended; its time then counts from that end."""

    def __init__(self) -> None:
        self._under_way: deque[Begun] = deque(maxlen=UNDER_WAY_MAX)
        self._ended_s = 0.0
        self._observed: deque[Observed] = deque(maxlen=OBSERVED_MAX)
        self.errors: deque[float] = deque(maxlen=ERRORS_MAX)
        """(measured - estimate) / measured of the latest steps."""

    def began(self, begun: Begun) -> None:
        self._under_way.append(begun)

    def ended(self, key: object, now_s: float) -> tuple[Begun, float] | None:
        """Ends the step of this key and returns it with its time; None if it never began. Earlier steps that have not
        ended are dropped."""
        while self._under_way:
            begun = self._under_way.popleft()
            if begun.key is key:
                break
        else:
            return None
        seconds = now_s - max(begun.begun_s, self._ended_s)
        self._ended_s = now_s
        if begun.load.tokens and seconds > 0:
            self._observed.append(Observed(begun.load, seconds))
            if begun.estimate_s > 0:
                self.errors.append((seconds - begun.estimate_s) / seconds)
        return begun, max(0.0, seconds)

    def taken(self) -> tuple[Observed, ...]:
        """Returns the steps that ended since the last call; if they are many, the latest ones."""
        observed = tuple(self._observed)
        self._observed.clear()
        return observed
