"""Load promised on resources, and which resource takes longest (paper appendix B: S(u), L_i(u), bottleneck)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mfsd.policy.estimate import transfer_ns

Loads = Mapping[int, int]
"""Resource number -> amount of work. Resources are NIC ports (bytes). Any resource with a capacity works, such as a
unit's compute or KV memory (design)."""


class Bottleneck(NamedTuple):
    """The resource that needs the longest, and how long it needs. Resource None: nothing is loaded."""

    time_ns: int
    resource: int | None


NOTHING = Bottleneck(0, None)


class PromisedLoad:
    """S(u): amounts promised on resources. Keeps the slowest resource at hand.

    Amounts only grow along the order, except when a request is pruned. So only then is the slowest searched for again.
    Of equally slow resources the one with the smaller number counts.
    """

    def __init__(self, capacity_per_s: Loads) -> None:
        self._capacity_per_s = capacity_per_s
        self._amount: dict[int, int] = {}
        self._slowest: Bottleneck | None = NOTHING  # None: unknown since a removal

    def amount(self, resource: int) -> int:
        return self._amount.get(resource, 0)

    def add(self, loads: Loads) -> None:
        slowest = self._slowest
        for resource, amount in loads.items():
            if amount:
                self._amount[resource] = self._amount.get(resource, 0) + amount
                if slowest is not None:
                    slowest = _slower(slowest, self._time(resource, self._amount[resource]))
        self._slowest = slowest

    def remove(self, loads: Loads) -> None:
        for resource, amount in loads.items():
            if amount:
                self._amount[resource] -= amount
        self._slowest = None

    def bottleneck_with(self, extra: Loads) -> Bottleneck:
        """argmax_u (S(u) + L(u)) / capacity(u) over all resources, including those that `extra` does not load."""
        if self._slowest is None:
            self._slowest = NOTHING
            for resource, amount in self._amount.items():
                self._slowest = _slower(self._slowest, self._time(resource, amount))
        slowest = self._slowest
        for resource, amount in extra.items():
            if amount:
                slowest = _slower(slowest, self._time(resource, self.amount(resource) + amount))
        return slowest

    def _time(self, resource: int, amount: int) -> Bottleneck:
        return Bottleneck(transfer_ns(amount, self._capacity_per_s[resource]), resource)


def _slower(a: Bottleneck, b: Bottleneck) -> Bottleneck:
    if a.resource is None or b.resource is None:
        return a if b.resource is None else b
    if a.time_ns != b.time_ns:
        return a if a.time_ns > b.time_ns else b
    return a if a.resource < b.resource else b
