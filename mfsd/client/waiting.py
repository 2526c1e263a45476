"""Requests that still queue at the engine, as the daemon knows them: the difference from call to call."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable, Sequence

from mfsd._native import OUTLOOK_MINOR, Client, RequestInfo
from mfsd.client.batch import on_nics


class WaitingRequests:
    """Wanted and announced. A full table, or a daemon that does not know of such requests, leaves the rest unannounced:
    then their loads are not counted before they run, as without this."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: dict[int, RequestInfo] = {}
        self._client: Client | None = None
        self._announced: dict[int, tuple[RequestInfo, int]] = {}
        """Request -> what the daemon was announced, and its slot there."""

    def replace(self, requests: Sequence[RequestInfo]) -> None:
        with self._lock:
            self._wanted = {request.request_id: request for request in requests}

    def begun(self, request_ids: Iterable[int]) -> None:
        """They run from now on: a batch has them."""
        with self._lock:
            for request_id in request_ids:
                self._wanted.pop(request_id, None)
                self._end(request_id)

    def announce(self, client: Client, native_nic: dict[int, int]) -> None:
        """Tells this client what it does not know."""
        with self._lock:
            if client is not self._client:
                self._client, self._announced = client, {}
            if client.minor < OUTLOOK_MINOR:
                return
            for request_id in [r for r in self._announced if r not in self._wanted]:
                self._end(request_id)
            for request_id, info in self._wanted.items():
                known = self._announced.get(request_id)
                if known is not None and known[0] == info:
                    continue
                self._end(request_id)
                try:
                    slot = client.request_begin(on_nics(info, native_nic))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    return
                self._announced[request_id] = (info, slot)

    def _end(self, request_id: int) -> None:
        known = self._announced.pop(request_id, None)
        if known is None or self._client is None:
            return
        try:
            self._client.request_end(known[1])
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESHUTDOWN):
                raise
