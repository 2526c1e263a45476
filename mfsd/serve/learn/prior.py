"""Prediction without a learned model: the median answer of the latest calls of a role."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

from mfsd.serve.learn.features import CallInfo

WINDOW: Final = 64
UNKNOWN_TOKENS: Final = 256.0
"""Predicted before any call has ended."""
UNKNOWN_TOOL: Final = 0.5


class Prior:
    def __init__(self) -> None:
        self._latest: dict[str | None, deque[int]] = {}
        """Latest answers by role; None: of all roles."""

    def ended(self, role: str, output_tokens: int) -> None:
        for key in (role, None):
            self._latest.setdefault(key, deque(maxlen=WINDOW)).append(output_tokens)

    def predict(self, call: CallInfo) -> tuple[float, float]:
        """Returns the probability that the call uses a tool, and the tokens of its answer."""
        latest = self._latest.get(call.role) or self._latest.get(None)
        tokens = float(statistics.median(latest)) if latest else UNKNOWN_TOKENS
        return (UNKNOWN_TOOL if call.tools else 0.0), max(1.0, tokens)
