"""The doctor's findings on this node, for a caller that asks all nodes at once: examined in a thread, and rarely."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from mfsd.node.control import HealthFinding

KEPT_S = 30.0
"""How long callers share an examination, since it reads much of the host."""


class Examined(NamedTuple):
    verdict: str
    findings: list[HealthFinding]
    """Failures and doubts, the gravest first."""


class Health:
    """Owned by the daemon's loop."""

    def __init__(self, examine: Callable[[], Examined]) -> None:
        """`examine` runs in its own thread."""
        self._examine = examine
        self._kept: Examined | None = None
        self._kept_until_s = 0.0
        self._lock = asyncio.Lock()

    async def read(self) -> Examined:
        """Raises whatever `examine` raises."""
        async with self._lock:
            if self._kept is None or time.monotonic() > self._kept_until_s:
                self._kept = await asyncio.to_thread(self._examine)
                self._kept_until_s = time.monotonic() + KEPT_S
            return self._kept
