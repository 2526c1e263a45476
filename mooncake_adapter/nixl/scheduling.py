"""Asks for permits for the transfers of one agent and posts them: the heart of NIXL's adapter.

A transfer is posted by the call that starts it, where its permit is there at once. Else the call answers "PROC", as
NIXL does for whatever takes a while, and it is posted behind that: by a thread, or when the program asks how it stands.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from mfsd.transfer import Transfer as Message
from mooncake_adapter.metadata import MetadataSources
from mooncake_adapter.mooncake.permits import submitted, taken_or_submitted
from mooncake_adapter.nixl.lanes import Lanes
from mooncake_adapter.nixl.later import Later
from mooncake_adapter.nixl.pieces import Piece
from mooncake_adapter.nixl.transfers import Part, State, Transfer
from mooncake_adapter.nixl.warming import Warmer, Warming
from mooncake_adapter.session import Session
from mooncake_adapter.warn_once import WarnOnce

AHEAD = 8
"""Pieces of one transfer that are under way or ask for permits at once."""
SPINS = 20
HOLD_PARTS = 4
"""What of a lease may go by in waiting for permits: one of so many parts."""
FOREVER_S = float("inf")
POST_PARTS = 2
"""After one of so many parts of the lease nothing is posted any more: the memory may belong to another request when it
lands. The lease began before the transfer was started, and is renewed until then."""


class Scheduling:
    """The transfers of one agent. Errors of MFS never reach the program: the transfer then goes as it would without."""

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
        self.measures = False
        """The program wants NIXL's telemetry."""
        self.warmer = Warmer(binding, statuses, lanes)
        self._later = Later(self)

    # ---- the program's calls -----------------------------------------------------------------------------------------

    def start(self, transfer: Transfer, notification: bytes) -> str:
        """Posts the transfer, or what of it is permitted; NIXL's answer."""
        with transfer.lock:
            if transfer.state is State.PROC:
                raise self._statuses.nixlRepostActiveError("NIXL_ERR_REPOST_ACTIVE")
            state = self._start_whole(transfer, notification) if transfer.whole else None
            if state is None:
                if not transfer.whole:
                    self._begin(transfer, notification)
                    self._limit(transfer)
                    transfer.todo.extend(transfer.pieces)
                state = self._advance(transfer, SPINS)
        if state is State.PROC:
            self._later.add(transfer)
        elif transfer.error is not None:
            raise transfer.error
        return state.value

    def check(self, transfer: Transfer) -> str:
        """How it stands."""
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
        """For the thread: does what can be done now; whether anything is left to do."""
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
        """The program is done with it. What was not posted never will be. Raises what NIXL does."""
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
        """The program has lost its handle: what is under way ends, then all is released."""
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

    # ---- its state ---------------------------------------------------------------------------------------------------

    def _start_whole(self, transfer: Transfer, notification: bytes) -> State | None:
        """Starts a transfer of one message; None where it is left to be moved on."""
        self._begin(transfer, notification)
        piece = transfer.pieces[0]
        part = Part(piece, taken_or_submitted(self.session, self._once, self._message(transfer, piece)))
        transfer.parts.append(part)
        if not part.task.ready():
            self._limit(transfer)
            return None
        transfer.lease_until_s = FOREVER_S
        self._post(transfer, part)
        if part.state is State.PROC:
            self._limit(transfer)
            return State.PROC
        transfer.parts.clear()
        transfer.state = part.state
        return part.state

    def _begin(self, transfer: Transfer, notification: bytes) -> None:
        """It is under way from now on, for the first time or again."""
        transfer.state, transfer.direct = State.PROC, False
        transfer.posted_notification = notification
        if transfer.posted or transfer.failed:
            transfer.error, transfer.failed, transfer.posted = None, False, 0
            transfer.telemetry.clear()
            transfer.held_s, transfer.idle_since_s = 0.0, 0.0

    def _limit(self, transfer: Transfer) -> None:
        """For how long it may be held, and until when it may be posted."""
        lease_s = self._sources.lease_s
        transfer.hold_max_s = min(self.session.max_hold_s, lease_s / HOLD_PARTS)
        transfer.lease_until_s = time.monotonic() + lease_s / POST_PARTS

    def _advance(self, transfer: Transfer, spins: int = 1) -> State:
        """Asks how the parts stand and posts what may go. With the transfer's lock."""
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
        """Asks for permits, some pieces ahead. The one with the notification comes when all others have arrived."""
        notifies = bool(transfer.notification or transfer.posted_notification)
        open_parts = sum(part.state in (State.PROC, State.WAITING) for part in transfer.parts)
        while transfer.todo and open_parts < AHEAD and not transfer.failed:
            if notifies and len(transfer.todo) == 1 and open_parts:
                return
            piece = transfer.todo.popleft()
            task = submitted(self.session, self._once, self._message(transfer, piece))
            transfer.parts.append(Part(piece, task))
            open_parts += 1

    def _message(self, transfer: Transfer, piece: Piece) -> Message:
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
        )

    def _overdue(self, transfer: Transfer) -> bool:
        """Whether it has stood still for permits as long as it may, all its pieces together."""
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
        for part in transfer.parts:
            if part.state is State.WAITING:
                part.task.cancel()
        transfer.parts[:] = [part for part in transfer.parts if part.state is State.PROC]

    # ---- posting -----------------------------------------------------------------------------------------------------

    def _post(self, transfer: Transfer, part: Part) -> None:
        """Hands a part to NIXL, in the lane of its class where there is one."""
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
        """Connects a lane for the transfers to come, behind the one that has just been posted."""
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
        """Posts the part by these backends. Raises what NIXL does."""
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
        """Asks NIXL how the part stands. One that failed in a lane is tried once more by the program's own backend."""
        error: Exception | None = None
        try:
            status = self._binding.getXferStatus(part.handle)
            if status == self._in_progress:
                return
        except Exception as caught:
            status, error = None, caught
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
            part.task.cancel()  # of its request these bytes are still to come, and its peer is not a quick one
        transfer.posted = part.handle
        if not transfer.whole:
            if self.measures:
                with contextlib.suppress(Exception):
                    transfer.telemetry.append(self._binding.getXferTelemetry(part.handle))
            self._forget_handle(transfer, part)

    def _forget_handle(self, transfer: Transfer, part: Part) -> None:
        """Releases a handle that only this part had."""
        if not transfer.whole:
            with contextlib.suppress(Exception):
                self._binding.releaseXferReq(part.handle)
