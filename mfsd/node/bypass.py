"""What a port carried less what programs with the shim gave to it: traffic past MFS, by direction and priority (pure).

A port counts a byte when it is on the wire, a program when it posts it. So what is posted is owed by the port until it
has been carried, at most as much as is posted and not complete: what bypasses is found a little late, never too early
and never below zero. The headers of packets and acknowledgements are allowed for.

A port cannot tell who posted. What peers read from here goes out, and what they write here comes in, without a program
of this node: it counts as bypass here, though their daemons know it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from mfsd._native import NicCounted
from mfsd.fabric.port_moved import Moved

HEADERS_SHARE = 16
"""Packets of 1,024 bytes carry one part in so many beside what was posted; larger ones less."""
ANSWERS_SHARE = 64
"""What comes in is acknowledged, and what goes out: one part in so many in the other direction."""
LEAST_SHARE = 0.01
"""Of the rate: less is noise, such as CTS messages and datagrams of daemons."""
TIME_CONSTANT_NS = 250_000_000
UNKNOWN = "unknown"
"""The priority where the driver counts none, or none is configured for the classes of MFS."""


class BypassAccount:
    """Of one NIC, from reading to reading. Directions: out, in."""

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
        """What is taken for load before last stages: what goes out, and of what comes in as much as goes out, as an
        all-to-all does. More of it is what peers write here, which their daemons order."""
        sent, received = self.rates_bytes_per_s
        return sent, min(sent, received)

    def add(self, moved: Moved, counted: NicCounted, rate_bytes_per_s: int, priorities: Sequence[int] = ()) -> None:
        """`counted` is read after the port's counters. `priorities`: of each class of MFS; empty: not known."""
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
        if carried is None:  # not believed: nothing is owed from before
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
    """Shares of what bypassed, as each priority carried more than MFS gave to it; what never waits has class 0."""
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
