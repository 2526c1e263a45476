"""Rho: how much more KV memory than predicted a stage is admitted with (Maestro III-D)."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

from mfsd.policy.workflow.config import WorkflowConfig


class MemoryMargin:
    """A high quantile of the latest relative underestimations e = max(0, R / R^ - 1)."""

    def __init__(self, config: WorkflowConfig) -> None:
        self._config = config
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def ended(self, predicted_bytes: float, needed_bytes: float) -> None:
        """Records a stage that ended of its own accord. Ignores a prediction that is no number above 0."""
        if not (math.isfinite(predicted_bytes) and predicted_bytes > 0 and math.isfinite(needed_bytes)):
            return
        error = max(0.0, needed_bytes / predicted_bytes - 1)
        if len(self._latest) >= self._config.margin_window:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        self._latest.append(error)
        insort(self._sorted, error)

    @property
    def rho(self) -> float:
        config = self._config
        rank = math.ceil((len(self._sorted) + 1) * config.margin_quantile)
        if rank > len(self._sorted):
            return config.margin_max
        return min(config.margin_max, max(config.margin_min, self._sorted[rank - 1]))

    def need_bytes(self, predicted_bytes: float) -> int:
        """R_need = (1 + rho) R^."""
        return math.ceil((1 + self.rho) * predicted_bytes)
