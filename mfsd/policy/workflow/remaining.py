"""How long a job still takes: its stage, and the median time of jobs after that stage (Maestro Eq 7, 8)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from mfsd.policy.workflow.config import WorkflowConfig


class StageKey(NamedTuple):
    """Where a job is: state(J, k) of Eq 8."""

    workflow: str
    role: str
    stage: str
    invocation: int
    """The number of the job's call of that role, from 0. Distinguishes rounds of a loop."""
    intent: int = 0
    """`intent_bin` of the probability that the stage calls a tool."""


def intent_bin(probability: float, bins: int) -> int:
    return min(bins - 1, max(0, int(probability * bins)))


class RemainingTimes:
    """Rolling profile by key.

    A key that was seen too seldom is answered by a coarser one: without intent, without invocation, the workflow, all;
    then by 0.
    """

    def __init__(self, config: WorkflowConfig) -> None:
        self._config = config
        self._windows: dict[tuple[object, ...], deque[float]] = {}

    def ended(self, key: StageKey, future_s: float) -> None:
        """Records the end of a job that was at `key`. `future_s`: the time of its later stages, without waiting."""
        if not (math.isfinite(future_s) and future_s >= 0):
            return
        for coarse in _keys(key):
            self._windows.setdefault(coarse, deque(maxlen=self._config.profile_window)).append(future_s)

    def future_s(self, key: StageKey) -> float:
        """Eq 8."""
        for coarse in _keys(key):
            window = self._windows.get(coarse)
            if window is not None and len(window) >= self._config.profile_least:
                return _median(window)
        return 0.0

    def remaining_s(self, key: StageKey, exec_s: float) -> float:
        """Eq 7."""
        return exec_s + self.future_s(key)


def _keys(key: StageKey) -> tuple[tuple[object, ...], ...]:
    """The key and its coarser forms, finest first."""
    return (tuple(key), tuple(key[:4]), tuple(key[:3]), (key.workflow,), ())


def _median(values: Collection[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
