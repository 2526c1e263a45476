"""A clock that stops while the machine is paused. Promised times are compared with the time in which it really ran.

A virtual machine may be paused for seconds, and a test that counted these would fail without reason. So a thread that
wakes up every few milliseconds counts the time between, but only a little of any longer gap.
"""

from __future__ import annotations

import threading
import time

TICK_S = 0.005
GAP_S = 0.05
"""Most time that is counted of one gap: ten times the length of a tick on a running machine."""


class RunningClock:
    """Counts from the moment the context is entered."""

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
