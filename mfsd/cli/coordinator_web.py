"""What a coordinator shows to browsers and monitoring: its page, /status.json, /healthz and /metrics.

A standby shows the leader's view. It asks the leader as any client would, with its own certificate; without an answer
it shows that it knows nothing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import math
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mfsd.cli import cluster_page
from mfsd.cli.ask_nodes import CannotAsk, NodeAnswer, asking, read
from mfsd.cli.cluster import ask_one
from mfsd.cli.coordinator_routers import routers
from mfsd.cli.message_json import plain
from mfsd.coordinator.history import INTERVALS
from mfsd.coordinator.relay import NotAsked
from mfsd.node.control import ID_MAX, WhyRequest, encode
from mfsd.observe import coordinator_metrics
from mfsd.observe.web import Answer, Making, Query, in_loop, serve
from mfsd.text import whole_number

if TYPE_CHECKING:
    from mfsd.coordinator.service import Service
    from mfsd.proto import mfs_pb2 as pb

PAGE_BATCHES = 200
"""Batches on the page; mfsctl coordinator status shows all."""
LEADER_S = 2.0
KEPT_S = 0.9
"""How long a status is reused. A page asks every second, and all open pages share one status."""
HISTORY_S = 4.0
"""The same for the history, which is larger than all the rest and changes less."""
ANSWERS_S = 2.0
"""Time for all nodes to answer what a request did."""


class View:
    """The leader's status, cached for all who ask within a second. It is this coordinator's own or, on a standby, the
    leader's, for which the threads of the page ask."""

    def __init__(self, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._loop = loop
        self._lock = threading.Lock()
        self._kept: tuple[float, pb.StatusReply, str] | None = None
        self._history_s = -math.inf
        """When the cached history was taken."""

    def now(self) -> tuple[pb.StatusReply, str]:
        """Returns the status, and the address of the standby that shows it ("" if it is the leader's own)."""
        with self._lock:
            if self._kept is None or time.monotonic() - self._kept[0] > KEPT_S:
                fresh = time.monotonic() - self._history_s > HISTORY_S
                shown, by = self._fetch(INTERVALS if fresh else 0)
                if fresh or self._kept is None or self._kept[2] != by:
                    self._history_s = time.monotonic() if fresh else -math.inf
                else:
                    shown.history.CopyFrom(self._kept[1].history)
                    shown.missed.extend(self._kept[1].missed)
                self._kept = (time.monotonic(), shown, by)
            return self._kept[1:]

    def _fetch(self, history_max: int) -> tuple[pb.StatusReply, str]:
        own = in_loop(lambda: self._service.seen(PAGE_BATCHES, history_max), self._loop)()
        if elsewhere(own):
            tls = self._service.settings.tls
            found, _ = ask_one(own.leader, tls, PAGE_BATCHES, LEADER_S, history_max=history_max)
            if found is not None and found.leads:
                return found, own.address
        return own, ""

    def with_requests(self, batch_id: int) -> pb.StatusReply:
        """Returns the status with the requests of one batch."""
        own = in_loop(lambda: self._service.seen(1, 0, batch_id), self._loop)()
        if elsewhere(own):
            found, _ = ask_one(own.leader, self._service.settings.tls, 1, LEADER_S, batch_id=batch_id)
            return own if found is None else found
        return own

    def asked(self, request: WhyRequest) -> tuple[int, list[NodeAnswer], str]:
        """Asks all nodes. Returns how many were asked, their answers, and why none could be asked."""
        own = in_loop(lambda: self._service.seen(1), self._loop)()
        try:
            if elsewhere(own):
                with asking(own.leader, self._service.settings.tls, encode(request), "", ANSWERS_S) as replies:
                    found = list(replies)
            else:
                found = asyncio.run_coroutine_threadsafe(self._ask(request), self._loop).result(2 * ANSWERS_S)
        except (CannotAsk, NotAsked) as error:
            return 0, [], str(error)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            raise TimeoutError from None
        return sum(reply.asked for reply in found), [read(reply) for reply in found if reply.node], ""

    async def _ask(self, request: WhyRequest) -> list[pb.AskReply]:
        from mfsd.proto import mfs_pb2 as pb

        found: list[pb.AskReply] = []

        async def collect() -> None:
            question = pb.AskRequest(request=encode(request))
            async with contextlib.aclosing(self._service.questions.ask(question)) as replies:
                async for reply in replies:
                    found.append(reply)  # noqa: PERF401  # what has come by the time that it is over counts

        with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
            await asyncio.wait_for(collect(), ANSWERS_S)
        return found


def elsewhere(own: pb.StatusReply) -> bool:
    """Whether another coordinator is reported to lead."""
    return not own.leads and bool(own.leader) and own.leader != own.address


def answers(service: Service, loop: asyncio.AbstractEventLoop) -> dict[str, Making]:
    """Returns handlers by path. They are called by threads other than the loop's."""
    bare = in_loop(lambda: service.seen(1), loop)
    leader = View(service, loop)

    def status(_: Query) -> Answer:
        shown, by = leader.now()
        return _json({**plain(shown, texts=True), "seen_by": by})

    def view(query: Query) -> Answer:
        shown, by = leader.now()
        return _json(cluster_page.view(shown, by, history="history" in query, ports_known=query.get("ports", "")))

    def port(query: Query) -> Answer:
        return _found(cluster_page.port(leader.now()[0], query.get("name", "")), "no daemon has a port of this name")

    def batch(query: Query) -> Answer:
        number = _number(query)
        if number is None:
            return NO_NUMBER
        found = cluster_page.batch(leader.with_requests(number), number)
        return _found(found, "this batch is not in the order: it has ended, or was never reported")

    def request(query: Query) -> Answer:
        number = _number(query)
        if number is None:
            return NO_NUMBER
        return _json(cluster_page.life(number, *leader.asked(WhyRequest(number, "request", layers=True))))

    def health(_: Query) -> Answer:
        own = bare()
        if own.leads:
            return Answer("200 OK", "text/plain", f"ok: leads, term {own.term}\n".encode())
        if own.leader:
            return Answer("200 OK", "text/plain", f"ok: stands by, {own.leader} leads\n".encode())
        return Answer("503 Service Unavailable", "text/plain", b"no leader is known: check etcd\n")

    def metrics(_: Query) -> Answer:
        own = bare()
        for node in own.nodes:
            node.tiers.ClearField("tiers")  # the sums contain them
        return Answer("200 OK", coordinator_metrics.CONTENT_TYPE, coordinator_metrics.text(plain(own)))

    return {
        "/view.json": view,
        "/port.json": port,
        "/batch.json": batch,
        "/request.json": request,
        "/status.json": status,
        "/healthz": health,
        "/metrics": metrics,
    }


def _number(query: Query) -> int | None:
    return whole_number(query.get("id", ""), ID_MAX) or None


def _json(fields: dict[str, Any], status: str = "200 OK") -> Answer:
    return Answer(status, "application/json", json.dumps(fields, separators=(",", ":")).encode())


def _found(fields: dict[str, Any] | None, otherwise: str) -> Answer:
    return _json({"problem": otherwise}, "404 Not Found") if fields is None else _json(fields)


NO_NUMBER = _json({"problem": "id must be a number above 0, such as ?id=4711"}, "400 Bad Request")


@contextlib.contextmanager
def web(host: str, port: int, service: Service) -> Iterator[int]:
    """Serves while the context is entered, in the running loop; yields the port. Raises OSError if it cannot listen."""
    loop = asyncio.get_running_loop()
    asked, posted = routers(service, loop)
    with serve(host, port, {**answers(service, loop), **asked}, posted) as served:
        yield served
