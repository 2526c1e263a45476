"""Work in turns: nothing holds the loop for long, however much there is to do.

The loop renews the lease, beats the heart and answers operators. A new leader of a large cluster gets thousands of
batches at once; handled as they come, they would keep it from its own lease until that ends, and the next leader, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

SLICE_S = 0.005
"""Work in one pass of the loop."""
PAUSE_S = 0.001
"""After it, for everything else. One pass would not do: a call of etcd's is some twenty passes one after the other."""


class Turns:
    """Steps of several tasks, one task after the other, so many in one pass of the loop as its slice has time for.
    A task that has more to do than that goes to the end of the queue."""

    def __init__(self, slice_s: float = SLICE_S, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._slice_s = slice_s
        self._clock_s = clock_s
        self._left_s = slice_s
        self._lock = asyncio.Lock()

    async def take(self, steps: Iterator[object]) -> None:
        """Goes through `steps`; each is done whole."""
        while not await self._turn(steps):
            pass

    async def _turn(self, steps: Iterator[object]) -> bool:
        """Whether that was all."""
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
