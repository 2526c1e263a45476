"""Waiting for what other processes and threads bring about: the one loop of the tests that polls."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

TIMEOUT_S = 100.0
"""Far above what anything here takes; reaching it is a failure."""
T = TypeVar("T")


def eventually(
    poll: Callable[[], T | None], what: str = "the condition", limit_s: float = TIMEOUT_S, pause_s: float = 0.002
) -> T:
    """The first true result of `poll`. `pause_s` is between two polls, for those that cost something."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        if result := poll():
            return result
        time.sleep(pause_s)
    raise AssertionError(f"{what} did not come true within {limit_s:g} s")
