"""What programs did since the daemon started, including ended ones.

A client's own counters end with it. A monitoring system that polls every few seconds would miss short programs and see
totals fall. So the daemon adds what an ending client did to the totals of its program's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mfsd.node.control import ClientStatus, ProcessTotals

NAMES_MAX = 64
"""Programs counted apart. They name themselves: a program that makes up new names must not fill the memory."""
OTHERS = "(others)"

_COUNTS = (
    "submits",
    "permits",
    "on_credit",
    "completes",
    "cancels",
    "bypassed_overflow",
    "bypassed_hold",
    "bypassed_stale",
    "hold_s",
    "torn_slots",
    "bad_messages",
)


class Totals:
    """Sums of ended clients by program name."""

    def __init__(self) -> None:
        self._ended: dict[str, ProcessTotals] = {}
        self._named: set[str] = set()
        """Programs with their own row, for good: one that moved to another row would take its counts along."""

    def add(self, client: ClientStatus) -> None:
        """Adds the counters of a client that ends."""
        name = self._row(client.process)
        self._ended[name] = _sum(name, self._ended.get(name), [client])

    def with_living(self, clients: Iterable[ClientStatus]) -> list[ProcessTotals]:
        """Totals of ended and living clients by program, sorted by name."""
        by_name: dict[str, list[ClientStatus]] = {name: [] for name in self._ended}
        for client in clients:
            by_name.setdefault(self._row(client.process), []).append(client)
        return [_sum(name, self._ended.get(name), living) for name, living in sorted(by_name.items())]

    def _row(self, process: str) -> str:
        """The row of a program. The first ones that are seen have their own."""
        if len(self._named) < NAMES_MAX:
            self._named.add(process)
        return process if process in self._named else OTHERS


def _sum(name: str, before: ProcessTotals | None, clients: list[ClientStatus]) -> ProcessTotals:
    posted, completed = (
        Counter(before.posted_bytes if before else {}),
        Counter(before.completed_bytes if before else {}),
    )
    for client in clients:
        posted.update(client.posted_bytes)
        completed.update(client.completed_bytes)
    counts = {
        count: (getattr(before, count) if before else 0) + sum(getattr(client, count) for client in clients)
        for count in _COUNTS
    }
    return ProcessTotals(process=name, posted_bytes=dict(posted), completed_bytes=dict(completed), **counts)
