"""Decode workers by what their ports owe: what the coordinator says, what was sent since, and when it is too old."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest

from bench.testbed.measure import result_of
from bench.testbed.placement import AGE_NS, Placement, Ports, Reading, reading_of
from bench.testbed.requests import share_placed
from bench.testbed.scenario import Scenario, cluster_of, requests_of
from bench.testbed.show import line
from tests.unit.testbed.test_figures import leg

MS = 1_000_000
MB = 1_000_000
RATE = 37_500_000
ADDRESSES = ["10.86.0.5", "10.86.0.6", "10.86.0.7"]
NOW = 10_000 * MS
REQUEST = requests_of(SCENARIO := Scenario(rate=1.0, duration_s=1, decode_hosts=3), cluster_of(SCENARIO))[0]


def placement() -> Placement:
    return Placement(ADDRESSES, RATE)


def place(
    workers: Placement, number: int, size_bytes: int, otherwise: int, reading: Reading | None, now_ns: int
) -> int:
    """`otherwise`: the scenario's own worker."""
    request = msgspec.structs.replace(REQUEST, number=number, decode=otherwise)
    placed = workers.place(request, size_bytes, reading, now_ns)
    assert request.decode == otherwise, "the next mode of the round serves it, too"
    assert msgspec.structs.replace(placed, decode=otherwise) == request
    return placed.decode


def line_of(*owed_bytes: int, at_ns: int = NOW) -> Reading:
    """Of the first ports; of the others nothing."""
    owed = {f"{address}/in": owed for address, owed in zip(ADDRESSES, owed_bytes, strict=False)}
    return Reading(at_ns, at_ns + 2000 * MS, owed)


def test_the_port_that_owes_least_is_taken() -> None:
    assert place(placement(), 1, MB, 0, line_of(30 * MB, 10 * MB, 20 * MB), NOW) == 1
    assert place(placement(), 1, MB, 0, line_of(30 * MB, 10 * MB), NOW) == 2, "a port that is in no line owes nothing"


def test_what_was_sent_counts_until_a_reading_can_have_it() -> None:
    workers = placement()
    owed = (0, 10 * MB, 20 * MB)
    assert place(workers, 1, 15 * MB, 2, line_of(*owed), NOW) == 0
    assert workers.owed_bytes(line_of(*owed)) == [15 * MB, 10 * MB, 20 * MB]
    assert place(workers, 2, MB, 2, line_of(*owed), NOW) == 1, "it still queues: no daemon has spoken of it"
    later = NOW + 500 * MS
    assert workers.owed_bytes(line_of(*owed, at_ns=later))[0] == 15 * MB, "however late the reading is"
    workers.begun(1, 9 * MB, later)
    assert workers.owed_bytes(line_of(0, at_ns=later + AGE_NS - 1))[0] == 15 * MB, "announced, and not known yet"
    assert workers.owed_bytes(line_of(9 * MB, at_ns=later + AGE_NS))[0] == 15 * MB, "the rest of it is in a later batch"
    workers.begun(1, 6 * MB, later + AGE_NS)
    assert workers.owed_bytes(line_of(0, at_ns=later + 2 * AGE_NS))[0] == 0
    workers.arrived(1)
    assert workers.owed_bytes(line_of(0, at_ns=later + 2 * AGE_NS)) == [0, MB, 0]


def test_of_ports_that_owe_alike_the_one_with_fewer_requests_is_taken() -> None:
    workers = placement()
    chosen = [place(workers, number, 0, 0, line_of(), NOW) for number in range(4)]
    assert chosen == [0, 1, 2, 0]
    workers.arrived(1)
    assert place(workers, 4, 0, 0, line_of(), NOW) == 1


def test_where_nothing_is_known_or_it_is_too_old_the_scenarios_worker_has_it() -> None:
    workers = placement()
    assert place(workers, 1, 40 * MB, 2, None, NOW) == 2
    assert (workers.known, workers.unknown) == (0, 1)
    reading = line_of(0, 30 * MB)
    assert place(workers, 2, MB, 1, reading, reading.until_ns + 1) == 1
    assert (workers.known, workers.unknown) == (0, 2)
    assert place(workers, 3, MB, 1, reading, reading.until_ns) == 0
    assert workers.counts == {"known": 1, "unknown": 2, "age_ms": 2000}
    assert workers.owed_bytes(reading)[2] == 40 * MB, "what was placed without it was sent all the same"


def test_a_line_of_the_coordinator_is_read() -> None:
    port = {"name": "10.86.0.5/in", "rate_bytes_per_s": RATE, "owed_ns": 2_000 * MS, "waiting_bytes": 1}
    text = json.dumps({"term": 1, "epoch": 2, "ttl_ms": 2000.0, "pruned": [], "ports": [port]})
    assert reading_of(text.encode(), NOW) == Reading(NOW, NOW + 2000 * MS, {"10.86.0.5/in": 2 * RATE})
    with pytest.raises(msgspec.MsgspecError):
        reading_of(b'{"problem": "this coordinator does not lead"}', NOW)


class Coordinator(BaseHTTPRequestHandler):
    """Says a line for each time it is asked, or what a test wants in its place."""

    asked = 0
    first: bytes | None = None
    answered = threading.Semaphore(0)

    def do_GET(self) -> None:
        cls = type(self)
        cls.asked += 1
        self.send_response(200)
        self.send_header("content-type", "application/x-ndjson")
        self.end_headers()
        port = {"name": "10.86.0.5/in", "rate_bytes_per_s": RATE, "owed_ns": cls.asked * 1000 * MS}
        line = json.dumps({"ttl_ms": 2000.0, "ports": [port]}).encode() + b"\n"
        self.wfile.write(cls.first if cls.first is not None and cls.asked == 1 else line)
        cls.answered.release()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def coordinator(first: bytes | None) -> Iterator[str]:
    Coordinator.asked, Coordinator.first, Coordinator.answered = 0, first, threading.Semaphore(0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Coordinator) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("first", [None, b"no line of ours\n"])
def test_a_coordinator_that_ends_or_says_nonsense_is_asked_again(first: bytes | None) -> None:
    with coordinator(first) as address:
        ports = Ports(address)
        try:
            for _ in range(3):  # its second line was read before it was asked a third
                assert Coordinator.answered.acquire(timeout=60)
            assert ports.latest is not None and ports.latest.owed_bytes["10.86.0.5/in"] >= 2 * RATE
        finally:
            ports.close()


def test_nothing_is_known_where_no_coordinator_answers() -> None:
    with coordinator(None) as address:
        pass
    ports = Ports(address)
    ports.close()
    assert ports.latest is None


def test_the_figures_say_how_many_were_placed_by_what_was_known() -> None:
    plain, placed = leg("mfs", 1, [200]), leg("mfs+backlog", 1, [200, 300])
    placed.placed = {"known": 1, "unknown": 1, "age_ms": 20}
    assert "placed" not in result_of(plain, Scenario(), 0.5)
    result = result_of(placed, Scenario(), 0.5)
    assert result["placed"] == {"known": 1, "unknown": 1, "age_ms": 20}
    assert line(result).endswith("1 requests were placed without knowing what ports owe")
    assert share_placed([result]) == "50" and share_placed([result_of(plain, Scenario(), 0.5)]) == ""
