"""A process's session with the daemon of its node."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import threading
import weakref
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from mfsd._native import (
    REQUEST_DEMANDS_MAX,
    Client,
    Direction,
    FastPath,
    Mode,
    Open,
    Permit,
    PostedPath,
    Settled,
    Stage,
)
from mfsd.client.attachment import Attachment, Unattached
from mfsd.client.batch import Batch
from mfsd.client.checking import FLOW_BYTES_MAX, ID_MAX, LAYERS_MAX, TIME_MAX_NS, Checker, destination
from mfsd.client.checking import gid as gid_of
from mfsd.client.marked import marks_of_environment
from mfsd.client.shim import NONE_U32, Context, ForeignShimError, Shim, context_of
from mfsd.client.task import Task
from mfsd.client.types import (
    CLASSES_WITHOUT_DAEMON,
    Flow,
    Outlook,
    Request,
    Waiting,
    class_of_reads,
    class_without_permit,
)
from mfsd.client.waiting import WaitingRequests
from mfsd.policy.marks import Marks
from mfsd.policy.outlook import WATCHED_BYTES, WATCHED_RANK
from mfsd.transfer import Transfer

log = logging.getLogger("mfsd.client")

NIC_NAME_BYTES_MAX = 31
FOREVER_NS = 2**63
ENFORCE = int(Mode.ENFORCE)  # comparing with the enum member costs a transfer more than all else in this module


class Session:
    """A process's connection to its node's daemon: announces what transfers are for and asks for permits.

    All methods may be called from any thread. Without a daemon every task is permitted at once. When the daemon goes
    away, the session attaches to the next one by itself. Where the shim is preloaded the session borrows the shim's
    client, so that a process has only one.
    """

    def __init__(self, attachment_shim: Shim | None, socket_path: str | None, process: str | None, mode: Mode) -> None:
        self._checker = Checker()
        self._lock = threading.Lock()
        self._nics: list[tuple[str, int, int]] = []
        self._batches: set[Batch] = set()
        self._batch_of: dict[int, Batch] = {}
        self._waiting = WaitingRequests()
        self._watches = secrets.randbits(62) + 1
        """The number of the first row of :meth:`watch`. It is random, so that no other process uses it."""
        self._classes = CLASSES_WITHOUT_DAEMON
        self._settled = Settled(class_without_permit(CLASSES_WITHOUT_DAEMON))
        self._enforces = mode == Mode.ENFORCE
        self._shim = attachment_shim
        self._contexts = threading.local()
        self._attachment = Attachment(
            socket_path, process, mode, self._settled, self._prepare, self._announce_batches, attachment_shim
        )
        _sessions.add(self)

    @classmethod
    def open(cls, *, socket_path: str | None = None, process: str | None = None, mode: Mode = Mode.ENFORCE) -> Session:
        """Opens a session and tries to attach once. Without a daemon the session keeps trying in the background.

        `socket_path`: the daemon's socket; None means `$MFS_SOCKET`, else `/run/mfs/mfsd.sock`. `process`: the name
        that `mfsctl status` shows. `mode`: the most that is allowed; OBSERVE counts and never waits.

        Under the shim all three are the shim's. Under a shim of another version the session attaches to nothing and
        every task is permitted at once. Under `mfs-run --mode mark` it looks for no daemon either: every task is
        permitted at once, in the class of its stage and size.
        """
        shim, foreign = None, False
        try:
            shim = Shim.find()
        except ForeignShimError:
            foreign = True
            log.warning(
                "the preloaded libmfs_shim is of another version than this package; it schedules what this process "
                "posts by the daemon's rules alone, without requests and batches: use both of one version"
            )
        if (marks := marks_of_environment()) is not None:
            return MarkedSession(shim, marks)
        session = cls(shim, socket_path, process, mode)
        if foreign:  # a transfer with a permit from here would wait in the shim for another one
            session._attachment = Unattached()
        session._attachment.try_now()
        return session

    def close(self) -> None:
        """Ends all batches and detaches. The daemon drops tasks that are not complete."""
        with self._lock:
            batches = list(self._batches)
        for batch in batches:
            batch.end()
        self._waiting.watch([])
        self._waiting.replace([])
        if (client := self._attachment.client()) is not None:
            self._waiting.announce(client, self._settled.nics)
        self._attachment.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def scheduled(self) -> bool:
        """Whether a live daemon enforces its order. If not, every task is permitted at once."""
        client = self._attachment.client()
        return client is not None and self._enforces and client.mode() == ENFORCE

    @property
    def classes(self) -> int:
        """K, the number of classes on the wire: 0 is the highest, K-1 the scavenger's."""
        return self._classes

    @property
    def dscp(self) -> list[int | None]:
        """The DSCP of each class; None for a class that the fabric does not mark, or while no daemon has set it."""
        client = self._attachment.client()
        return client.dscp()[: self._classes] if client is not None else [None for _ in range(self._classes)]

    @property
    def classes_apart(self) -> frozenset[int]:
        """The classes that the wire keeps apart from that of collectives by another DSCP. Empty without a daemon."""
        client = self._attachment.client()
        return frozenset() if client is None else frozenset(k for k in range(self._classes) if client.apart >> k & 1)

    def class_of(self, stage: int) -> int:
        """Class of a connection that carries all transfers of a stage. A daemon would choose one for each transfer."""
        return class_of_reads(self._classes) if stage == Stage.REUSE else class_without_permit(self._classes)

    @property
    def max_hold_s(self) -> float:
        """How long a task waits for its permit at most, from its submission on. 0 without a daemon, which sets it."""
        client = self._attachment.client()
        return 0.0 if client is None else client.max_hold_ns / 1e9

    @property
    def refused(self) -> dict[str, int]:
        """How often invalid metadata was taken as unknown, by kind."""
        return self._checker.counts

    def nic(self, name: str, *, guid: int = 0, rate_bytes_per_s: int = 0) -> int:
        """Names a device (see `ibv_devices`) and returns the number by which this session knows it.

        The number stays the same when the daemon restarts. The daemon uses `rate_bytes_per_s` where neither its
        configuration nor the host gives a rate.
        """
        if not 0 < len(name.encode()) <= NIC_NAME_BYTES_MAX:
            self._checker.refuse("nic", name, f"a device name has 1 to {NIC_NAME_BYTES_MAX} bytes (see ibv_devices)")
        with self._lock:
            known = [n for n, _, _ in self._nics]
            if name in known:
                return known.index(name)
            number = len(self._nics)
            self._nics.append((name, guid, rate_bytes_per_s))
        client = self._attachment.client()
        if client is not None:
            self._name_nic(client, number)
        return number

    # ---- batches and requests --------------------------------------------------------------------

    def batch(
        self,
        batch_id: int,
        *,
        layers: int,
        requests: Sequence[Request] = (),
        compute_ns: int = 0,
        deadline_ns: int = 0,
    ) -> Batch:
        """Begins a batch of `layers` layers.

        `batch_id` is unique in the cluster and the same in all processes of the unit. `compute_ns` is the compute time
        of all layers together. Give `deadline_ns` only where you know it better than the requests say. End the batch
        when its requests have nothing left to send, not when they have nothing left to compute.
        """
        check = self._checker
        announced = [check.request(request, REQUEST_DEMANDS_MAX) for request in requests]
        batch = Batch(
            check.whole("batch_id", batch_id, ID_MAX, "use a number from 1 to 2**64 - 2"),
            check.whole("layers", layers, LAYERS_MAX, f"use 1 to {LAYERS_MAX}"),
            tuple(r for r in announced if r is not None),
            check.whole("compute_ns", compute_ns, TIME_MAX_NS, "use nanoseconds, 0 or more"),
            check.deadline_ns(deadline_ns),
            check,
        )
        if batch.batch_id == 0:
            if batch_id == 0:
                check.refuse("batch_id", 0, "use a number from 1 to 2**64 - 2")
            return batch
        self._waiting.begun(r.request_id for r in announced if r is not None)
        with self._lock:
            self._batches = {b for b in self._batches if not b.ended} | {batch}
            self._batch_of = {r: b for r, b in self._batch_of.items() if not b.ended}
            self._batch_of |= {r.request_id: batch for r in announced if r is not None}
        client = self._attachment.client()
        if client is not None:
            self._announce_batches(client)
        return batch

    def waiting(self, requests: Sequence[Waiting]) -> None:
        """Announces all requests that still queue at this engine, in any order.

        Requests of the previous call that are missing here have left the queue. What a request will fetch counts at its
        owners' ports. A request leaves the queue by itself when a batch of this session takes it. Where many requests
        wait and few change, :meth:`waiting_changed` is cheaper.
        """
        check = self._checker
        infos = [check.waiting(request, REQUEST_DEMANDS_MAX) for request in requests]
        self._waiting.replace([info for info in infos if info is not None])
        self._announce_waiting()

    def waiting_changed(self, requests: Sequence[Waiting], gone: Sequence[int] = ()) -> None:
        """As :meth:`waiting`, but names only what is new.

        `requests` have joined the queue or changed. `gone` are the numbers of those that have left it. All others stay
        announced, also to a daemon that is started again.
        """
        check = self._checker
        infos = [check.waiting(request, REQUEST_DEMANDS_MAX) for request in requests]
        self._waiting.change([info for info in infos if info is not None], gone)
        self._announce_waiting()

    def _announce_waiting(self) -> None:
        client = self._attachment.client()
        if client is not None:
            self._waiting.announce(client, self._settled.nics)

    # ---- what the network knows ------------------------------------------------------------------

    def pruned(self, request_id: int) -> bool:
        """Whether the daemon has pruned a request: it would be late, or would make others late.

        The request may be of any process of this node. False while nothing is known about it.
        """
        batch = self._batch_of.get(request_id)
        if batch is not None and batch.pruned(request_id):
            return True
        client = self._attachment.client()
        if client is None or not 0 < request_id <= ID_MAX:
            return False
        return bool(client.request_pruned(request_id))

    def watch(self, peers: Sequence[str], *, nic: int = 0) -> None:
        """Asks to be kept informed about the load at the ports of these owners, instead of those of the previous call.

        Otherwise the coordinator tells this node about an owner only while something here fetches from it or waits to,
        and :meth:`fetch_ns` answers by this node's port alone.
        """
        flows = [Flow(Stage.REUSE, peer, WATCHED_BYTES, nic, 0, True) for peer in peers if peer]
        rows = [
            Waiting(self._watches + at, WATCHED_RANK, flows=tuple(flows[at : at + REQUEST_DEMANDS_MAX]))
            for at in range(0, len(flows), REQUEST_DEMANDS_MAX)
        ]
        infos = [self._checker.waiting(row, REQUEST_DEMANDS_MAX) for row in rows]
        self._waiting.watch([info for info in infos if info is not None])
        self._announce_waiting()

    def fetch_ns(
        self,
        size_bytes: int,
        peer: str | bytes = "",
        deadline_ns: int = 0,
        *,
        nic: int = 0,
        announced_bytes: int = 0,
        owner_bytes: int | None = None,
    ) -> int | None:
        """Estimates how many ns a fetch of `size_bytes` from `peer` (an address or GID) would take from now on.

        It counts what goes before the fetch at this node's port and what is promised at the owner's. Without `peer`, or
        where nothing is known about the owner, this node's port alone decides. Returns None where nothing is known
        about that one either: decide as without MFS.

        `deadline_ns` 0: nothing waits for the fetch, so it goes behind everything that waits. `announced_bytes`: how
        much of this fetch :meth:`waiting` has already announced; it is taken off the load at the owner, which contains
        it. `owner_bytes`: the bytes through the owner's port, by default `size_bytes`; more where other NICs fetch
        parts too.
        """
        client = self._attachment.client()
        sizes = size_bytes, announced_bytes, owner_bytes or 0
        if client is None or min(sizes) < 0 or max(sizes) > FLOW_BYTES_MAX or nic not in self._settled.nics:
            return None
        gid = peer if isinstance(peer, bytes) else gid_of(peer)
        native, due = self._settled.nics[nic], int(deadline_ns > 0)
        return client.fetch_ns(native, size_bytes, gid or b"", due, announced_bytes, owner_bytes)

    def outlook(self) -> Outlook | None:
        """A copy of all that the network knows now, or None if it knows nothing: then decide as without MFS."""
        client = self._attachment.client()
        page = client.outlook() if client is not None else None
        if page is None:
            return None
        return Outlook(
            page.written_ns,
            page.valid_until_ns,
            {
                (number, bool(direction)): page.ports[2 * native + direction]
                for number, native in self._settled.nics.items()
                for direction in Direction
                if 2 * native + direction < len(page.ports)
            },
            {(far.peer, bool(far.direction)): far for far in page.fars},
            frozenset(page.pruned),
        )

    # ---- tasks -----------------------------------------------------------------------------------

    def submit(
        self,
        size_bytes: int,
        *,
        stage: int,
        nic: int = 0,
        request_id: int = 0,
        deadline_ns: int = 0,
        batch: Batch | None = None,
        layer: int = 0,
        peer: str | bytes = "",
        incoming: bool = False,
        class_marked: bool = False,
        left_bytes: int = 0,
    ) -> Task:
        """Asks for a permit for one message, or for several that go together. Does not sleep.

        Leave out what you do not know: without a request, a deadline or a batch the task goes behind those that have
        them. A stage that never waits (control, collective) is permitted at once and counted.
        :class:`mfsd.transfer.Transfer` explains the other arguments.
        """
        where = nic, request_id, deadline_ns, batch, layer, peer
        return self.submit_transfer(Transfer(size_bytes, stage, *where, class_marked, incoming, left_bytes))

    def permit(
        self,
        size_bytes: int,
        *,
        stage: int,
        nic: int = 0,
        request_id: int = 0,
        deadline_ns: int = 0,
        batch: Batch | None = None,
        layer: int = 0,
        peer: str | bytes = "",
        class_marked: bool = False,
        incoming: bool = False,
        left_bytes: int = 0,
        timeout_s: float | None = None,
    ) -> Task | Permit | None:
        """:meth:`submit` and :meth:`Task.wait` in one call, for a thread that has nothing else to do.

        The result is permitted and has a `wire_class`; complete or cancel it. None: nothing is scheduled.
        """
        where = nic, request_id, deadline_ns, batch, layer, peer
        transfer = Transfer(size_bytes, stage, *where, class_marked, incoming, left_bytes)
        return self.permit_transfer(transfer, timeout_s)

    def submit_transfer(self, transfer: Transfer) -> Task:
        """:meth:`submit`, for adapters."""
        transfer = self._checker.transfer(transfer)
        peer = self._checker.destination(transfer.peer)
        client = self._attachment.client()
        nic = self._settled.nics.get(self._checker.nic(transfer.nic), transfer.nic)
        task_id = None
        if client is not None:
            if client.nic_name(nic) == "":
                self._checker.refuse("nic", transfer.nic, "name it by Session.nic first")
                client = None
            elif client.gate(nic) >> min(transfer.stage, 7) & 1 and self._enforces:
                try:
                    task_id = client.submit_transfer(transfer, nic, self._slot_of(transfer.batch, client), peer)
                except OSError as error:  # daemon gone, ring or table full: it goes without a permit
                    client.count_open(Open.OVERFLOW if error.errno == errno.EAGAIN else Open.STALE)
        return Task(self, client, task_id, transfer, nic, self._settled.open_class)

    def permit_transfer(self, transfer: Transfer, timeout_s: float | None = None) -> Task | Permit | None:
        """:meth:`permit`, for adapters."""
        try:
            if (
                transfer.size_bytes <= FLOW_BYTES_MAX
                and transfer.request_id <= ID_MAX
                and transfer.deadline_ns <= TIME_MAX_NS
            ):
                return self._ask(transfer, FOREVER_NS if timeout_s is None else int(timeout_s * 1e9))
        except (OverflowError, TypeError, ValueError, LookupError):
            pass  # submit_transfer names the field; contextlib.suppress would double the time of this call
        if self._attachment.client() is None or not self._enforces:
            return None
        task = self.submit_transfer(transfer)
        task.wait(timeout_s)
        return task

    def take_transfer(self, transfer: Transfer) -> Task | Permit | None:
        """Takes a permit that is there at once, on credit; else returns None and has asked for nothing.

        None also for a transfer with anything invalid: :meth:`submit_transfer` names what.
        """
        settled = self._settled
        client = settled.client
        if client is None or not self._enforces:
            return None
        if transfer.request_id > ID_MAX or transfer.deadline_ns > TIME_MAX_NS:
            return None
        try:
            slot = None if transfer.batch is None else self._slot_of(transfer.batch, client)
            return client.take(transfer, settled.nics[transfer.nic], slot, destination(transfer.peer))
        except (OSError, OverflowError, TypeError, ValueError, LookupError):
            return None

    def _ask(self, transfer: Transfer, timeout_ns: int) -> Permit | None:
        """Asks without checks. Raises OverflowError, TypeError, ValueError or LookupError for invalid values."""
        settled = self._settled
        client = settled.client
        if client is None or not self._enforces:
            client = self._attachment.client()
            if client is None or not self._enforces:
                return None
        slot = None if transfer.batch is None else self._slot_of(transfer.batch, client)
        peer = destination(transfer.peer)
        permit = client.ask(transfer, settled.nics[transfer.nic], slot, peer, timeout_ns, settled.open_class)
        if permit is None:
            self._attachment.client()  # attaches again if the daemon is gone
        return permit

    def fast_path(self, **what: Any) -> FastPath | None:
        """The :class:`mfsd._native.FastPath` of this session's client, for libraries whose calls move one buffer each.
        None if this session never schedules anything."""
        return FastPath(self._settled, slot_of=self._slot_of, peer_of=destination, **what) if self._enforces else None

    def posted_path(self, **what: Any) -> PostedPath | None:
        """The :class:`mfsd._native.PostedPath` of this session's client, for libraries whose transfers are posted and
        then polled. None if this session never schedules anything."""
        return PostedPath(self._settled, slot_of=self._slot_of, peer_of=destination, **what) if self._enforces else None

    def submitted(self, transfer: Transfer, client: Client, task_id: int, nic: int, submitted_ns: int) -> Task:
        """The task of a message that a fast or posted path has submitted; `nic` is the client's number of the NIC."""
        return Task(self, client, task_id, transfer, nic, self._settled.open_class, submitted_ns)

    # ---- what the shim posts ---------------------------------------------------------------------

    @contextlib.contextmanager
    def context(
        self,
        *,
        stage: int,
        request_id: int = 0,
        deadline_ns: int = 0,
        batch: Batch | None = None,
        layer: int = 0,
        hold_until_ns: int = 0,
    ) -> Iterator[None]:
        """Marks what this thread posts inside as being for that stage, request, batch and layer.

        None of it is held past `hold_until_ns` (by time.monotonic_ns), for instance the end of a lease on the memory
        that it goes to. May be nested. Does nothing without the shim.
        """
        if self._shim is None:
            yield
            return
        before: Context | None = getattr(self._contexts, "current", None)
        self._contexts.current = context = self._context(stage, request_id, deadline_ns, batch, layer, hold_until_ns)
        self._shim.context_set(context)
        try:
            yield
        finally:
            self._contexts.current = before
            self._shim.context_set(before)

    @contextlib.contextmanager
    def memory_range(
        self,
        address: int,
        size_bytes: int,
        *,
        stage: int,
        request_id: int = 0,
        deadline_ns: int = 0,
        batch: Batch | None = None,
        layer: int = 0,
        hold_until_ns: int = 0,
    ) -> Iterator[None]:
        """Marks what any thread posts from this memory inside as being for that request.

        This reaches a library's own transfer threads. Does nothing without the shim.
        """
        if self._shim is None:
            yield
            return
        added = self._shim.range_add(
            address, size_bytes, self._context(stage, request_id, deadline_ns, batch, layer, hold_until_ns)
        )
        if not added:
            self._checker.refuse("memory_range", f"{address:#x} + {size_bytes}", "ranges must not overlap")
        try:
            yield
        finally:
            if added:
                self._shim.range_remove(address)

    @contextlib.contextmanager
    def lane(self, wire_class: int) -> Iterator[None]:
        """Sets the class of devices and queue pairs that this thread opens inside, and exempts them from holding.

        Call :meth:`submit` for what is sent on them. Does nothing without the shim.
        """
        if self._shim is None:
            yield
            return
        self._shim.lane_set(wire_class if 0 <= wire_class < self._classes else -1)
        try:
            yield
        finally:
            self._shim.lane_set(-1)

    # ---- inside ----------------------------------------------------------------------------------

    def _context(
        self, stage: int, request_id: int, deadline_ns: int, batch: Batch | None, layer: int, hold_until_ns: int
    ) -> Context:
        check = self._checker
        client = self._attachment.client()
        slot = self._slot_of(batch, client) if client is not None else None
        return context_of(
            request_id=check.request_id(request_id),
            deadline_ns=check.deadline_ns(deadline_ns),
            batch=NONE_U32 if slot is None else slot,
            layer=check.layer(layer),
            stage=check.stage(stage),
            hold_until_ns=check.whole(
                "hold_until_ns", hold_until_ns, TIME_MAX_NS, "use time.monotonic_ns() plus a lease"
            ),
        )

    def _slot_of(self, batch: Batch | None, client: Client) -> int | None:
        if batch is None:
            return None
        if batch.ended:
            self._checker.refuse("batch", batch.batch_id, "it has ended")
        return batch.slot_at(client)

    def _prepare(self, client: Client) -> None:
        """Sets up a client whose daemon knows nothing of this session yet."""
        self._classes = client.classes or CLASSES_WITHOUT_DAEMON
        self._settled.open_class = class_without_permit(self._classes)
        for number in range(len(self._nics)):
            self._name_nic(client, number)

    def _announce_batches(self, client: Client) -> None:
        """Announces the waiting requests and batches that this client does not know yet."""
        self._waiting.announce(client, self._settled.nics)
        with self._lock:
            for batch in self._batches:
                batch.announce(client, self._settled.nics)

    def _name_nic(self, client: Client, number: int) -> None:
        if not 0 < len(self._nics[number][0].encode()) <= NIC_NAME_BYTES_MAX:
            return  # refused by Session.nic
        try:
            self._settled.nics[number] = client.nic(*self._nics[number])
        except (OSError, ValueError) as error:
            self._checker.refuse("nic", self._nics[number][0], f"the daemon does not take it: {error}")

    def _forked(self) -> None:
        self._lock = threading.Lock()
        self._contexts = threading.local()
        self._waiting = WaitingRequests()
        self._attachment.forked()


class MarkedSession(Session):
    """A session for a process that only marks (`mfs-run --mode mark`).

    It asks no daemon. Each task is permitted at once, in the class of its stage and size.
    """

    piece_bytes = 1 << 62
    """So large that adapters cut no transfer: nothing waits for a permit, and a class goes by the whole size."""

    def __init__(self, shim: Shim | None, marks: Marks) -> None:
        super().__init__(shim, None, None, Mode.OBSERVE)
        self.marks = marks
        self._classes = len(marks.dscp)
        self._attachment = Unattached()

    @property
    def scheduled(self) -> bool:
        """True: adapters are to ask for the class of each transfer."""
        return True

    @property
    def dscp(self) -> list[int | None]:
        return list(self.marks.dscp)

    @property
    def max_hold_s(self) -> float:
        return 0.0

    def class_of(self, stage: int) -> int:
        """The class of a stage's transfers whose size is not known."""
        return self.marks.wire_class(stage)

    def submit_transfer(self, transfer: Transfer) -> Task:
        """Returns a task that is already permitted. Only the stage and size of the transfer matter."""
        transfer = self._checker.transfer(transfer)
        wire_class = self.marks.wire_class(transfer.stage, max(transfer.size_bytes, transfer.left_bytes))
        return Task(self, None, None, transfer, transfer.nic, wire_class)

    def take_transfer(self, transfer: Transfer) -> Task:
        return self.submit_transfer(transfer)

    def permit_transfer(self, transfer: Transfer, timeout_s: float | None = None) -> Task:
        return self.submit_transfer(transfer)

    def fast_path(self, **_: Any) -> FastPath | None:
        return None

    def posted_path(self, **_: Any) -> PostedPath | None:
        return None


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _forget_in_child() -> None:
    for session in list(_sessions):
        session._forked()


os.register_at_fork(after_in_child=_forget_in_child)
