"""What engines have of each tier of requests: as a node reports it, and as the cluster adds it up. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

TIERS_MAX = 64
"""Of one node: tiers are configured, so that more of them are a mistake."""
POLICIES_MAX = 32
COUNT_MAX = 2**47
"""More is cut: a sum over any cluster still fits 64 bits."""
FIRST_COME = "first come"
"""Instead of the policy of an engine whose plans failed: first come first served until it starts again."""


class TierReport(NamedTuple):
    """Of one tier, over the engines that have it."""

    met: int = 0
    """Of requests that have ended since their engines started: in time."""
    late: int = 0
    no_deadline: int = 0
    aborted: int = 0
    waiting: int = 0
    """Requests that are there now, from here on."""
    running: int = 0
    paused: int = 0
    relegated: int = 0
    lost: int = 0
    engines: int = 0
    policies: Mapping[str, int] = {}
    """Engines by the policy that orders their requests."""


NUMBERS = tuple(name for name in TierReport._fields if name != "policies")


class NodeTiers(NamedTuple):
    """What one node knows of its engines."""

    tiers: Mapping[str, TierReport] = {}
    engines: int = 0
    unreadable: int = 0
    """Status files that could not be read."""


def added(total: TierReport | None, one: TierReport, sign: int = 1) -> TierReport:
    """The sum; with sign -1 what is left of the total without the one."""
    if total is None:
        return one
    policies = dict(total.policies)
    for name, engines in one.policies.items():
        policies[name] = policies.get(name, 0) + sign * engines
        if not policies[name]:
            del policies[name]
    numbers = (a + sign * b for a, b in zip(total[:-1], one[:-1], strict=True))
    return TierReport._make((*numbers, policies))
