"""The daemon's end of the link to the coordinators: reports this node's batches and receives the order.

Everything here runs on the daemon's asyncio loop. It reports state, not events: what happens between two reports is
summed up, and after a reconnection everything is reported again. The protocol's libraries are loaded only when a link
is made.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from mfsd.node.link_interface import (
    BatchSummary,
    Identity,
    LinkSettings,
    Listener,
    Logger,
    PortDemand,
    PortUse,
    Promises,
    Questions,
    WaitingSummary,
)
from mfsd.policy.request_tiers import NodeTiers

if TYPE_CHECKING:
    from mfsd.node.link_stream import LinkStream

UPDATE_SHARE = 0.05
UPDATE_INTERVAL_MIN_S, UPDATE_INTERVAL_MAX_S = 0.01, 0.05
"""The leader knows a batch's remaining compute to within UPDATE_SHARE of it or the longer interval: reporting each
layer of a long prefill would cost both sides more than it is worth. After a pause of that length the next update goes
at once. Arrivals and departures do not wait."""


class LinkStatus(Struct, frozen=True):
    connected: bool
    leader: str
    """HOST:PORT; empty if none is known."""
    term: int
    epoch: int
    age_s: float | None
    """Time since the leader's latest message. None: there was none."""
    problem: str = ""
    """Why there is no connection."""
    refused: int = 0
    """Messages of stale leaders, which were not applied."""


class Link:
    """Keeps the leader informed of this node's batches and `listener` of the leader's order. One per daemon."""

    def __init__(
        self,
        settings: LinkSettings,
        identity: Identity,
        ports: Mapping[str, int],
        listener: Listener,
        log: Logger,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`ports`: this node's own ports and their rates in bytes per second."""
        from mfsd.node.link_state import LinkState  # loads protobuf, which a daemon without a coordinator spares

        self._settings = settings
        self._listener = listener
        self._log = log
        self._clock_ns = clock_ns
        self._state = LinkState(identity, ports, settings.ttl_ns)
        self._stream: LinkStream | None = None
        self._wake = asyncio.Event()
        self.beat: Callable[[], None] = lambda: None
        """Called with each heartbeat of the leader, for checks that are due now and then."""
        self.questions: Questions | None = None
        """Answers operators' questions."""
        self.promises: Promises | None = None
        """Takes what the leader reports about ports."""

    async def run(self) -> None:
        """Serves until cancelled. Raises TlsError when the certificates cannot be used."""
        from mfsd.node.link_stream import LinkStream

        self._stream = LinkStream(
            self._settings,
            self._state,
            self._listener,
            self._log,
            self._wake,
            self._clock_ns,
            self.beat,
            self.questions,
            self.promises,
        )
        await self._stream.run()

    def arrived(self, batch: BatchSummary) -> None:
        self._put(batch, arrival=True)

    def updated(self, batch: BatchSummary) -> None:
        """Reports what is left of a batch. One that never arrived arrives. Frequent updates are reported together."""
        self._put(batch, arrival=False)

    def departed(self, batch_id: int) -> None:
        """Reports that a batch has ended. Ignored if the batch is not active."""
        change = self._state.depart(batch_id)
        if change is not None:
            self._listener.order(change)
        self._wake.set()

    def waiting(self, request: WaitingSummary) -> None:
        """Reports that a request queues at an engine, or that it has changed."""
        self._state.waiting(request, self._clock_ns())
        if self._stream is not None:
            self._stream.wake_soon(UPDATE_INTERVAL_MIN_S)

    def waits_no_more(self, request_id: int) -> None:
        self._state.waits_no_more(request_id)
        if self._stream is not None:
            self._stream.wake_soon(UPDATE_INTERVAL_MIN_S)

    def request_ended(self, request_id: int, met: bool) -> None:
        """Reports that a request with a deadline has ended here."""
        self._state.request_ended(request_id, met)
        if self._stream is not None:
            self._stream.wake_soon(UPDATE_INTERVAL_MAX_S)

    def port_load(self, port: str, rho: float) -> None:
        """Reports the measured load as a share of the port's rate. NaN and negative values are ignored."""
        self._state.load(port, rho)
        if self._stream is not None:
            self._stream.wake_soon(UPDATE_INTERVAL_MAX_S)

    def port_use(self, port: str, use: PortUse) -> None:
        """Reports what was really used of a port."""
        self._state.use(port, use)
        if self._stream is not None:
            self._stream.wake_soon(UPDATE_INTERVAL_MAX_S)

    def tiers(self, found: NodeTiers) -> None:
        """Reports all that is known about this node's engines, in place of the previous report."""
        self._state.tiers(found)
        if self._stream is not None:
            self._stream.wake_soon(UPDATE_INTERVAL_MAX_S)

    def answer(self, question_id: int, reply: bytes, last: bool) -> None:
        """Answers a question that `asked` received. The answer is lost if the leader that asked is gone."""
        self._state.answer(question_id, reply, last)
        self._wake.set()

    def routed(self, unit: str, demands: Sequence[PortDemand]) -> None:
        """Reports the bytes that the collectives of one batch of `unit` moved, for the estimates of later ones."""
        self._state.routed(unit, demands)

    def why_pruned(self, request_id: int) -> str | None:
        """Says why in one sentence. None when the request is neither pruned nor infeasible."""
        return self._state.why_pruned(request_id)

    def last_verdict(self, request_id: int) -> str | None:
        """As `why_pruned`, also for requests that no longer exist."""
        return self._state.last_verdict(request_id)

    def status(self) -> LinkStatus:
        state, stream = self._state, self._stream
        received_ns = state.received_ns
        return LinkStatus(
            connected=stream is not None and stream.connected,
            leader=stream.leader if stream is not None else "",
            term=state.term,
            epoch=state.epoch,
            age_s=None if received_ns is None else (self._clock_ns() - received_ns) / 1e9,
            problem=stream.problem if stream is not None else "",
            refused=state.stale,
        )

    def _put(self, batch: BatchSummary, *, arrival: bool) -> None:
        problem = self._state.put(batch, self._clock_ns())
        if problem is not None:
            self._log.warning("batch-not-reported", batch=batch.batch_id, problem=problem)
        elif arrival:
            self._wake.set()
        elif self._stream is not None:
            self._stream.wake_soon(_update_within_s(batch.compute_left_ns))


def _update_within_s(compute_left_ns: int) -> float:
    return min(max(UPDATE_INTERVAL_MIN_S, compute_left_ns / 1e9 * UPDATE_SHARE), UPDATE_INTERVAL_MAX_S)
