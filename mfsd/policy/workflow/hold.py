"""Engines that are given no more requests, once another has waited for their memory: none that has any is stopped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

HOLD_S: Final = 5.0
"""So long an engine waits for the memory of those that have requests; then they are given no more. So long one that has
just started serves in any case."""


class Runs(NamedTuple):
    """An engine that runs or starts."""

    name: str
    requests: int
    used_s: float
    """When it last had one."""
    served_s: float
    """Since when it runs; infinite: it still starts."""
    memory_bytes: int


def held_for(wants_bytes: int, since_s: float, engines: Iterable[Runs], now_s: float) -> list[str]:
    """Names of those that are given no more for one that has waited since then for so much memory: those without
    requests first, then those used the longest ago, of equals those with the fewest requests; no more than it takes.

    None while one of these may not be held yet, since it starts or has just started: that one is waited for. Else the
    busiest would give way only because it alone was there. None where all of them would not do."""
    enough = list[Runs]()
    for one in sorted(engines, key=lambda one: (one.requests > 0, one.used_s, one.requests)):
        if wants_bytes > 0:
            enough.append(one)
            wants_bytes -= one.memory_bytes
    if wants_bytes > 0 or any(now_s - max(since_s, one.served_s) < HOLD_S for one in enough):
        return []
    return [one.name for one in enough]
