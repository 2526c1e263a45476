"""Work in turns, so that nothing holds the loop for long, however much there is to do.

The loop renews the lease, sends heartbeats and answers operators. A new leader of a large cluster receives thousands of
batches at once. Handled in one go, they would keep it, and then the next leader, from renewing the lease in time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

SLICE_S = 0.005
"""Time for work in one pass of the loop."""
PAUSE_S = 0.001
"""Pause after that, for everything else. A single pass is not enough: a call to etcd takes about twenty, one after the
other."""


class Turns:
    """Runs steps of several tasks, one task after the other, as many in a pass of the loop as fit in its slice. A task
    that has more to do goes to the end of the queue."""

    def __init__(self, slice_s: float = SLICE_S, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._slice_s = slice_s
        self._clock_s = clock_s
        self._left_s = slice_s
        self._lock = asyncio.Lock()

    async def take(self, steps: Iterator[object]) -> None:
        """Runs all `steps`; each step is done as a whole."""
        while not await self._turn(steps):
            pass

    async def _turn(self, steps: Iterator[object]) -> bool:
        """Runs one slice; returns whether all steps are done."""
        async with self._lock:
            if self._left_s <= 0:
                await self._pause()
            while self._left_s > 0:
                start_s = self._clock_s()
                done = next(steps, self) is self
                self._left_s -= self._clock_s() - start_s
                if done:
                    return True
            await self._pause()  # with the lock, so that the waiting task is next and not this task again
            return False

    async def _pause(self) -> None:
        await asyncio.sleep(PAUSE_S)
        self._left_s = self._slice_s
