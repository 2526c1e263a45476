"""This node's batches: sums up what engines announce for the coordinator, and gives its decisions to the arbiter.

The arbiter rings when contexts have changed; nothing here runs otherwise. Batches of several processes with the same
number are one batch. Without a coordinator, or cut off from it, batches are ordered here by RED and no request is
pruned.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from mfsd._native import RANK_NONE, BatchSnapshot, RequestFlag, RequestSnapshot, Stage
from mfsd.node.addresses import PortNames
from mfsd.node.collectives import Collectives
from mfsd.node.link_interface import BatchSummary, OrderChange, PortDemand, RequestSummary
from mfsd.node.log import Log
from mfsd.node.order import local_ranks, red_ns
from mfsd.node.outlook import Far, fars_of
from mfsd.policy import Variant

Place = tuple[int, int]
"""(client id, slot) of a batch in one process."""
Changed = tuple[int, int, BatchSnapshot | None]
"""A place and the batch that is there now, or None if there is none any more."""


class Contexts(Protocol):
    """The part of the arbiter that this module needs."""

    def notice_fd(self) -> int: ...
    def changed(self) -> list[Changed]: ...
    def batch_rank(self, client_id: int, batch_id: int, rank: int) -> None: ...
    def request_prune(self, client_id: int, request_id: int, pruned: bool) -> None: ...


class Reports(Protocol):
    """The part of the link to the coordinator that this module needs."""

    def arrived(self, batch: BatchSummary) -> None: ...
    def updated(self, batch: BatchSummary) -> None: ...
    def departed(self, batch_id: int) -> None: ...
    def routed(self, unit: str, demands: Sequence[PortDemand]) -> None: ...


class Outlook(Protocol):
    """The part of the outlook page that this module needs."""

    def flows(self, owner: Hashable, fars: frozenset[Far]) -> None: ...
    def pruned(self, requests: Collection[int]) -> None: ...


class Waiting(Protocol):
    """The requests that still queue."""

    def noticed(self) -> None: ...
    def relegated(self) -> set[int]: ...


class OrderSource(Struct, frozen=True):
    """Who made the order in force."""

    by: Literal["local", "coordinator"]
    term: int = 0
    epoch: int = 0


class Batches:
    """This node's batches. Owned by the daemon's loop; it is the link's listener."""

    def __init__(
        self,
        contexts: Contexts,
        ports: PortNames,
        nic_names: Callable[[], Mapping[int, str]],
        unit_of: Callable[[int], str],
        collectives: Collectives,
        variant: Variant,
        log: Log,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        noticed: Callable[[], None] | None = None,
        outlook: Outlook | None = None,
        waiting: Waiting | None = None,
    ) -> None:
        """`nic_names`: devices by index. `unit_of`: a client's unit. `collectives`: counts what batches move in stage
        2. `outlook` learns of far ports and pruned requests. When the arbiter rings, `waiting` is called first,
        `noticed` last."""
        self._outlook = outlook
        self._waiting = waiting
        self._contexts = contexts
        self._ports = ports
        self._nic_names = nic_names
        self._unit_of = unit_of
        self._collectives = collectives
        self._variant = variant
        self._log = log
        self._clock_ns = clock_ns
        self._also_noticed = noticed
        self._reports: Reports | None = None
        self._snapshots: dict[Place, BatchSnapshot] = {}
        self._members: defaultdict[int, dict[Place, None]] = defaultdict(dict)
        self._ranks_sent: dict[Place, int] = {}
        """Ranks that the arbiter has."""
        self._red: dict[int, int | None] = {}
        self._unit: dict[int, str] = {}
        self._source = OrderSource("local")
        self.orders_lost = 0
        """How often the coordinator's order ceased to be confirmed."""
        self._ranks: dict[int, int] = {}
        """The coordinator's ranks; empty while the order is local."""
        self._pruned: set[int] = set()
        self._infeasible: set[int] = set()
        self._relegated: dict[Place, frozenset[int]] = {}
        """Requests that their engines have put behind the others: served like those that the coordinator prunes."""
        self._fd = -1

    def start(self, loop: asyncio.AbstractEventLoop, reports: Reports | None = None) -> None:
        """Starts reading the arbiter's notices. `reports` is the link, which gets every batch from now on."""
        self._reports = reports
        self._fd = self._contexts.notice_fd()
        loop.add_reader(self._fd, self._noticed)

    def stop(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._fd)

    # ---- what is known ---------------------------------------------------------------------------

    @property
    def source(self) -> OrderSource:
        return self._source

    def red_ns(self, batch_id: int) -> int | None:
        """RED of a batch. None: not known, or the batch has no deadline."""
        return self._red.get(batch_id)

    def rank(self, batch_id: int) -> int | None:
        return self._order().get(batch_id)

    @property
    def ranked(self) -> int:
        """Number of batches with a rank."""
        return len(self._order())

    # ---- from the arbiter ------------------------------------------------------------------------

    def _noticed(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
        if self._waiting is not None:
            self._waiting.noticed()
        self.refresh(self._contexts.changed())
        if self._also_noticed is not None:
            self._also_noticed()

    def refresh(self, changed: Sequence[Changed]) -> None:
        """Takes over the changes and reports them."""
        touched: dict[int, None] = {}
        for client_id, slot, snapshot in changed:
            for batch_id in self._put((client_id, slot), snapshot):
                touched[batch_id] = None
        self._report_changed(touched)

    def client_gone(self, client_id: int) -> None:
        """Forgets a client that has ended, and its batches."""
        gone = [place for place in self._snapshots if place[0] == client_id]
        touched = {batch_id: None for place in gone for batch_id in self._forget(place)}
        self._report_changed(touched, whole=False)

    def _put(self, place: Place, snapshot: BatchSnapshot | None) -> Iterator[int]:
        """Yields the batches that changed: the one that is there now, and the one before it if that is another."""
        before = self._snapshots.get(place)
        if before is not None and (snapshot is None or snapshot.batch_id != before.batch_id):
            yield from self._forget(place)
        if snapshot is None:
            return
        self._snapshots[place] = snapshot
        self._relegated[place] = frozenset(r.request_id for r in snapshot.requests if r.flags & RequestFlag.RELEGATED)
        if self._outlook is not None:
            self._outlook.flows(place, fars_of(d for r in snapshot.requests for d in r.demands))
        self._members[snapshot.batch_id][place] = None
        if snapshot.rank == RANK_NONE:
            self._ranks_sent.pop(place, None)  # the arbiter has begun the batch anew
        yield snapshot.batch_id

    def _forget(self, place: Place) -> Iterator[int]:
        snapshot = self._snapshots.pop(place)
        del self._relegated[place]
        if self._outlook is not None:
            self._outlook.flows(place, frozenset())
        self._ranks_sent.pop(place, None)
        del self._members[snapshot.batch_id][place]
        yield snapshot.batch_id

    def _report_changed(self, touched: Mapping[int, None], *, whole: bool = True) -> None:
        """Reports the batches. `whole`: a batch that has ended moved all that it had to."""
        for batch_id in touched:
            members = [self._snapshots[place] for place in self._members.get(batch_id, ())]
            known = batch_id in self._red
            if members:
                self._red[batch_id] = red_ns(members)
                if not known:
                    self._unit[batch_id] = self._unit_of(members[0].client_id)
                    self._collectives.began(self._unit[batch_id])
                self._report(batch_id, members, known)
            elif known:
                del self._red[batch_id], self._members[batch_id]
                self._ranks.pop(batch_id, None)
                self._ended(batch_id, whole)
        self._apply_ranks()
        self._apply_pruned(place for batch_id in touched for place in self._members.get(batch_id, ()))

    # ---- to the coordinator ----------------------------------------------------------------------

    def _report(self, batch_id: int, members: Sequence[BatchSnapshot], known: bool) -> None:
        if self._reports is None:
            return
        if not any(snapshot.requests for snapshot in members):
            return  # with only a deadline it can be ordered here, but not weighed against others
        summary = self.summary(batch_id, members)
        (self._reports.updated if known else self._reports.arrived)(summary)

    def _ended(self, batch_id: int, whole: bool) -> None:
        unit = self._unit.pop(batch_id)
        moved = self._collectives.ended(unit)
        if self._reports is None:
            return
        if moved and whole:
            self._reports.routed(unit, self._routes(moved))
        self._reports.departed(batch_id)

    def _routes(self, moved: Mapping[int, int]) -> list[PortDemand]:
        """The bytes that a batch has moved, by port.

        As much comes in as goes out. Rings pass on what they take, all-to-alls are balanced in what they are called
        with, and combining the experts' results brings back what their dispatch sent.
        """
        names = self._nic_names()
        return [
            PortDemand(f"{self._ports.own(names[nic])}/{direction}", size)
            for nic, size in moved.items()
            if nic in names
            for direction in ("out", "in")
        ]

    def summary(self, batch_id: int, members: Sequence[BatchSnapshot]) -> BatchSummary:
        """What is left of the batch over all of this node's processes."""
        now_ns = self._clock_ns()
        requests: dict[int, list[RequestSnapshot]] = {}
        for snapshot in members:
            for request in snapshot.requests:
                requests.setdefault(request.request_id, []).append(request)
        return BatchSummary(
            batch_id=batch_id,
            unit=self._unit[batch_id],
            compute_left_ns=max(snapshot.compute_left_ns for snapshot in members),
            requests=tuple(self._request(request_id, parts, now_ns) for request_id, parts in requests.items()),
            collectives=self._demands([p for parts in requests.values() for p in parts], collectives=True),
        )

    def _request(self, request_id: int, parts: Sequence[RequestSnapshot], now_ns: int) -> RequestSummary:
        deadline_ns = min((p.deadline_ns for p in parts if p.deadline_ns), default=None)
        return RequestSummary(
            request_id,
            None if deadline_ns is None else deadline_ns - now_ns,
            self._demands(parts, collectives=False),
            any(p.flags & RequestFlag.RELEGATED for p in parts),
        )

    def _demands(self, parts: Sequence[RequestSnapshot], *, collectives: bool) -> tuple[PortDemand, ...]:
        size: defaultdict[str, int] = defaultdict(int)
        names = self._nic_names()
        for part in parts:
            for d in part.demands:
                if (d.stage == Stage.COLLECTIVE) is collectives and d.bytes_left and d.nic in names:
                    for port in self._ports.flow(names[d.nic], d.peer, incoming=d.direction == 1):
                        size[port] += d.bytes_left
        return tuple(PortDemand(port, left) for port, left in size.items())

    # ---- from the coordinator --------------------------------------------------------------------

    def order(self, change: OrderChange) -> None:
        """Applies a decision of the leader without stopping the arbiter."""
        if self._source.by == "local":
            self._log.info("order", by="coordinator", term=change.term, epoch=change.epoch)
        self._source = OrderSource("coordinator", change.term, change.epoch)
        if change.complete:
            self._ranks, self._pruned, self._infeasible = {}, set(), set()
        self._ranks.update(change.ranks)
        self._pruned = self._pruned - set(change.pruned_removed) | set(change.pruned_added)
        self._infeasible = self._infeasible - set(change.infeasible_removed) | set(change.infeasible_added)
        self._apply_ranks()
        self._apply_pruned(self._snapshots)

    def order_lost(self) -> None:
        """Falls back to the local order, because the coordinator's is no longer confirmed."""
        if self._source.by == "coordinator":
            self._log.warning("order", by="local", remedy="see mfsctl coordinator status")
            self.orders_lost += 1
        self._source = OrderSource("local")
        self._ranks, self._pruned, self._infeasible = {}, set(), set()
        self._apply_ranks()
        self._apply_pruned(self._snapshots)

    # ---- to the arbiter --------------------------------------------------------------------------

    def _order(self) -> Mapping[int, int]:
        return self._ranks if self._source.by == "coordinator" else local_ranks(self._red)

    def _apply_ranks(self) -> None:
        order = self._order()
        for place, snapshot in self._snapshots.items():
            rank = order.get(snapshot.batch_id, RANK_NONE)
            if self._ranks_sent.get(place, RANK_NONE) == rank:
                continue
            with _gone_is_fine():
                self._contexts.batch_rank(place[0], snapshot.batch_id, rank)
                self._ranks_sent[place] = rank

    def _apply_pruned(self, places: Iterator[Place] | Mapping[Place, BatchSnapshot]) -> None:
        """Tells the arbiter which requests are pruned.

        Variant mfs leaves infeasible requests to the queue. It serves lost requests after those that can be in time,
        and knows better, since finished layers are sent while later ones compute.
        """
        scavenged = self._pruned.union(*self._relegated.values())
        if self._waiting is not None:
            scavenged |= self._waiting.relegated()
        if self._variant is Variant.PAPER:
            scavenged |= self._infeasible
        if self._outlook is not None:
            self._outlook.pruned(scavenged)
        for place in list(places):
            snapshot = self._snapshots[place]
            if all(r.pruned == (r.request_id in scavenged) for r in snapshot.requests):
                continue
            for request in snapshot.requests:
                wanted = request.request_id in scavenged
                if request.pruned != wanted:
                    with _gone_is_fine():
                        self._contexts.request_prune(place[0], request.request_id, wanted)
            requests = tuple(r._replace(pruned=r.request_id in scavenged) for r in snapshot.requests)
            self._snapshots[place] = snapshot._replace(requests=requests)


@contextlib.contextmanager
def _gone_is_fine() -> Iterator[None]:
    """Ignores that a client or batch has ended between a snapshot and its consequence; the next snapshot shows it."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESHUTDOWN):
            raise
