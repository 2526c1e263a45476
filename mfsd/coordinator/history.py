"""The last hour in intervals of ten seconds, in a ring of fixed size.

Intervals are numbered on this coordinator's own clock. A standby copies the leader's history, so that the next leader's
history continues where the last one's ended. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

INTERVAL_NS = 10_000_000_000
INTERVALS = 360
MISSED_MAX = 100
"""Number of requests kept that missed their deadline: the latest ones."""


class Interval(Struct):
    met: int = 0
    missed: int = 0
    pruned: int = 0
    """The maximum within the interval, as for the next field."""
    infeasible: int = 0
    batches: int = 0
    """At the end of the interval, as for all fields below."""
    requests: int = 0
    nodes: int = 0
    bytes_per_s: Sequence[int] = ()
    """By class."""
    unscheduled_bytes_per_s: int = 0
    passed_bytes_per_s: int = 0
    busiest_permille: int = 0


class Missed(NamedTuple):
    at_ns: int
    request_id: int
    node: str


class Recent(NamedTuple):
    met: int
    missed: int


class History:
    def __init__(self) -> None:
        self._ring: dict[int, Interval] = {}
        """Intervals by number."""
        self.missed: deque[Missed] = deque(maxlen=MISSED_MAX)
        """Oldest first."""
        self._followed = ("", 0, 0)
        """Leader and term that were last followed, and the offset of its intervals in ours. It is kept so that an
        interval does not shift because one message took longer than another."""

    def at(self, now_ns: int) -> Interval:
        """Returns the interval of that time. A new one starts with the values at the end of the one before."""
        number = now_ns // INTERVAL_NS
        found = self._ring.get(number)
        if found is None:
            before = self._ring.get(number - 1, Interval())
            found = replace(before, met=0, missed=0, pruned=0, infeasible=0)
            self._put(number, found)
        return found

    def ended(self, request_id: int, met: bool, counts: tuple[int, bool], node: str) -> None:
        """counts: the result of :meth:`mfsd.policy.attainment.Attainment.judge`."""
        at_ns, was_met = counts
        interval = self.at(at_ns)
        interval.met += met
        interval.missed += not met
        if was_met and interval.met:
            interval.met -= 1
        if not met:
            self.missed.append(Missed(at_ns, request_id, node))

    def given_up(self, pruned: int, infeasible: int, now_ns: int) -> None:
        interval = self.at(now_ns)
        interval.pruned = max(interval.pruned, pruned)
        interval.infeasible = max(interval.infeasible, infeasible)

    def recent(self, window_ns: int, now_ns: int) -> Recent:
        """Sums up the intervals that began within the window."""
        shown = [interval for age_ns, interval in self.latest(INTERVALS, now_ns) if age_ns <= window_ns]
        return Recent(sum(i.met for i in shown), sum(i.missed for i in shown))

    def latest(self, count: int, now_ns: int) -> Iterator[tuple[int, Interval]]:
        """Yields the last `count` intervals of the last hour, oldest first, each with the time since it began."""
        for number in sorted(self._ring)[-count:] if count else ():
            age_ns = max(0, now_ns - number * INTERVAL_NS)  # the state's clock never goes back, other clocks may
            if age_ns < INTERVALS * INTERVAL_NS:
                yield age_ns, self._ring[number]

    def follow(
        self,
        leader: tuple[str, int],
        intervals: Sequence[tuple[int, Interval]],
        missed: Iterable[Missed],
        now_ns: int,
    ) -> None:
        """Copies the history of the leader (address, term); intervals come with the time since they began."""
        if intervals:
            first_ns = now_ns - intervals[0][0]
            if self._followed[:2] != leader:
                self._followed = (*leader, first_ns % INTERVAL_NS)
                first = first_ns // INTERVAL_NS
                self._ring = {number: own for number, own in self._ring.items() if number < first}
            for age_ns, interval in intervals:
                began_ns = now_ns - age_ns - self._followed[2]
                self._put((began_ns + INTERVAL_NS // 2) // INTERVAL_NS, interval)
        self.missed.clear()
        self.missed.extend(sorted(missed))

    def _put(self, number: int, interval: Interval) -> None:
        self._ring[number] = interval
        while len(self._ring) > INTERVALS:
            del self._ring[min(self._ring)]
