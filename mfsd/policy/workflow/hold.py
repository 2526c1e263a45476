"""Gives engines no more requests once another has waited for their memory. None that has requests is stopped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

HOLD_S: Final = 5.0
"""How long an engine waits for the memory of engines with requests before they get no more. Also how long an engine
that has just started serves in any case."""


class Runs(NamedTuple):
    """An engine that runs or starts."""

    name: str
    requests: int
    used_s: float
    """When it last had a request."""
    served_s: float
    """Since when it runs. Infinite: it still starts."""
    memory_bytes: int


def held_for(wants_bytes: int, since_s: float, engines: Iterable[Runs], now_s: float) -> list[str]:
    """Names engines that get no more requests, for one that has waited since `since_s` for `wants_bytes` of memory.

    Engines without requests come first, then those used the longest ago, of equals those with the fewest requests. No
    more are named than it takes, and none if all of them do not free enough. None are named, either, while one of these
    may not be held yet, since it starts or has just started: that one is waited for. Otherwise the busiest would give
    way only because no other was there.
    """
    enough = list[Runs]()
    for one in sorted(engines, key=lambda one: (one.requests > 0, one.used_s, one.requests)):
        if wants_bytes > 0:
            enough.append(one)
            wants_bytes -= one.memory_bytes
    if wants_bytes > 0 or any(now_s - max(since_s, one.served_s) < HOLD_S for one in enough):
        return []
    return [one.name for one in enough]
