"""A clock that stands while the machine does: promised times are held against what the machine gave to run in.

A virtual machine may be put aside for seconds, and a test that counts those against a promise fails for nothing. A
thread that wants to run every few milliseconds counts how long it got to, and little of any longer gap.
"""

from __future__ import annotations

import threading
import time

TICK_S = 0.005
GAP_S = 0.05
"""Counted of one gap at most: ten times what a machine that runs takes for a tick."""


class RunningClock:
    """Counts from when the context is entered."""

    def __init__(self) -> None:
        self._ran_s = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)

    def __enter__(self) -> RunningClock:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def ran_s(self) -> float:
        return self._ran_s

    def _count(self) -> None:
        last_s = time.monotonic()
        while not self._end.wait(TICK_S):
            now_s = time.monotonic()
            self._ran_s += min(now_s - last_s, GAP_S)
            last_s = now_s
