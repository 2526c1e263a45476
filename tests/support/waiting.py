"""Waits for changes by other processes and threads. This is the only polling loop of the tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

TIMEOUT_S = 100.0
"""Time limit of a wait, far above what any wait here takes."""
T = TypeVar("T")


def eventually(
    poll: Callable[[], T | None], what: str = "the condition", limit_s: float = TIMEOUT_S, pause_s: float = 0.002
) -> T:
    """Returns the first true result of `poll`. `pause_s`: pause between two polls, for polls that are expensive."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        if result := poll():
            return result
        time.sleep(pause_s)
    raise AssertionError(f"{what} did not come true within {limit_s:g} s")
