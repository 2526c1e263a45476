"""What a coordinator shows to browsers and monitoring: its page, /status.json, /healthz and /metrics.

One that stands by shows what the leader sees, which it asks as any client would, with its own certificate;
without an answer it shows that it knows nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mfsd.cli.cluster import ask_one
from mfsd.cli.plain import plain
from mfsd.observe import coordinator_metrics
from mfsd.observe.web import Answer, Making, in_loop, serve

if TYPE_CHECKING:
    from mfsd.coordinator.service import Service
    from mfsd.proto import mfs_pb2 as pb

PAGE_BATCHES = 200
"""Shown on the page; mfsctl coordinator status shows all."""
LEADER_S = 2.0
KEPT_S = 0.9
"""A page asks every second; several pages that are open ask the leader once."""


class LeaderView:
    """The leader's status, asked by the threads of the page of one that stands by."""

    def __init__(self, service: Service) -> None:
        self._tls = service.settings.tls
        self._lock = threading.Lock()
        self._kept: tuple[float, str, pb.StatusReply | None] = (0.0, "", None)

    def of(self, leader: str) -> pb.StatusReply | None:
        with self._lock:
            at_s, asked, reply = self._kept
            if asked != leader or time.monotonic() - at_s > KEPT_S:
                reply, _ = ask_one(leader, self._tls, PAGE_BATCHES, LEADER_S)
                self._kept = (time.monotonic(), leader, reply)
            return reply


def answers(service: Service, loop: asyncio.AbstractEventLoop) -> dict[str, Making]:
    """By path. To be called by other threads than the loop's."""
    seen = in_loop(lambda: service.seen(PAGE_BATCHES), loop)
    bare = in_loop(lambda: service.seen(1), loop)
    leader = LeaderView(service)

    def status() -> Answer:
        own = seen()
        shown, by = own, ""
        if not own.leads and own.leader and own.leader != own.address:
            found = leader.of(own.leader)
            if found is not None and found.leads:
                shown, by = found, own.address
        fields: dict[str, Any] = {**plain(shown, texts=True), "seen_by": by}
        return Answer("200 OK", "application/json", json.dumps(fields).encode())

    def health() -> Answer:
        own = bare()
        if own.leads:
            return Answer("200 OK", "text/plain", f"ok: leads, term {own.term}\n".encode())
        if own.leader:
            return Answer("200 OK", "text/plain", f"ok: stands by, {own.leader} leads\n".encode())
        return Answer("503 Service Unavailable", "text/plain", b"no leader is known: look at etcd\n")

    def metrics() -> Answer:
        return Answer("200 OK", coordinator_metrics.CONTENT_TYPE, coordinator_metrics.text(plain(bare())))

    return {"/status.json": status, "/healthz": health, "/metrics": metrics}


@contextlib.contextmanager
def web(host: str, port: int, service: Service) -> Iterator[int]:
    """Serves while it is entered, in the loop that runs now; the port. OSError when it cannot listen."""
    with serve(host, port, lambda: b"{}", answers(service, asyncio.get_running_loop())) as served:
        yield served
