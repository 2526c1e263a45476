"""One task: asked for, permitted, complete."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import TracebackType
from typing import Protocol

from mfsd._native import Client, Open
from mfsd.transfer import Transfer


class Pruned(Protocol):
    """The session, as far as a task needs it."""

    def pruned(self, request_id: int) -> bool: ...


class Task:
    """Permission to send `size_bytes`. Made by :meth:`mfsd.client.Session.submit`.

    `wait` (or `ready` until it is true), send on the lane of that class, then `complete`; or `cancel`. As a context
    manager it waits on entry, and completes on exit or, after an exception, cancels. Every method may be called twice
    and from any thread.
    """

    def __init__(
        self,
        session: Pruned,
        client: Client | None,
        task_id: int | None,
        transfer: Transfer,
        nic: int,
        open_class: int,
        submitted_ns: int | None = None,
    ) -> None:
        """`nic`: the client's number of it. `task_id` None: no daemon is asked, the task is permitted. `submitted_ns`
        None: now."""
        self.size_bytes = transfer.size_bytes
        self.request_id = transfer.request_id
        self._session = session
        self._client = client
        self._task_id = task_id
        self._stage, self._nic = transfer.stage, nic
        self._open_class = open_class
        self._class: int | None = None
        self._over = False
        self._submitted_ns = time.monotonic_ns() if submitted_ns is None else submitted_ns
        if task_id is None:
            self._permitted(open_class)

    @property
    def wire_class(self) -> int | None:
        """The priority on the wire, 0 highest; None until it is permitted."""
        return self._class

    @property
    def pruned(self) -> bool:
        """The daemon thinks that its request cannot be in time: the engine may defer it."""
        return self._session.pruned(self.request_id)

    def ready(self) -> bool:
        """Whether it may be sent now. Does not sleep."""
        if self._class is None and not self._over:
            client, task_id = self._client, self._task_id
            assert client is not None and task_id is not None
            if not client.alive():
                self._open(Open.STALE)
            else:
                with contextlib.suppress(OSError):
                    permitted = client.permit(task_id)
                    if permitted is not None:
                        self._permitted(permitted)
        return self._class is not None

    def wait(self, timeout_s: float | None = None) -> int:
        """Sleeps until it may be sent, and answers its class on the wire. After `timeout_s`, `max_hold` after it was
        submitted (so what is submitted together shares that), or when the daemon goes away, it may be sent too: behind
        what is scheduled."""
        if self._class is None and not self._over:
            client, task_id = self._client, self._task_id
            assert client is not None and task_id is not None
            timeout_ns = max(0, self._submitted_ns + client.max_hold_ns - time.monotonic_ns())
            if timeout_s is not None:
                timeout_ns = min(timeout_ns, max(0, int(timeout_s * 1e9)))
            try:
                permitted = client.permit_wait(task_id, timeout_ns)
            except OSError:
                permitted = None
            if permitted is None:
                self._open(Open.HOLD if client.alive() else Open.STALE)
            else:
                self._permitted(permitted)
        return self._open_class if self._class is None else self._class

    async def permitted(self, timeout_s: float | None = None) -> int:
        """`wait` for asyncio: the loop goes on meanwhile."""
        if self.ready():
            return self.wait()
        return await asyncio.to_thread(self.wait, timeout_s)

    def complete(self) -> None:
        """The bytes have arrived (or the NIC has reported so)."""
        self._end(complete=True)

    def cancel(self) -> None:
        """It will not be sent."""
        self._end(complete=False)

    def __enter__(self) -> Task:
        self.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(complete=kind is None)

    def __del__(self) -> None:
        if not getattr(self, "_over", True):
            self._end(complete=False)  # forgotten: it must not fill the window

    # ---- inside ----------------------------------------------------------------------------------

    def _permitted(self, wire_class: int) -> None:
        if self._class is None:
            self._class = wire_class
            self._count("posted")

    def _open(self, why: Open) -> None:
        """Goes without a permit."""
        client, task_id = self._client, self._task_id
        if client is not None and task_id is not None:
            client.count_open(why)
            client.cancel(task_id, bypassed=True)
        self._task_id = None
        self._permitted(self._open_class)

    def _count(self, what: str) -> None:
        """Under the shim it is the shim that counts what the NIC is given."""
        client = self._client
        if client is None or client.borrowed:
            return
        count = client.count_posted if what == "posted" else client.count_completed
        count(self._nic, self._stage, self.size_bytes)

    def _end(self, complete: bool) -> None:
        if self._over:
            return
        self._over = True
        client, task_id = self._client, self._task_id
        if client is not None and task_id is not None:
            if complete:
                client.complete(task_id)
            else:
                client.cancel(task_id)
        if self._class is not None:
            self._count("completed")
