"""Requests that still queue at the engine: keeps the daemon's view up to date by the difference from call to call."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable

from mfsd._native import OUTLOOK_MINOR, Client, RequestInfo
from mfsd.client.batch import on_nics


class WaitingRequests:
    """The requests that are to be announced, and those that are.

    A full table, or a daemon that does not know waiting requests, leaves the rest unannounced. Their loads then count
    only once they run.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: dict[int, RequestInfo] = {}
        self._client: Client | None = None
        self._announced: dict[int, int] = {}
        """Request -> its slot at the daemon."""
        self._unannounced: dict[int, None] = {}
        """Requests to be announced, new or changed. The first have waited for the longest time."""
        self._watching: frozenset[int] = frozenset()
        """Rows that are no requests: they make the daemon report on ports."""

    def replace(self, requests: Iterable[RequestInfo]) -> None:
        """Sets the waiting requests to exactly these. Rows of `watch` stay."""
        wanted = {request.request_id: request for request in requests}
        with self._lock:
            for request_id in self._wanted.keys() - wanted.keys() - self._watching:
                self._drop(request_id)
            for request in wanted.values():
                self._put(request)

    def watch(self, rows: Iterable[RequestInfo]) -> None:
        """Sets the watching rows to exactly these. They stay until the next call, whatever queues."""
        watching = {row.request_id: row for row in rows}
        with self._lock:
            for request_id in self._watching - watching.keys():
                self._drop(request_id)
            self._watching = frozenset(watching)
            for row in watching.values():
                self._put(row)

    def change(self, requests: Iterable[RequestInfo], gone: Iterable[int]) -> None:
        """Adds or replaces `requests`, and removes the numbers in `gone`."""
        with self._lock:
            for request_id in gone:
                self._drop(request_id)
            for request in requests:
                self._put(request)

    def begun(self, request_ids: Iterable[int]) -> None:
        """Removes requests that run from now on: their batch announces them."""
        with self._lock:
            for request_id in request_ids:
                self._drop(request_id)

    def announce(self, client: Client, native_nic: dict[int, int]) -> None:
        """Tells this client what it does not know yet."""
        with self._lock:
            if client is not self._client:
                self._client, self._announced = client, {}
                self._unannounced = dict.fromkeys(self._wanted)
            if not self._unannounced or client.minor < OUTLOOK_MINOR:
                return
            for request_id in list(self._unannounced):
                self._end(request_id)
                try:
                    slot = client.request_begin(on_nics(self._wanted[request_id], native_nic))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    return
                self._announced[request_id] = slot
                del self._unannounced[request_id]

    def _put(self, request: RequestInfo) -> None:
        if self._wanted.get(request.request_id) != request:
            self._wanted[request.request_id] = request
            self._unannounced[request.request_id] = None

    def _drop(self, request_id: int) -> None:
        if self._wanted.pop(request_id, None) is not None:
            self._unannounced.pop(request_id, None)
            self._end(request_id)

    def _end(self, request_id: int) -> None:
        slot = self._announced.pop(request_id, None)
        if slot is None or self._client is None:
            return
        try:
            self._client.request_end(slot)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESHUTDOWN):
                raise
