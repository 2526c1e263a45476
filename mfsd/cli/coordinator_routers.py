"""A coordinator's answers to routers, at its web address: `GET /v1/ports` and `POST /v1/transfer-time`.

Only the leader knows the state; a standby answers with the leader's address. An answer is valid for `ttl_ms` and must
not be used after that. `GET /v1/ports?watch=1` continues with a line for each change, until the coordinator no longer
leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from mfsd.coordinator import outlook
from mfsd.observe.web import Answer, Making, Posting, Query, in_loop

if TYPE_CHECKING:
    from mfsd.coordinator.cluster import Cluster
    from mfsd.coordinator.service import Service

PORTS_PER_PASS = 512
"""Ports read in one pass of the coordinator's loop, which takes about half a millisecond."""
WATCHERS_MAX = 16
"""Each takes a thread. Further watchers get a single answer."""
GAP_S = 0.02
TIME_SHARE = 0.05
"""Between two lines there is at least GAP_S, and making them takes at most this share of the time."""
LINES = "application/x-ndjson"
T = TypeVar("T")


class _Elsewhere(Exception):
    """This coordinator does not lead."""


def routers(service: Service, loop: asyncio.AbstractEventLoop) -> tuple[dict[str, Making], dict[str, Posting]]:
    """Returns the handlers of GET and of POST requests by path. They are called by threads other than the loop's."""

    def of_leader(read: Callable[[Cluster], T]) -> T:
        def now() -> T:
            cluster = service.leading()
            if cluster is None:
                raise _Elsewhere
            return read(cluster)

        return in_loop(now, loop)()

    def head(cluster: Cluster) -> dict[str, Any]:
        return {
            "term": service.role.term,
            "epoch": cluster.epoch,
            "ttl_ms": service.settings.heartbeat_ns / 1e6,
            "pruned": outlook.pruned(cluster),
        }

    def seen() -> dict[str, Any]:
        fields, count = of_leader(lambda cluster: (head(cluster), len(cluster.ports)))
        rows = [
            row
            for first in range(0, count, PORTS_PER_PASS)
            for row in of_leader(partial(outlook.ports, first=first, most=PORTS_PER_PASS))
        ]
        return {**fields, "ports": [msgspec.structs.asdict(row) for row in rows]}

    def watch() -> Generator[bytes, None, None]:
        changed = threading.Event()
        try:
            in_loop(lambda: service.watchers.add(changed.set), loop)()
            while True:
                begun_s = time.monotonic()
                changed.clear()
                fields = seen()
                spent_s = time.monotonic() - begun_s
                yield json.dumps(fields, separators=(",", ":")).encode() + b"\n"
                time.sleep(max(GAP_S, spent_s / TIME_SHARE))
                changed.wait(fields["ttl_ms"] / 3e3)
        except (_Elsewhere, TimeoutError):
            return
        finally:
            with contextlib.suppress(TimeoutError, RuntimeError):  # the loop hangs, or has ended
                in_loop(lambda: service.watchers.discard(changed.set), loop)()

    def ports(query: Query) -> Answer:
        try:
            if "watch" in query and of_leader(lambda _: len(service.watchers)) < WATCHERS_MAX:
                return Answer("200 OK", LINES, b"", watch())
            return _json(seen())
        except _Elsewhere:
            return _elsewhere(service)

    def transfer_time(body: bytes) -> Answer:
        try:
            asked = outlook.question(body)
            answer, fields = of_leader(lambda cluster: (outlook.transfer(cluster, asked), head(cluster)))
        except _Elsewhere:
            return _elsewhere(service)
        except ValueError as error:
            return _json({"problem": str(error)}, "400 Bad Request")
        except outlook.UnknownPort as error:
            return _json({"problem": str(error)}, "404 Not Found")
        return _json({**msgspec.structs.asdict(answer), **fields})

    return {"/v1/ports": ports}, {"/v1/transfer-time": transfer_time}


def _elsewhere(service: Service) -> Answer:
    leader = service.leader_elsewhere()
    return _json(
        {"problem": "this coordinator does not lead: ask the web address of the leader", "leader": leader},
        "503 Service Unavailable",
    )


def _json(fields: dict[str, Any], status: str = "200 OK") -> Answer:
    return Answer(status, "application/json", json.dumps(fields, separators=(",", ":")).encode())
