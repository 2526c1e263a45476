"""Chooses the node that a stage runs on (Maestro algorithm 3, Eq 5 and 6).

Network distance, fit of the KV memory, time until the stage starts and disruption have different units and tails. So
each is normalised between the 5th and 95th percentile of the latest candidates before they are weighed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from mfsd.policy.workflow.config import WorkflowConfig


class RobustRange:
    """Percentile bounds of a measure over a window."""

    def __init__(self, window: int, low: float, high: float) -> None:
        self._window, self._low, self._high = window, low, high
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, value: float) -> None:
        if len(self._latest) >= self._window:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        self._latest.append(value)
        insort(self._sorted, value)

    def normalised(self, value: float) -> float:
        """The value scaled to 0..1 and clipped. If all values are the same, greater ones count as 1."""
        if not self._sorted:
            return 0.0
        last = len(self._sorted) - 1
        low, high = self._sorted[round(self._low * last)], self._sorted[round(self._high * last)]
        if value <= low:
            return 0.0
        return 1.0 if value >= high else (value - low) / (high - low)


class Candidate(NamedTuple):
    """A node as its runtime reports it for one stage."""

    node: int
    rtt_ms: float
    headroom_bytes: int
    """For KV, with the model running there and after the degradation, if there is one."""
    queue_ms: float
    """T_q of Eq 6, smoothed by the caller."""
    activation_ms: float
    """T_act."""
    disruption_ms: float = 0.0
    """C_deg of Eq 4."""
    allowed: bool = True
    """Whether placement rules allow it."""


class Choice(NamedTuple):
    node: int
    score: float


class Fitness:
    """Scores candidates, and remembers the ranges of their measures."""

    def __init__(self, config: WorkflowConfig) -> None:
        self._config = config
        self._rtt, self._spare, self._ready, self._disruption = (
            RobustRange(config.normalise_window, config.normalise_low, config.normalise_high) for _ in range(4)
        )

    def choose(self, candidates: Sequence[Candidate], need_bytes: int, interactive: bool) -> Choice | None:
        """Returns the best-scored node among those that can hold R_need, the first of equals. None: none can."""
        feasible = [c for c in candidates if c.allowed and c.headroom_bytes >= need_bytes]
        for c in feasible:
            self._rtt.add(c.rtt_ms)
            self._spare.add(c.headroom_bytes - need_bytes)
            self._ready.add(c.queue_ms + c.activation_ms)
            self._disruption.add(c.disruption_ms)
        best: Choice | None = None
        for c in feasible:
            score = self._score(c, need_bytes, interactive)
            if best is None or score > best.score:
                best = Choice(c.node, score)
        return best

    def _score(self, c: Candidate, need_bytes: int, interactive: bool) -> float:
        """Eq 5 with the ready time of Eq 6."""
        config = self._config
        network = config.network_share_interactive if interactive else config.network_share
        near = 1 - self._rtt.normalised(c.rtt_ms)
        fit = 1 - self._spare.normalised(c.headroom_bytes - need_bytes)
        ready = self._ready.normalised(c.queue_ms + c.activation_ms)
        affinity = network * near + (1 - network) * fit
        disruption = self._disruption.normalised(c.disruption_ms)
        return affinity - config.ready_weight * ready - config.disruption_weight * disruption
