"""One task: submitted, permitted, then completed or cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import TracebackType
from typing import Protocol

from mfsd._native import Client, Open
from mfsd.transfer import Transfer


class Pruned(Protocol):
    """The part of a session that a task needs."""

    def pruned(self, request_id: int) -> bool: ...


class Task:
    """Permission to send `size_bytes`. Made by :meth:`mfsd.client.Session.submit`.

    Call `wait` (or `ready` until it is true), send on the lane of that class, then call `complete`. Call `cancel` if it
    will not be sent. As a context manager a task waits on entry and completes on exit; after an exception it cancels.
    Every method may be called twice and from any thread.
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
        """`nic` is the client's number. `task_id` None: no daemon is asked and the task is permitted. `submitted_ns`
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
        """The priority on the wire, 0 highest; None until the task is permitted."""
        return self._class

    @property
    def pruned(self) -> bool:
        """Whether the daemon expects the request to be late: the engine may defer it."""
        return self._session.pruned(self.request_id)

    def ready(self) -> bool:
        """Returns whether the task may be sent now. Does not sleep."""
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
        """Sleeps until the task may be sent and returns its class on the wire.

        The task may also be sent, in a class behind what is scheduled, when `timeout_s` is over, when the daemon goes
        away, or `max_hold` after it was submitted. Tasks that are submitted together share that time.
        """
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
        """`wait` for asyncio; does not block the event loop."""
        if self.ready():
            return self.wait()
        return await asyncio.to_thread(self.wait, timeout_s)

    def complete(self) -> None:
        """Reports that the bytes have arrived, or that the NIC says so."""
        self._end(complete=True)

    def cancel(self) -> None:
        """Reports that the task will not be sent."""
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
            self._end(complete=False)  # a forgotten task must not fill the window

    # ---- inside ----------------------------------------------------------------------------------

    def _permitted(self, wire_class: int) -> None:
        if self._class is None:
            self._class = wire_class
            self._count("posted")

    def _open(self, why: Open) -> None:
        """Lets the task go without a permit."""
        client, task_id = self._client, self._task_id
        if client is not None and task_id is not None:
            client.count_open(why)
            client.cancel(task_id, bypassed=True)
        self._task_id = None
        self._permitted(self._open_class)

    def _count(self, what: str) -> None:
        """Counts in the client. Under the shim does nothing, since the shim counts what the NIC is given."""
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
