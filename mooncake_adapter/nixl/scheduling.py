"""Asks for permits for the transfers of one agent and posts them: the core of NIXL's adapter.

The call that starts a transfer posts it if its permit is there at once. Otherwise that call answers "PROC", as NIXL
does for anything that takes a while. The transfer is then posted by a thread, or when the program asks for its status.
"""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mfsd.policy.marks import CLASSES_MAX
from mfsd.transfer import Transfer as Message
from mooncake_adapter.metadata import MetadataSources
from mooncake_adapter.mooncake.permits import submitted, taken_or_submitted
from mooncake_adapter.nixl.lanes import Lanes
from mooncake_adapter.nixl.later import Later
from mooncake_adapter.nixl.pieces import Piece
from mooncake_adapter.nixl.recipes import FromPrepared
from mooncake_adapter.nixl.transfers import Part, State, Transfer
from mooncake_adapter.nixl.warming import Warmer, Warming
from mooncake_adapter.remainder import Key, Remainder, Remainders
from mooncake_adapter.session import Session, Task
from mooncake_adapter.warn_once import LOG, WarnOnce

if TYPE_CHECKING:
    from mfsd._native import Client, PostedPath, Posting

AHEAD = 8
"""Pieces of one transfer that are under way or ask for permits at once."""
SPINS = 20
HOLD_PARTS = 4
"""A transfer may wait for permits for one of so many parts of the lease."""
FOREVER_S = float("inf")
POST_PARTS = 2
"""Nothing is posted after one of so many parts of the lease, because the memory may belong to another request when the
bytes land. The lease began before the transfer was started, and is renewed until then."""
COURSE_NS = 1_000_000_000
"""How long the native path uses one answer, so a change of the log level or the fabric's marks takes effect that
late."""
Course = tuple[int, bool, bool, dict[int, None], str]
"""The session's number of the NIC; whether writes are class_marked; whether reads are; the classes that go through the
program's own backend; the peer."""


class Scheduling:
    """Schedules the transfers of one agent. Errors of MFS never reach the program: the transfer then goes as without
    MFS."""

    def __init__(
        self,
        binding: Any,
        statuses: Any,
        session: Session,
        sources: MetadataSources,
        lanes: Lanes,
        once: WarnOnce,
        nic: int,
    ) -> None:
        """`binding`: NIXL's own agent; `statuses`: its module."""
        self._binding, self._statuses = binding, statuses
        self._success, self._in_progress = statuses.NIXL_SUCCESS, statuses.NIXL_IN_PROG
        self.session, self._sources, self.lanes, self._once = session, sources, lanes, once
        self.nic = nic
        self._remainders = Remainders()
        self.measures = False
        """Whether the program wants NIXL's telemetry."""
        self.warmer = Warmer(binding, statuses, lanes)
        self._later = Later(self)
        self._path: Callable[[], PostedPath | None] = lambda: None

    # ---- the program's calls -----------------------------------------------------------------------------------------

    def start(self, transfer: Transfer, notification: bytes) -> str:
        """Posts the transfer, or what is permitted of it; returns NIXL's status."""
        with transfer.lock:
            if transfer.state is State.PROC:
                raise self._statuses.nixlRepostActiveError("NIXL_ERR_REPOST_ACTIVE")
            self._begin(transfer, notification)
            if transfer.whole:
                message = self._message(transfer, transfer.pieces[0])
                state = self._start_whole(transfer, taken_or_submitted(self.session, self._once, message))
            else:
                self._limit(transfer)
                transfer.todo.extend(transfer.pieces)
                sizes = ((_key(transfer, piece), piece.size_bytes) for piece in transfer.pieces)
                transfer.remainder = Remainder(self._remainders, sizes)
                state = self._advance(transfer, SPINS)
        return self._started(transfer, state)

    def check(self, transfer: Transfer) -> str:
        """Returns the status of a transfer."""
        if transfer.state is State.PROC:
            with transfer.lock:
                parts = transfer.parts
                if transfer.whole and parts and parts[0].state is State.PROC:
                    self._poll(transfer, parts[0])
                    if parts[0].state is State.PROC:
                        return "PROC"
                if transfer.state is State.PROC:
                    self._advance(transfer)
        if transfer.error is not None and transfer.state is State.ERR:
            raise transfer.error
        return transfer.state.value

    def move_on(self, transfer: Transfer | Warming) -> bool:
        """Called by the thread: does what can be done now; returns whether anything is left to do."""
        if isinstance(transfer, Warming):
            return self.warmer.move_on(transfer)
        with transfer.lock:
            try:
                if transfer.state is State.PROC:
                    self._advance(transfer)
            except Exception as error:
                self._once.warn("nixl-later", "a transfer failed (%s: %s)", type(error).__name__, error)
                self._drop_waiting(transfer)
                transfer.state, transfer.error = State.ERR, error
            if transfer.state is State.PROC:
                return True
            if transfer.abandoned and not transfer.closed:
                with contextlib.suppress(Exception):
                    self._close(transfer)
            return False

    def release(self, transfer: Transfer) -> None:
        """The program is done with the transfer. Parts that were not posted never will be. Raises what NIXL raises."""
        with transfer.lock:
            if transfer.closed:
                return
            if transfer.todo or transfer.parts:
                self._drop_waiting(transfer)
            while transfer.parts:
                part = transfer.parts[-1]
                if not transfer.whole:
                    self._binding.releaseXferReq(part.handle)
                part.task.complete()
                transfer.parts.pop()
            transfer.state = State.IDLE
            self._close(transfer)

    def abandon(self, transfer: Transfer) -> None:
        """The program has lost its handle: what is under way ends, then everything is released."""
        transfer.abandoned = True
        if transfer.state is not State.PROC:
            with contextlib.suppress(Exception):
                self.release(transfer)

    def _close(self, transfer: Transfer) -> None:
        for lane in list(transfer.cached):
            self._binding.releaseXferReq(transfer.cached[lane])
            del transfer.cached[lane]
        self._binding.releaseXferReq(transfer.own)
        transfer.closed = True
        transfer.recipe.forget()

    # ---- the native path ---------------------------------------------------------------------------------------------

    def posted_path(self) -> PostedPath | None:
        """Returns the native version of start() and check(), or None. It covers transfers of one message that go
        through the program's own backend and whose permit is there at once."""
        make = getattr(self.session, "posted_path", None)
        if make is None:
            return None
        path: PostedPath | None = make(
            binding=self._binding,
            success=self._success,
            in_progress=self._in_progress,
            course=self._course,
            course_ns=COURSE_NS,
            unasked=self._later.unasked,
            begin=self._later.begin,
            transfer_of=transfer_of,
            take_over=self._take_over,
            wait_on=self._wait_on,
            start_permitted=self._start_permitted,
            check=self.check,
            fail=self._refused,
            proc=State.PROC,
        )
        if path is not None:
            known = self._path = weakref.ref(path)  # weak: the path refers to us, and the thread ends with the agent
            self.lanes.changed = lambda: None if (found := known()) is None else found.changed()
        return path

    def posting(self, transfer: Transfer) -> Posting | None:
        """Returns the native path's state for a transfer; None if it does not cover it."""
        path = self._path()
        if path is None or not transfer.whole:
            return None
        (piece,) = transfer.pieces
        what = (transfer.peer, piece.metadata, piece.size_bytes, transfer.stage, transfer.incoming)
        return path.posting(transfer, transfer.own, *what)

    def _course(self, peer: str) -> Course | None:
        """Returns what holds for transfers to the peer for COURSE_NS or until the lanes change; None if the native path
        must not be used."""
        if LOG.isEnabledFor(logging.DEBUG):
            return None
        own = {number: None for number in range(CLASSES_MAX) if self.lanes.route(peer, number) is None}
        marked = self.lanes.class_marked(peer)
        return self.nic, marked, marked, own, peer

    def _take_over(
        self,
        transfer: Transfer,
        notification: bytes,
        permit: Task | None,
        posted_s: float,
        answer: tuple[Any, Exception | None] | None,
    ) -> None:
        """Takes over a transfer that native code has posted. It is under way, with NIXL's last answer; or, if `permit`
        is None, it has arrived."""
        with transfer.lock:
            self._begin(transfer, notification)
            if permit is None:
                transfer.state, transfer.posted = State.DONE, transfer.own
                return
            part = Part(transfer.pieces[0], permit)
            part.state, part.handle = State.PROC, transfer.own
            transfer.parts.append(part)
            self._limit(transfer, posted_s)
            if answer is not None:
                self._answered(transfer, part, *answer)
                self._advance(transfer)
        if transfer.state is State.PROC:
            self._later.add(transfer)

    def _wait_on(
        self, transfer: Transfer, notification: bytes, client: Client, task_id: int, nic: int, submitted_ns: int
    ) -> None:
        """Takes over a transfer for which native code has asked for a permit; `nic` is the client's number of its
        NIC."""
        (piece,) = transfer.pieces
        with transfer.lock:
            self._begin(transfer, notification)
            message = self._message(transfer, piece)
            transfer.parts.append(Part(piece, self.session.submitted(message, client, task_id, nic, submitted_ns)))
            self._limit(transfer, submitted_ns / 1e9)
        self._later.add(transfer)

    def _start_permitted(self, transfer: Transfer, notification: bytes, permit: Task) -> str:
        """Starts a transfer that has its permit and goes in a lane."""
        with transfer.lock:
            if transfer.state is State.PROC:
                permit.cancel()
                raise self._statuses.nixlRepostActiveError("NIXL_ERR_REPOST_ACTIVE")
            self._begin(transfer, notification)
            state = self._start_whole(transfer, permit)
        return self._started(transfer, state)

    def _refused(self, transfer: Transfer, error: BaseException | None) -> None:
        """NIXL has refused the transfer. Its permit was given back."""
        with transfer.lock:
            self._begin(transfer, b"")
            transfer.state, transfer.failed = State.ERR, True
            if error is None:
                transfer.posted = transfer.own
            elif isinstance(error, Exception):
                transfer.error = error

    # ---- its state ---------------------------------------------------------------------------------------------------

    def _started(self, transfer: Transfer, state: State) -> str:
        """Returns NIXL's status for a transfer that has just been started."""
        if state is State.PROC:
            self._later.add(transfer)
        elif transfer.error is not None:
            raise transfer.error
        return state.value

    def _start_whole(self, transfer: Transfer, task: Task) -> State:
        """Starts a transfer of one message."""
        part = Part(transfer.pieces[0], task)
        transfer.parts.append(part)
        if not task.ready():
            self._limit(transfer)
            return self._advance(transfer, SPINS)
        transfer.lease_until_s = FOREVER_S
        self._post(transfer, part)
        if part.state is State.PROC:
            self._limit(transfer)
            return State.PROC
        transfer.parts.clear()
        transfer.state = part.state
        return part.state

    def _begin(self, transfer: Transfer, notification: bytes) -> None:
        """Marks the transfer as under way, for the first time or again."""
        transfer.state, transfer.direct = State.PROC, False
        transfer.posted_notification = notification
        if transfer.posted or transfer.failed:
            transfer.error, transfer.failed, transfer.posted = None, False, 0
            transfer.telemetry.clear()
            transfer.held_s, transfer.idle_since_s = 0.0, 0.0

    def _limit(self, transfer: Transfer, began_s: float | None = None) -> None:
        """Sets how long the transfer may be held, and until when it may be posted."""
        lease_s = self._sources.lease_s
        transfer.hold_max_s = min(self.session.max_hold_s, lease_s / HOLD_PARTS)
        transfer.lease_until_s = (time.monotonic() if began_s is None else began_s) + lease_s / POST_PARTS

    def _advance(self, transfer: Transfer, spins: int = 1) -> State:
        """Polls the parts and posts what may go. The caller holds the transfer's lock."""
        for part in transfer.parts:
            if part.state is State.PROC:
                self._poll(transfer, part)
        self._submit(transfer)
        overdue = self._overdue(transfer)
        for part in transfer.parts:
            if part.state is State.WAITING and (overdue or any(part.task.ready() for _ in range(spins))):
                self._post(transfer, part)
        transfer.parts[:] = [part for part in transfer.parts if part.state in (State.PROC, State.WAITING)]
        if transfer.failed:
            self._drop_waiting(transfer)
        if not transfer.parts and not transfer.todo:
            transfer.state = State.ERR if transfer.failed else State.DONE
        return transfer.state

    def _submit(self, transfer: Transfer) -> None:
        """Asks for permits for up to AHEAD pieces. The piece with the notification waits until all others have
        arrived."""
        notifies = bool(transfer.notification or transfer.posted_notification)
        open_parts = sum(part.state in (State.PROC, State.WAITING) for part in transfer.parts)
        while transfer.todo and open_parts < AHEAD and not transfer.failed:
            if notifies and len(transfer.todo) == 1 and open_parts:
                return
            piece = transfer.todo.popleft()
            left_bytes = 0
            if transfer.remainder is not None:
                left_bytes = transfer.remainder.ask(_key(transfer, piece), piece.size_bytes)
            task = submitted(self.session, self._once, self._message(transfer, piece, left_bytes))
            transfer.parts.append(Part(piece, task))
            open_parts += 1

    def _message(self, transfer: Transfer, piece: Piece, left_bytes: int = 0) -> Message:
        request_id, stage, layer, deadline_ns, batch = piece.metadata
        return Message(
            piece.size_bytes,
            transfer.stage if stage is None else stage,
            self.nic,
            request_id,
            deadline_ns,
            batch,
            layer,
            transfer.peer,
            self.lanes.class_marked(transfer.peer),
            transfer.incoming,
            left_bytes,
        )

    def _overdue(self, transfer: Transfer) -> bool:
        """Whether the transfer has stood still for permits as long as it may, all its pieces together."""
        if all(part.state is State.WAITING for part in transfer.parts):
            now_s = time.monotonic()
            transfer.idle_since_s = transfer.idle_since_s or now_s
            return transfer.held_s + now_s - transfer.idle_since_s >= transfer.hold_max_s
        if transfer.idle_since_s:
            transfer.held_s += time.monotonic() - transfer.idle_since_s
            transfer.idle_since_s = 0.0
        return transfer.held_s > 0.0 and transfer.held_s >= transfer.hold_max_s

    def _drop_waiting(self, transfer: Transfer) -> None:
        transfer.todo.clear()
        if transfer.remainder is not None:
            transfer.remainder.close()
        for part in transfer.parts:
            if part.state is State.WAITING:
                part.task.cancel()
        transfer.parts[:] = [part for part in transfer.parts if part.state is State.PROC]

    # ---- posting -----------------------------------------------------------------------------------------------------

    def _post(self, transfer: Transfer, part: Part) -> None:
        """Passes a part to NIXL, in the lane of its class if there is one."""
        if transfer.lease_until_s < FOREVER_S and time.monotonic() > transfer.lease_until_s:
            self._once.warn("nixl-lease", "a transfer was not posted in time for the lease of its memory; it failed")
            part.task.cancel()
            part.state, transfer.failed = State.ERR, True
            return
        lane = self.lanes.route(transfer.peer, part.task.wait(0.0))
        connected = lane is not None and self.lanes.is_connected(transfer.peer, lane)
        if lane is not None and connected:
            part.lane = lane
            try:
                self._post_in(transfer, part, lane, [self.lanes.handles[lane]])
                return
            except Exception as error:
                self.lanes.failed(transfer.peer, lane, error)
                part.lane = None
        self._post_own(transfer, part)
        if lane is not None and not connected:
            self._connect(transfer, lane)

    def _connect(self, transfer: Transfer, lane: str) -> None:
        """Connects a lane for later transfers, behind the one that has just been posted."""
        reach = transfer.recipe.reach()
        if reach is not None and (warming := self.warmer.begin(transfer.peer, lane, reach)) is not None:
            self._later.add(warming)

    def _post_own(self, transfer: Transfer, part: Part) -> None:
        try:
            self._post_in(transfer, part, "", transfer.backends)
        except Exception as error:
            part.task.cancel()
            part.state, transfer.failed, transfer.error = State.ERR, True, error

    def _post_in(self, transfer: Transfer, part: Part, lane: str, backends: list[Any]) -> None:
        """Posts the part by these backends. Raises what NIXL raises."""
        last = part.piece is transfer.pieces[-1]
        if transfer.whole:
            part.handle = transfer.cached.get(lane, 0) if lane else transfer.own
            if not part.handle:
                part.handle = transfer.recipe.make(self._binding, part.piece.positions, transfer.notification, backends)
                transfer.cached[lane] = part.handle
        else:
            notification = transfer.notification if last else b""
            part.handle = transfer.recipe.make(self._binding, part.piece.positions, notification, backends)
        status = self._binding.postXferReq(part.handle, transfer.posted_notification if last else b"")
        if status == self._in_progress:
            part.state = State.PROC
        else:
            self._ended(transfer, part, status == self._success)

    def _poll(self, transfer: Transfer, part: Part) -> None:
        """Asks NIXL for the status of a part. A part that failed in a lane is tried once more by the program's own
        backend."""
        error: Exception | None = None
        try:
            status = self._binding.getXferStatus(part.handle)
            if status == self._in_progress:
                return
        except Exception as caught:
            status, error = None, caught
        self._answered(transfer, part, status, error)

    def _answered(self, transfer: Transfer, part: Part, status: Any, error: Exception | None) -> None:
        """Handles NIXL's status of a part that has arrived or failed."""
        if status != self._success and part.lane is not None and time.monotonic() <= transfer.lease_until_s:
            self.lanes.failed(transfer.peer, part.lane, error or status)
            part.lane = None
            self._forget_handle(transfer, part)
            self._post_own(transfer, part)
            return
        transfer.error = transfer.error or error
        self._ended(transfer, part, status == self._success)

    def _ended(self, transfer: Transfer, part: Part, arrived: bool) -> None:
        part.state = State.DONE if arrived else State.ERR
        transfer.failed = transfer.failed or not arrived
        if arrived:
            part.task.complete()
        else:
            part.task.cancel()  # not complete: its bytes are still to come, and its time says nothing of the peer
        transfer.posted = part.handle
        if not transfer.whole:
            if self.measures:
                with contextlib.suppress(Exception):
                    transfer.telemetry.append(self._binding.getXferTelemetry(part.handle))
            self._forget_handle(transfer, part)

    def _forget_handle(self, transfer: Transfer, part: Part) -> None:
        """Releases a handle that only this part used."""
        if not transfer.whole:
            with contextlib.suppress(Exception):
                self._binding.releaseXferReq(part.handle)


def _key(transfer: Transfer, piece: Piece) -> Key:
    return piece.metadata.request_id, piece.metadata.stage, transfer.incoming


def transfer_of(posting: Posting, closed: bool) -> Transfer:
    """Makes Python's state of a transfer that native code has made."""
    recipe = FromPrepared(
        *(posting.operation, posting.local, posting.local_indices),
        *(posting.remote, posting.remote_indices, posting.skip_merge),
    )
    pieces = [Piece(posting.metadata, None, posting.size_bytes)]
    transfer = Transfer(posting.own, recipe, posting.peer, pieces, posting.stage, posting.incoming)
    transfer.notification, transfer.backends, transfer.closed = posting.notification, posting.backends, closed
    return transfer
