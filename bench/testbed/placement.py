"""Chooses a request's decode worker by what the workers' ports owe, in modes that do so: the one that owes least.

The coordinator reports what its daemons have announced: the last stages of running batches. No daemon announces
requests that still queue or have chunks to come, and recent announcements have not reached the coordinator yet. So sent
requests are counted here in addition to the coordinator's answer, from the choice until a reading that can contain
them.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from bench.sim.cluster import Request
from mfsd.policy.route import Call, Replica, Role, Router, choose
from mfsd.serve.gateway.ports import LINES, SILENT_S, WATCH, PortRows, incoming

AGE_NS = 50_000_000
"""What began this long before a line arrived is contained in it."""
RETRY_S = 0.2
"""Interval after which a coordinator that does not answer is asked again."""


class Reading(NamedTuple):
    """What a line of the coordinator reports of ports."""

    at_ns: int
    """When it arrived, CLOCK_MONOTONIC."""
    until_ns: int
    """Until when it is valid."""
    owed_bytes: dict[str, int]
    """By the name of a port."""


def reading_of(line: bytes, now_ns: int) -> Reading:
    """Parses a line. Raises msgspec.MsgspecError if it is not one of a coordinator."""
    rows = msgspec.json.decode(line, type=PortRows)
    return Reading(now_ns, now_ns + round(rows.ttl_ms * 1e6), {row.name: row.owed_bytes for row in rows.ports})


class Ports:
    """Reads the coordinator's lines on a thread of its own, because the controller has a leg to run."""

    def __init__(self, address: str) -> None:
        """`address`: HOST:PORT of the coordinator's page, which need not answer yet."""
        self.latest: Reading | None = None
        self._url = f"http://{address}{WATCH}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ports", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Returns when the thread has ended: with its next line, or as soon as the coordinator is gone."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            # Its latest line is valid until its time is over.
            with contextlib.suppress(OSError, http.client.HTTPException, msgspec.MsgspecError):
                self._watch()
            self._stop.wait(RETRY_S)

    def _watch(self) -> None:
        with urllib.request.urlopen(self._url, timeout=SILENT_S) as answer:
            if answer.headers.get_content_type() != LINES:
                return
            for line in answer:
                if self._stop.is_set():
                    return
                self.latest = reading_of(line, time.monotonic_ns())


class _Sent(msgspec.Struct):
    """A request whose KV has not all arrived. Bytes are the testbed's."""

    worker: int
    queued_bytes: int
    """Bytes that are in no batch yet."""


class Placement:
    """Chooses workers, and counts what was sent to them. Pure: times are given, CLOCK_MONOTONIC."""

    def __init__(self, addresses: Sequence[str], rate_bytes_per_s: int) -> None:
        """`addresses`: of the workers' ports, which are all equally fast."""
        self._ports = [incoming(address) for address in addresses]
        self._rate_bytes_per_s = rate_bytes_per_s
        self._sent: dict[int, _Sent] = {}
        self._begun: deque[tuple[int, int, int]] = deque()
        """When a batch with these bytes for a worker began: (time, worker, bytes), oldest first."""
        self.known = self.unknown = 0
        """Requests that were placed by what ports owe, and those that kept the scenario's worker."""
        self._ages_ns = 0

    def place(self, request: Request, size_bytes: int, reading: Reading | None, now_ns: int) -> Request:
        """Returns an arriving request with its worker: the one that it has if no valid reading exists. The given
        request is not changed, because other modes serve it, too."""
        if reading is None or now_ns > reading.until_ns:
            self.unknown += 1
        else:
            self.known += 1
            self._ages_ns += now_ns - reading.at_ns
            worker = self._least(self.owed_bytes(reading), size_bytes)
            request = msgspec.structs.replace(request, decode=worker)
        self._sent[request.number] = _Sent(request.decode, size_bytes)
        return request

    @property
    def counts(self) -> dict[str, int]:
        """Returns how many were placed by a reading and how many not, and the mean age of the readings."""
        age_ms = round(self._ages_ns / max(1, self.known) / 1e6)
        return {"known": self.known, "unknown": self.unknown, "age_ms": age_ms}

    def begun(self, number: int, size_bytes: int, now_ns: int) -> None:
        """A batch has begun that ships these bytes of the request, and the daemons are informed."""
        sent = self._sent[number]
        sent.queued_bytes -= size_bytes
        self._begun.append((now_ns, sent.worker, size_bytes))

    def arrived(self, number: int) -> None:
        """All KV of the request has arrived."""
        del self._sent[number]

    def owed_bytes(self, reading: Reading) -> list[int]:
        """Returns the bytes owed by each worker. A port that the coordinator does not mention owes nothing: no daemon
        runs there, so it is known only while another one sends to it."""
        owed = [reading.owed_bytes.get(port, 0) for port in self._ports]
        for sent in self._sent.values():
            owed[sent.worker] += sent.queued_bytes
        while self._begun and self._begun[0][0] <= reading.at_ns - AGE_NS:
            self._begun.popleft()
        for _, worker, size_bytes in self._begun:
            owed[worker] += size_bytes
        return owed

    def _least(self, owed: Sequence[int], size_bytes: int) -> int:
        """Chooses by the gateway's own rule for decode workers."""
        under_way = Counter(sent.worker for sent in self._sent.values())
        names = [str(worker) for worker in range(len(owed))]
        replicas = [
            Replica(
                name=name,
                role=Role.DECODE,
                running=under_way[worker],
                port_rate_bytes_per_s=self._rate_bytes_per_s,
                owed_bytes=owed[worker],
            )
            for worker, name in enumerate(names)
        ]
        choice = choose(Router.OWED, Call(kv_bytes=size_bytes), replicas, role=Role.DECODE)
        assert choice.replica is not None, "every worker may have every request"
        return int(choice.replica)
