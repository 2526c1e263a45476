"""Counts of each tier of requests: what a node reports about its engines, and how the cluster adds it up. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

TIERS_MAX = 64
"""For one node. Tiers are configured, so more of them are a mistake."""
POLICIES_MAX = 32
COUNT_MAX = 2**47
"""Greater counts are cut to this, so that a sum over any cluster fits 64 bits."""
FIRST_COME = "first come"
"""Stands for the policy of an engine whose plans failed: it serves first come first served until it restarts."""


class TierReport(NamedTuple):
    """One tier, over the engines that have it."""

    met: int = 0
    """Requests in time. The first four counts are of requests that have ended since their engines started."""
    late: int = 0
    no_deadline: int = 0
    aborted: int = 0
    waiting: int = 0
    """From here on: requests that are there now."""
    running: int = 0
    paused: int = 0
    relegated: int = 0
    lost: int = 0
    engines: int = 0
    policies: Mapping[str, int] = {}
    """Number of engines by the policy that orders their requests."""


NUMBERS = tuple(name for name in TierReport._fields if name != "policies")


class NodeTiers(NamedTuple):
    """What one node knows about its engines."""

    tiers: Mapping[str, TierReport] = {}
    engines: int = 0
    unreadable: int = 0
    """Status files that could not be read."""


def added(total: TierReport | None, one: TierReport, sign: int = 1) -> TierReport:
    """Returns the sum of two reports. With `sign` -1 returns what is left of `total` without `one`."""
    if total is None:
        return one
    policies = dict(total.policies)
    for name, engines in one.policies.items():
        policies[name] = policies.get(name, 0) + sign * engines
        if not policies[name]:
            del policies[name]
    numbers = (a + sign * b for a, b in zip(total[:-1], one[:-1], strict=True))
    return TierReport._make((*numbers, policies))
