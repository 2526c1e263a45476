"""Which decode worker a request gets where a mode goes by what their ports owe: the one that owes least.

The coordinator says what its daemons have announced: the last stages of batches that run. Of a request that still
queues, or whose later chunks do, no daemon speaks, and what was announced a moment ago has not arrived there yet. So
what was sent is counted here, beside the coordinator's answer, from the choice until a reading that can have it."""

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
"""What began so long before a line came is in it."""
RETRY_S = 0.2
"""Until a coordinator that does not answer is asked again."""


class Reading(NamedTuple):
    """What a line of the coordinator says of ports."""

    at_ns: int
    """When it came, CLOCK_MONOTONIC."""
    until_ns: int
    """It may be believed."""
    owed_bytes: dict[str, int]
    """By the name of a port."""


def reading_of(line: bytes, now_ns: int) -> Reading:
    """msgspec.MsgspecError where it is not what a coordinator says."""
    rows = msgspec.json.decode(line, type=PortRows)
    return Reading(now_ns, now_ns + round(rows.ttl_ms * 1e6), {row.name: row.owed_bytes for row in rows.ports})


class Ports:
    """Reads the coordinator's lines on a thread of its own, since the controller has a leg to run."""

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
            # Its latest line is believed until its time is over.
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
    """Of no batch yet."""


class Placement:
    """Chooses workers, and counts what was sent to them. Pure: times are given, CLOCK_MONOTONIC."""

    def __init__(self, addresses: Sequence[str], rate_bytes_per_s: int) -> None:
        """`addresses`: of the workers' ports, which are all as fast."""
        self._ports = [incoming(address) for address in addresses]
        self._rate_bytes_per_s = rate_bytes_per_s
        self._sent: dict[int, _Sent] = {}
        self._begun: deque[tuple[int, int, int]] = deque()
        """When a batch with so many bytes for a worker began, oldest first."""
        self.known = self.unknown = 0
        """Requests that were placed by what ports owe, and those of which the scenario's own worker had to do."""
        self._ages_ns = 0

    def place(self, request: Request, size_bytes: int, reading: Reading | None, now_ns: int) -> Request:
        """A request that arrives, with its worker: where nothing is known, or nothing that is still to be believed, the
        one that it has. The given one stays as it is, since other modes serve it, too."""
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
        """How many were placed by what was known and how many not, and how long ago that had come, in the mean."""
        age_ms = round(self._ages_ns / max(1, self.known) / 1e6)
        return {"known": self.known, "unknown": self.unknown, "age_ms": age_ms}

    def begun(self, number: int, size_bytes: int, now_ns: int) -> None:
        """A batch has begun that ships so much of the request, and the daemons are told."""
        sent = self._sent[number]
        sent.queued_bytes -= size_bytes
        self._begun.append((now_ns, sent.worker, size_bytes))

    def arrived(self, number: int) -> None:
        """All KV of the request is there."""
        del self._sent[number]

    def owed_bytes(self, reading: Reading) -> list[int]:
        """By worker. Ports of which the coordinator says nothing owe nothing: no daemon runs there, so they are known
        while another one sends to them."""
        owed = [reading.owed_bytes.get(port, 0) for port in self._ports]
        for sent in self._sent.values():
            owed[sent.worker] += sent.queued_bytes
        while self._begun and self._begun[0][0] <= reading.at_ns - AGE_NS:
            self._begun.popleft()
        for _, worker, size_bytes in self._begun:
            owed[worker] += size_bytes
        return owed

    def _least(self, owed: Sequence[int], size_bytes: int) -> int:
        """By the gateway's own rule for decode workers."""
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
