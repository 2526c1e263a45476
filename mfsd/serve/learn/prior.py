"""What is expected of a call without a learned model: the median answer of its role's latest calls."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

from mfsd.serve.learn.features import CallInfo

WINDOW: Final = 64
UNKNOWN_TOKENS: Final = 256.0
"""Expected before any call has ended."""
UNKNOWN_TOOL: Final = 0.5


class Prior:
    def __init__(self) -> None:
        self._latest: dict[str | None, deque[int]] = {}
        """By role; None: of all."""

    def ended(self, role: str, output_tokens: int) -> None:
        for key in (role, None):
            self._latest.setdefault(key, deque(maxlen=WINDOW)).append(output_tokens)

    def predict(self, call: CallInfo) -> tuple[float, float]:
        """Probability that it uses a tool, and tokens of the answer."""
        latest = self._latest.get(call.role) or self._latest.get(None)
        tokens = float(statistics.median(latest)) if latest else UNKNOWN_TOKENS
        return (UNKNOWN_TOOL if call.tools else 0.0), max(1.0, tokens)
