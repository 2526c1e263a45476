"""Measures what the collectives of a unit's batches move through this node's ports. Pure.

The coordinator estimates later batches by this history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

Counters = Mapping[int, int]
"""NIC index -> bytes of stage 2 that have left through it since some start."""


class Collectives:
    """Reads growing counters when a batch begins and when it ends.

    Batches of a unit may overlap. Each takes what has moved since the last one ended, so their sum is right. What moves
    while a unit has no batch (warm-up, health checks) belongs to no batch.
    """

    def __init__(self, moved: Callable[[str], Counters]) -> None:
        """`moved` returns a unit's counters, summed over its processes on this node."""
        self._moved = moved
        self._open: Counter[str] = Counter()
        self._counted: dict[str, dict[int, int]] = {}

    def began(self, unit: str) -> None:
        if not self._open[unit]:
            self._counted[unit] = dict(self._moved(unit))
        self._open[unit] += 1

    def ended(self, unit: str) -> dict[int, int]:
        """NIC index -> bytes of the batch that ended. Empty if nothing moved, or if its processes are gone."""
        before, now = self._counted[unit], self._moved(unit)
        self._open[unit] -= 1
        if self._open[unit]:
            self._counted[unit] = dict(now)
        else:
            del self._open[unit], self._counted[unit]
        return {nic: size - before.get(nic, 0) for nic, size in now.items() if size > before.get(nic, 0)}
