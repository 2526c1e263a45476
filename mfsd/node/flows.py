"""Assembles flows as they end from the daemon's events: when each was asked for, permitted and complete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from mfsd.node.control import Flow
from mfsd.node.events import ENDS, Event, Kind
from mfsd.node.status import STAGES

OPEN_MAX = 65_536
"""Flows under way that are remembered. The oldest are forgotten."""
_ENDINGS = {Kind.COMPLETE: "done", Kind.CANCEL: "cancelled", Kind.BYPASS: "bypassed", Kind.DROP: "dropped"}


class Filter(Struct, frozen=True):
    """Selects flows. Empty conditions match all."""

    stages: frozenset[str] = frozenset()
    request_id: int = 0
    port: str = ""
    """A part of the NIC's name, followed by /out or /in to select one direction."""
    node: str = ""
    process: str = ""
    slow_s: float = 0.0

    def wants(self, flow: Flow) -> bool:
        direction = f"{flow.nic}/{'in' if flow.incoming else 'out'}"
        return (
            (not self.stages or flow.stage in self.stages)
            and (not self.request_id or flow.request_id == self.request_id)
            and self.port in direction
            and self.node in flow.node
            and self.process in flow.process
            and (not self.slow_s or (flow.waited_s or 0.0) + (flow.took_s or 0.0) >= self.slow_s)
        )


class Pairing:
    """Pairs the events of one daemon."""

    def __init__(self, node: str) -> None:
        self.node = node
        self._asked: dict[tuple[int, int], int] = {}
        self._permitted: dict[tuple[int, int], Event] = {}

    def take(self, events: Sequence[Event], processes: dict[int, str], nics: dict[int, str]) -> Iterator[Flow]:
        """The flows that end with these events."""
        for e in events:
            place = (e.client_id, e.task)
            if e.kind == Kind.SUBMIT:
                self._asked[place] = e.time_ns
            elif e.kind == Kind.PERMIT:
                self._permitted[place] = e
            elif e.kind in ENDS:
                yield self._ended(e, self._asked.pop(place, None), self._permitted.pop(place, None), processes, nics)
        for table in (self._asked, self._permitted):
            while len(table) > OPEN_MAX:
                del table[next(iter(table))]

    def _ended(
        self, e: Event, asked_ns: int | None, permit: Event | None, processes: dict[int, str], nics: dict[int, str]
    ) -> Flow:
        until_ns = permit.time_ns if permit else e.time_ns
        return Flow(
            ended_ns=e.time_ns,
            node=self.node,
            process=processes.get(e.client_id, f"client {e.client_id}"),
            nic=nics.get(e.nic, str(e.nic)),
            incoming=e.incoming,
            stage=STAGES[e.stage] if e.stage < len(STAGES) else str(e.stage),
            size_bytes=e.bytes,
            request_id=e.request_id or None,
            batch_id=e.batch_id or None,
            layer=e.layer,
            wire_class=permit.wire_class if permit else None,
            waited_s=None if asked_ns is None else max(0, until_ns - asked_ns) / 1e9,
            took_s=(e.time_ns - permit.time_ns) / 1e9 if permit else None,
            end=_ENDINGS[Kind(e.kind)],
            late_s=(e.time_ns - e.deadline_ns) / 1e9 if e.deadline_ns else None,
        )
