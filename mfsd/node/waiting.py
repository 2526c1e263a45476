"""Requests that still queue at the engines of this node: takes the arbiter's snapshots to the coordinator."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from mfsd._native import Direction, RequestFlag, RequestSnapshot
from mfsd.node.addresses import PortNames, address_of_gid
from mfsd.node.control import QueuedFetch, QueuedRequest, QueueReply, QueueRequest
from mfsd.node.link_interface import PortDemand, WaitingSummary
from mfsd.node.outlook import OutlookWriter, fars_of
from mfsd.policy.outlook import WATCHED_RANK, needed_by


class Requests(Protocol):
    """The part of the arbiter that this module needs."""

    def waiting(self) -> list[tuple[int, tuple[RequestSnapshot, ...]]]: ...
    def request_prune(self, client_id: int, request_id: int, pruned: bool) -> None: ...


class Reports(Protocol):
    """The part of the link to the coordinator that this module needs."""

    def waiting(self, request: WaitingSummary) -> None: ...
    def waits_no_more(self, request_id: int) -> None: ...


class WaitingRequests:
    """The waiting requests. Owned by the daemon's loop.

    A request that several processes announce counts once, as the latest announcement says.
    """

    def __init__(
        self,
        requests: Requests,
        ports: PortNames,
        nic_names: Callable[[], Mapping[int, str]],
        outlook: OutlookWriter,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._requests = requests
        self._ports = ports
        self._nic_names = nic_names
        self._outlook = outlook
        self._clock_ns = clock_ns
        self.reports: Reports | None = None
        self._of_client: dict[int, dict[int, RequestSnapshot]] = {}
        self._announcers: defaultdict[int, set[int]] = defaultdict(set)

    def noticed(self) -> None:
        """Takes the changes after the arbiter has rung."""
        for client_id, requests in self._requests.waiting():
            self._replace(client_id, requests)

    def client_gone(self, client_id: int) -> None:
        self._replace(client_id, ())

    def relegated(self) -> set[int]:
        return {
            request_id
            for requests in self._of_client.values()
            for request_id, request in requests.items()
            if request.flags & RequestFlag.RELEGATED
        }

    def reply(self, request: QueueRequest, processes: Mapping[int, str]) -> QueueReply:
        """Lists what queues now. `processes`: names by client."""
        now_ns, rows = self._clock_ns(), list[QueuedRequest]()
        for client_id, requests in sorted(self._of_client.items()):
            needed = needed_by((r.request_id, r.rank, r.deadline_ns or None) for r in requests.values())
            for one in sorted(requests.values(), key=lambda r: (r.rank, r.request_id)):
                if len(rows) < request.limit and one.rank != WATCHED_RANK:
                    rows.append(self._row(one, processes.get(client_id, ""), needed[one.request_id], now_ns))
        queue = sum(one.rank != WATCHED_RANK for requests in self._of_client.values() for one in requests.values())
        return QueueReply(rows, queue)

    def _row(self, request: RequestSnapshot, process: str, needed_ns: int | None, now_ns: int) -> QueuedRequest:
        names = self._nic_names()
        return QueuedRequest(
            request.request_id,
            process,
            (request.deadline_ns - now_ns) / 1e9 if request.deadline_ns else None,
            (needed_ns - now_ns) / 1e9 if needed_ns is not None else None,
            request.rank,
            request.tokens_left,
            bool(request.flags & RequestFlag.RELEGATED),
            request.pruned,
            [
                QueuedFetch(address_of_gid(d.peer), names.get(d.nic, ""), d.bytes_left)
                for d in request.demands
                if d.direction == Direction.IN
            ],
        )

    def _replace(self, client_id: int, requests: Sequence[RequestSnapshot]) -> None:
        before = self._of_client.pop(client_id, {})
        now = {request.request_id: request for request in requests}
        if now:
            self._of_client[client_id] = now
        self._outlook.flows(("waiting", client_id), fars_of(d for request in requests for d in request.demands))
        for request_id in before.keys() - now.keys():
            self._announcers[request_id].discard(client_id)
            if not self._announcers[request_id]:
                del self._announcers[request_id]
                if self.reports is not None:
                    self.reports.waits_no_more(request_id)
        for request_id, request in now.items():
            self._announcers[request_id].add(client_id)
            if request.flags & RequestFlag.RELEGATED and not request.pruned:
                with contextlib.suppress(OSError):  # it has left the queue meanwhile
                    self._requests.request_prune(client_id, request_id, True)
            if before.get(request_id) != request and self.reports is not None:
                self.reports.waiting(self._summary(client_id, request))

    def _summary(self, client_id: int, request: RequestSnapshot) -> WaitingSummary:
        return WaitingSummary(
            request.request_id,
            request.deadline_ns - self._clock_ns() if request.deadline_ns else None,
            request.rank,
            request.tokens_left,
            bool(request.flags & RequestFlag.RELEGATED),
            client_id,
            tuple(self._demands(request)),
        )

    def _demands(self, request: RequestSnapshot) -> Iterator[PortDemand]:
        size: defaultdict[str, int] = defaultdict(int)
        names = self._nic_names()
        for d in request.demands:
            if d.bytes_left and d.nic in names:
                for port in self._ports.flow(names[d.nic], d.peer, incoming=d.direction == Direction.IN):
                    size[port] += d.bytes_left
        return (PortDemand(port, left) for port, left in size.items())
