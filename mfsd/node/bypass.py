"""Traffic past MFS by direction and priority: what a port carried, less what programs with the shim posted (pure).

A port counts a byte when it is on the wire, a program when it posts it. So the port owes what is posted until it has
carried it, but never more than is posted and not complete. That finds bypass traffic a little late, but never too early
and never below zero. Packet headers and acknowledgements are allowed for.

A port cannot tell who posted. What peers read from here goes out, and what they write here comes in, without a program
of this node. It counts as bypass here, though the peers' daemons know it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from mfsd._native import NicCounted
from mfsd.fabric.port_moved import Moved

HEADERS_SHARE = 16
"""Headers add one part in so many to what was posted in packets of 1,024 bytes, and less in larger packets."""
ANSWERS_SHARE = 64
"""Acknowledgements, in either direction, are one part in so many of the bytes in the other."""
LEAST_SHARE = 0.01
"""Share of the rate below which traffic is noise, such as CTS messages and datagrams of daemons."""
TIME_CONSTANT_NS = 250_000_000
UNKNOWN = "unknown"
"""The priority if the driver counts none, or none is configured for the classes of MFS."""


class BypassAccount:
    """The account of one NIC, from reading to reading. Directions: out, in."""

    def __init__(self) -> None:
        self.bytes: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        """By priority, since the daemon started."""
        self._rates = [0.0, 0.0]
        self._owed = [0, 0]
        self._before: NicCounted | None = None

    @property
    def rates_bytes_per_s(self) -> tuple[int, int]:
        return round(self._rates[0]), round(self._rates[1])

    @property
    def load_bytes_per_s(self) -> tuple[int, int]:
        """The bypass traffic that counts as load before last stages: all that goes out, and at most as much of what
        comes in.

        An all-to-all brings in as much as it sends. More than that are peers' writes, which their daemons order.
        """
        sent, received = self.rates_bytes_per_s
        return sent, min(sent, received)

    def add(self, moved: Moved, counted: NicCounted, rate_bytes_per_s: int, priorities: Sequence[int] = ()) -> None:
        """Adds a reading. `counted` is read after the port's counters. `priorities`: of MFS's classes, empty if
        unknown."""
        before, self._before = self._before, counted
        if before is None or moved.elapsed_ns <= 0:
            return
        weight = -math.expm1(-moved.elapsed_ns / TIME_CONSTANT_NS)
        least = LEAST_SHARE * rate_bytes_per_s * moved.elapsed_ns / 1e9
        for direction in (0, 1):
            found = self._found(direction, moved, counted, before)
            if found < least:
                found = 0
            self._rates[direction] += weight * (found * 1e9 / moved.elapsed_ns - self._rates[direction])
            if not found and self._rates[direction] < LEAST_SHARE * rate_bytes_per_s:
                self._rates[direction] = 0.0
            shares = _by_priority(direction, moved, counted, before, priorities) if found else {}
            for priority, share in shares.items():
                self.bytes[direction][priority] += round(found * share)

    def _found(self, direction: int, moved: Moved, counted: NicCounted, before: NicCounted) -> int:
        carried, other = moved.bytes[direction], moved.bytes[1 - direction]
        if carried is None:  # unbelievable counters: forget what was owed
            self._owed[direction] = 0
            return 0
        posted = max(0, counted.posted_bytes[direction] - before.posted_bytes[direction])
        owed = self._owed[direction] + posted + posted // HEADERS_SHARE + (other or 0) // ANSWERS_SHARE - carried
        most = counted.outstanding_bytes + counted.outstanding_bytes // HEADERS_SHARE
        self._owed[direction] = min(max(owed, 0), most)
        return max(-owed, 0)


def _by_priority(
    direction: int, moved: Moved, counted: NicCounted, before: NicCounted, priorities: Sequence[int]
) -> dict[str, float]:
    """Shares of bypass traffic, as each priority carried more than MFS gave it. What never waits counts in class 0."""
    carried = list(moved.priority_bytes[direction])
    if counted.posted_bytes[direction] > before.posted_bytes[direction] and not priorities:
        return {UNKNOWN: 1.0}
    given = [new - old for new, old in zip(counted.class_bytes[direction], before.class_bytes[direction], strict=True)]
    given[0] += counted.unscheduled_bytes - before.unscheduled_bytes
    for priority, size in zip(priorities, given, strict=False):
        if priority < len(carried):
            carried[priority] -= size + size // HEADERS_SHARE
    total = sum(size for size in carried if size > 0)
    if not total:
        return {UNKNOWN: 1.0}
    return {str(priority): size / total for priority, size in enumerate(carried) if size > 0}
