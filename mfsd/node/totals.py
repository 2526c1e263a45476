"""What programs did since the daemon started, those that have ended included.

A client's own counters end with it; a monitoring system that polls every few seconds would miss short programs and
see totals fall. So the daemon adds what an ending client did to the totals of its program's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mfsd.node.control import ClientStatus, ProcessTotals

NAMES_MAX = 64
"""Programs counted apart. They name themselves: one that makes up new names must not fill the memory."""
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

    def add(self, client: ClientStatus) -> None:
        """A client ends with these counters."""
        name = client.process if client.process in self._ended or len(self._ended) < NAMES_MAX else OTHERS
        self._ended[name] = _sum(name, self._ended.get(name), [client])

    def with_living(self, clients: Iterable[ClientStatus]) -> list[ProcessTotals]:
        """Totals by program, ended and living, sorted by name."""
        by_name: dict[str, list[ClientStatus]] = {name: [] for name in self._ended}
        for client in clients:
            name = client.process if client.process in by_name or len(by_name) < NAMES_MAX else OTHERS
            by_name.setdefault(name, []).append(client)
        return [_sum(name, self._ended.get(name), living) for name, living in sorted(by_name.items())]


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
