"""A batch as the engine sees it: it begins, passes layer boundaries, and ends."""

from __future__ import annotations

import errno
import threading
from types import TracebackType

from mfsd._native import REQUESTS_MAX, Client, Judgement, RequestInfo
from mfsd.client.checking import Checker


class Batch:
    """Requests that run their layers together. Made by :meth:`mfsd.client.Session.batch`.

    A batch outlives its daemon: the session announces it to the next one.
    """

    def __init__(
        self,
        batch_id: int,
        layers: int,
        requests: tuple[RequestInfo, ...],
        compute_ns: int,
        deadline_ns: int,
        checker: Checker,
    ) -> None:
        self.batch_id = batch_id
        self._layers, self._compute_ns, self._deadline_ns = layers, compute_ns, deadline_ns
        self._requests = {r.request_id: r for r in requests}
        self._checker = checker
        self._lock = threading.Lock()
        self._layer = 0
        self._ended = False
        self._client: Client | None = None
        self._slot: int | None = None
        self._request_slots: dict[int, int] = {}

    @property
    def slot(self) -> int | None:
        """The batch's number in the daemon's table for this process; None while no daemon knows the batch."""
        return self._slot

    @property
    def ended(self) -> bool:
        return self._ended

    def layer(self, layer_current: int) -> None:
        """Says that the batch begins this layer: later ones come nearer. Costs one store in shared memory."""
        layer_current = self._checker.layer(layer_current)
        self._layer = layer_current
        client, slot = self._client, self._slot
        if client is not None and slot is not None and not self._ended:
            client.batch_layer(slot, layer_current)

    def done(self, request_id: int) -> None:
        """Says that a request has nothing left to send, or was aborted. The batch goes on without it."""
        with self._lock:
            self._requests.pop(request_id, None)
            slot = self._request_slots.pop(request_id, None)
            if self._client is not None and slot is not None and not self._ended:
                _ended_before(self._client.request_end, slot)

    def pruned(self, request_id: int) -> bool:
        """Whether the daemon has pruned the request: its last stage goes only when nothing else waits."""
        client, slot = self._client, self._request_slots.get(request_id)
        if client is None or slot is None:
            return False
        return bool(client.request_judgement(slot) & Judgement.PRUNED)

    def end(self) -> None:
        """Ends the batch: its requests have nothing left to compute or to send. May be called twice."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            if self._client is not None and self._slot is not None:
                _ended_before(self._client.batch_end, self._slot)
            self._client, self._slot = None, None
            self._request_slots = {}

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    # ---- for the session -------------------------------------------------------------------------

    def slot_at(self, client: Client) -> int | None:
        """Returns the slot if `client` knows the batch, else None."""
        return self._slot if self._client is client else None

    def announce(self, client: Client, native_nic: dict[int, int]) -> None:
        """Announces the batch to a daemon; if it has too many requests, without them and by its deadline alone."""
        with self._lock:
            if self._ended or self.slot_at(client) is not None:
                return
            requests = [on_nics(r, native_nic) for r in self._requests.values()]
            for announced in (requests, []):
                try:
                    slot, slots = client.batch_begin_with(
                        self.batch_id, self._layers, announced, self._deadline_ns, self._compute_ns
                    )
                except OSError as error:
                    self._checker.refuse(
                        "batch" if not announced else "requests",
                        f"batch {self.batch_id} of {len(announced)} requests",
                        f"{error.strerror}: end batches that are over; at most {REQUESTS_MAX} requests are open",
                    )
                    continue
                self._client, self._slot = client, slot
                self._request_slots = dict(zip((r.request_id for r in announced), slots, strict=True))
                if self._layer:
                    client.batch_layer(slot, self._layer)
                return


def on_nics(request: RequestInfo, native_nic: dict[int, int]) -> RequestInfo:
    """Returns the request with the daemon's NIC numbers in place of the session's."""
    if all(native_nic.get(d.nic, d.nic) == d.nic for d in request.demands):
        return request
    return request._replace(
        demands=tuple(d._replace(nic=native_nic.get(d.nic, d.nic)) for d in request.demands),
    )


def _ended_before(end: object, slot: int) -> None:
    try:
        end(slot)  # type: ignore[operator]
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
