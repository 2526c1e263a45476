"""Asks for permits for the calls of one engine and issues them: the core of the engine's adapter."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mfsd.transfer import Transfer
from mooncake_adapter.metadata import Metadata, MetadataSources
from mooncake_adapter.mooncake.calls import READ, Call
from mooncake_adapter.mooncake.lanes import Lanes
from mooncake_adapter.mooncake.permits import (
    TIMEOUT_PARTS,
    Budget,
    hold_max_s,
    permitted,
    submitted,
    transfer_timeout_s,
)
from mooncake_adapter.mooncake.pieces import PIECE_BYTES, Piece, cut
from mooncake_adapter.remainder import Key, Remainder, Remainders
from mooncake_adapter.session import STAGE_P2D, STAGE_REUSE, Permit, Session, Task
from mooncake_adapter.warn_once import LOG, WarnOnce

if TYPE_CHECKING:
    from mfsd._native import FastPath

AHEAD = 8
"""Number of pieces of one call that ask for permits at once."""
COURSE_NS = 1_000_000_000
"""How long the fast path uses one answer, so a change of the log level or the fabric's marks takes effect that late."""
POLL_S = 50e-6
SPINS = 20
DEFERRED_MAX = 32
Course = tuple[int, bool, bool, dict[int, tuple[Any, str] | None], str]
"""The session's number of the NIC; whether writes are class_marked; whether reads are; the lane of each class whose
lane is known (None: the program's own engine); the peer's host."""
DONE, PENDING, FAILED = 1, 0, -1
"""Results of transfer_check_status."""
SYNTHETIC = 1 << 62
"""First id of calls that wait for a permit. Mooncake's own ids are addresses, which are smaller."""


@dataclass
class Issued:
    """A piece that is under way in Mooncake."""

    engine: Any
    batch: int
    task: Task


@dataclass
class Pending:
    """An asynchronous call: some of its pieces are under way, some wait for a permit."""

    peer: str
    waiting: int = 0
    issued: list[Issued] = field(default_factory=list)
    failed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Scheduling:
    """Schedules the calls of one engine. Errors of MFS never reach the caller: the call then goes as it would without
    MFS."""

    def __init__(
        self, base: Any, engine: Any, session: Session, sources: MetadataSources, lanes: Lanes, once: WarnOnce
    ) -> None:
        self._base, self._session, self._sources, self._lanes, self._once = base, session, sources, lanes, once
        self._piece_bytes = getattr(session, "piece_bytes", PIECE_BYTES)
        self.nic = 0
        self._remainders = Remainders()
        self._pending: dict[int, Pending] = {}
        self._synthetic = SYNTHETIC
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def fast_path(self) -> FastPath | None:
        """Returns the native version of synchronous() for plain calls of one buffer in one message; None without native
        code.

        Each step in Python costs a microsecond after a transfer, which has evicted the adapter from the caches.
        """
        make = getattr(self._session, "fast_path", None)
        if make is None:
            return None
        lanes = self._lanes
        found: FastPath | None = make(
            context=self._sources.context,
            owned=self._sources.owned,
            course=self._course,
            route=lanes.route,
            failed=lanes.failed,
            size_max_bytes=PIECE_BYTES,
            timeout_ns=int(transfer_timeout_s() / TIMEOUT_PARTS * 1e9),  # the daemon's own limit applies as well
            give_up_ns=int(transfer_timeout_s() * 1e9),
            course_ns=COURSE_NS,
        )
        path = weakref.ref(found) if found is not None else lambda: None
        lanes.changed = lambda: None if (known := path()) is None else known.changed()
        return found

    def _course(self, peer: str) -> Course | None:
        """Returns what holds for calls to the peer for COURSE_NS or until the lanes change; None if the fast path must
        not be used."""
        if LOG.isEnabledFor(logging.DEBUG):
            return None
        lanes = self._lanes
        return self.nic, lanes.marked(peer, False), lanes.marked(peer, True), lanes.known(peer), host_of(peer)

    # ---- permits -----------------------------------------------------------------------------------------------------

    def _transfer(self, call: Call, metadata: Metadata, size_bytes: int, left_bytes: int = 0) -> Transfer:
        """Describes a message of the call."""
        request_id, stage, layer, deadline_ns, batch = metadata
        reading = call.operation == READ
        if stage is None:
            stage = STAGE_REUSE if reading else STAGE_P2D
        marked = self._lanes.marked(call.peer, reading)
        peer = host_of(call.peer)
        whose = request_id, deadline_ns, batch, layer
        return Transfer(size_bytes, stage, self.nic, *whose, peer, marked, reading, left_bytes)

    def _remainder(self, call: Call, pieces: list[Piece]) -> Remainder:
        return Remainder(self._remainders, ((_key(call, piece), piece.size_bytes) for piece in pieces))

    def _submit(self, call: Call, piece: Piece, remainder: Remainder) -> Task:
        left_bytes = remainder.ask(_key(call, piece), piece.size_bytes)
        transfer = self._transfer(call, piece.metadata, piece.size_bytes, left_bytes)
        return submitted(self._session, self._once, transfer)

    def _permit(self, call: Call, metadata: Metadata) -> Permit | None:
        transfer = self._transfer(call, metadata, call.size_bytes)
        return permitted(self._session, self._once, Budget(self._session), transfer)

    def _whole(self, call: Call) -> Metadata | None:
        """Returns the metadata of a call that is one message; None if the call has to be split."""
        if call.size_bytes > self._piece_bytes or hasattr(call.addresses, "owners") or self._sources.any_owner():
            return None
        return self._sources.current()

    def _pieces(self, call: Call) -> list[Piece]:
        owners = getattr(call.addresses, "owners", None)
        if owners is None:
            return cut(call.addresses, call.peer_addresses, call.lengths, self._sources.of, self._piece_bytes)
        by_address = dict(zip(call.addresses, owners, strict=True))
        return cut(call.addresses, call.peer_addresses, call.lengths, by_address.__getitem__, self._piece_bytes)

    def _route(self, engine: Any, call: Call, wire_class: int | None) -> tuple[Any, str]:
        return self._lanes.route(call.peer, wire_class, call.peer_addresses[0]) or (engine, call.peer)

    # ---- synchronous calls -------------------------------------------------------------------------------------------

    def synchronous(self, engine: Any, method: Any, call: Call, arguments: tuple[Any, ...], keywords: Any) -> int:
        """Issues the call when it is permitted; returns Mooncake's result."""
        metadata = self._whole(call)
        if metadata is None:
            pieces = self._pieces(call)
            if len(pieces) > 1 and call.notify is None:
                return self._in_pieces(engine, call, pieces)
            metadata = pieces[0].metadata
        give_up_s = time.monotonic() + transfer_timeout_s()
        permit = self._permit(call, metadata)
        try:
            lane, peer = self._route(engine, call, None if permit is None else permit.wire_class)
            if lane is engine:
                return int(method(engine, *arguments, **keywords))
            result = int(_renamed(method, lane, peer, arguments, keywords))
            if result != 0:  # the lane may lead to a process that has ended; the program's own engine finds out
                self._lanes.failed(call.peer)
                if time.monotonic() < give_up_s:
                    result = int(method(engine, *arguments, **keywords))
            return result
        finally:
            if permit is not None:
                permit.complete()

    def _in_pieces(self, engine: Any, call: Call, pieces: list[Piece]) -> int:
        todo = deque(pieces)
        waiting: deque[tuple[Task, Piece]] = deque()
        running: deque[Issued] = deque()
        worst = 0
        remainder = self._remainder(call, pieces)
        budget = Budget(self._session)
        give_up_s = time.monotonic() + transfer_timeout_s()
        try:
            while todo or waiting or running:
                if time.monotonic() > give_up_s:  # Mooncake would have given up: issue nothing more
                    worst = FAILED
                    todo.clear()
                    while waiting:
                        waiting.popleft()[0].cancel()
                while todo and len(waiting) < AHEAD:
                    waiting.append((self._submit(call, todo[0], remainder), todo.popleft()))
                ready = next((one for one in waiting if one[0].ready()), None)
                if ready is None and waiting and (not running or budget.left_s == 0.0):
                    budget.wait(waiting[0][0])
                    ready = waiting[0]
                if ready is not None:
                    waiting.remove(ready)
                    if not self._issue(engine, call, ready[1], ready[0], running, give_up_s):
                        worst = FAILED
                        todo.clear()
                elif running:
                    status = int(self._base.transfer_check_status(running[0].engine, running[0].batch))
                    if status == PENDING and time.monotonic() < give_up_s:
                        time.sleep(POLL_S)
                        continue
                    running.popleft().task.complete()
                    if status != DONE:
                        worst = FAILED
                        todo.clear()
        finally:
            remainder.close()
            for task, _ in waiting:
                task.cancel()
            for issued in running:
                issued.task.complete()
        if worst != 0:
            self._lanes.failed(call.peer)
        return worst

    def _issue(self, engine: Any, call: Call, piece: Piece, task: Task, running: Any, give_up_s: float) -> bool:
        """Passes a permitted piece to Mooncake. Returns False if Mooncake refuses it or would have given it up by
        now."""
        lane, peer = self._route(engine, call, task.wait(0.0))
        name = f"batch_transfer_async_{call.operation}"
        lists = (piece.addresses, piece.peer_addresses, piece.lengths)
        batch = 0  # opening a lane may have taken a while
        if time.monotonic() < give_up_s:
            batch = int(getattr(self._base, name)(lane, peer, *lists, call.hint))
        if batch <= 0 and lane is not engine:
            self._lanes.failed(call.peer)
            lane = engine
            if time.monotonic() < give_up_s:
                batch = int(getattr(self._base, name)(engine, call.peer, *lists, call.hint))
        if batch <= 0:
            task.complete()
            return False
        running.append(Issued(lane, batch, task))
        return True

    # ---- asynchronous calls ------------------------------------------------------------------------------------------

    def asynchronous(self, engine: Any, call: Call) -> int:
        """Issues what is permitted at once and leaves the rest to a thread. Returns an id for the status calls; never
        waits."""
        pending = Pending(call.peer)
        later: list[tuple[Task, Piece]] = []
        now_s = time.monotonic()
        until_s, give_up_s = now_s + hold_max_s(self._session), now_s + transfer_timeout_s()
        pieces = self._pieces(call)
        with contextlib.closing(self._remainder(call, pieces)) as remainder:
            for piece in pieces:
                task = self._submit(call, piece, remainder)
                if _soon(task):
                    if not self._issue(engine, call, piece, task, pending.issued, give_up_s):
                        pending.failed = True
                        break
                else:
                    later.append((task, piece))
        if pending.failed and not pending.issued and not later:
            return 0  # Mooncake's answer to a call that it refuses
        pending.waiting = len(later)
        with self._lock:
            if later or len(pending.issued) != 1:
                self._synthetic += 1
                number = self._synthetic
            else:
                number = pending.issued[0].batch
            self._pending[number] = pending
            if later and self._pool is None:
                self._pool = ThreadPoolExecutor(DEFERRED_MAX, thread_name_prefix="mfs-deferred")
        for task, piece in later:
            assert self._pool is not None
            self._pool.submit(self._issue_later, engine, call, piece, task, (until_s, give_up_s), pending)
        return number

    def _issue_later(
        self, engine: Any, call: Call, piece: Piece, task: Task, times_s: tuple[float, float], pending: Pending
    ) -> None:
        issued: list[Issued] = []
        until_s, give_up_s = times_s
        try:
            task.wait(max(0.0, until_s - time.monotonic()))
            taken = self._issue(engine, call, piece, task, issued, give_up_s)
        except Exception as error:
            self._once.warn("deferred", "a deferred transfer failed (%s)", error)
            task.complete()
            taken = False
        with pending.lock:
            pending.waiting -= 1
            pending.issued += issued
            pending.failed = pending.failed or not taken

    def check(self, engine: Any, batch: int) -> int:
        """transfer_check_status: 0 while the call runs, 1 when it is done, negative when it failed."""
        pending = self._pending.get(batch)
        if pending is None:
            return int(self._base.transfer_check_status(engine, batch))
        with pending.lock:
            left = []
            for issued in pending.issued:
                status = int(self._base.transfer_check_status(issued.engine, issued.batch))
                if status == PENDING:
                    left.append(issued)
                    continue
                issued.task.complete()
                pending.failed = pending.failed or status != DONE
            pending.issued = left
            if left or pending.waiting:
                return PENDING
            self._pending.pop(batch, None)
        if pending.failed:
            self._lanes.failed(pending.peer)
        return FAILED if pending.failed else DONE

    def status(self, engine: Any, batches: list[int]) -> int:
        """get_batch_transfer_status: waits for all batches; returns 0, or -1 if one failed."""
        foreign = [batch for batch in batches if batch not in self._pending]
        ours = [batch for batch in batches if batch in self._pending]
        result = int(self._base.get_batch_transfer_status(engine, foreign)) if foreign or not ours else 0
        for batch in ours:
            if not self._finished(batch):
                result = FAILED
        return result

    def _finished(self, batch: int) -> bool:
        """Waits for one of our calls as Mooncake would."""
        pending = self._pending[batch]
        give_up_s = time.monotonic() + hold_max_s(self._session) + transfer_timeout_s()
        while pending.waiting and time.monotonic() < give_up_s:
            time.sleep(POLL_S)
        with pending.lock:
            for issued in pending.issued:
                status = int(self._base.get_batch_transfer_status(issued.engine, [issued.batch]))
                issued.task.complete()
                pending.failed = pending.failed or status != 0
            pending.issued = []
            if pending.waiting == 0:
                self._pending.pop(batch, None)
        if pending.failed:
            self._lanes.failed(pending.peer)
        return not pending.failed and pending.waiting == 0


@lru_cache(maxsize=4096)
def host_of(peer: str) -> str:
    """Returns the host of a segment name."""
    return peer.rpartition(":")[0].strip("[]") or peer


def _key(call: Call, piece: Piece) -> Key:
    return piece.metadata.request_id, piece.metadata.stage, call.operation == READ


def _soon(task: Task) -> bool:
    return any(task.ready() for _ in range(SPINS))


def _renamed(method: Any, lane: Any, peer: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if arguments:
        return method(lane, peer, *arguments[1:], **keywords)
    return method(lane, **{**keywords, "target_hostname": peer})
