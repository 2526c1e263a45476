"""Engines that are given no more requests, once another has waited for their memory: none that has any is stopped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

HOLD_S: Final = 5.0
"""So long an engine waits for the memory of those that have requests; then they are given no more. So long one that has
just started serves in any case."""


class Runs(NamedTuple):
    """An engine that runs."""

    name: str
    requests: int
    used_s: float
    """When it last had one."""
    served_s: float
    """Since when it runs."""
    memory_bytes: int


def held_for(wants_bytes: int, since_s: float, running: Iterable[Runs], now_s: float) -> list[str]:
    """Names of those that are given no more for one that has waited since then for so much memory: those without
    requests first, then those used the longest ago, no more than it takes; none where all of them would not do."""
    able = [one for one in running if now_s - max(since_s, one.served_s) >= HOLD_S]
    enough = list[str]()
    for one in sorted(able, key=lambda one: (one.requests > 0, one.used_s)):
        if wants_bytes > 0:
            enough.append(one.name)
            wants_bytes -= one.memory_bytes
    return enough if wants_bytes <= 0 else []
