"""What a coordinator answers routers: ports, transfer times, and why it cannot tell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mfsd.cli.coordinator_routers import routers
from mfsd.coordinator.cluster import Cluster
from mfsd.coordinator.messages import used
from mfsd.coordinator.service import Service
from mfsd.coordinator.state import BatchReport, RequestReport
from mfsd.coordinator.waiting import WaitingReport
from mfsd.observe.web import Answer, Posting, application
from mfsd.policy.config import PolicyConfig
from mfsd.proto import mfs_pb2 as pb

MS = 1_000_000
GB = 10**9


def cluster() -> Cluster:
    """Port a/out owes a batch 1 s (due in 5 s) and waiting requests 2 s, b/in the batch 1 s."""
    made = Cluster(PolicyConfig(), GB, 10**9)
    made.connect("a", {"a/out": GB, "a/in": GB}, 0)
    made.connect("b", {"b/out": GB, "b/in": 2 * GB}, 0)
    out, into = made.ports.number("a/out"), made.ports.number("b/in")
    made.arrive("a", BatchReport(1, "u", 0, [RequestReport(7, 5 * GB, {out: GB, into: 2 * GB})], {}), 0)
    made.waits("b", WaitingReport(8, 9 * GB, 1, 1, False, {out: GB}), 0)
    made.waits("b", WaitingReport(9, 3 * GB, 2, 1, False, {out: GB}), 0)
    return made


def asked(state: Cluster | None, call: Callable[[Any, Any], Answer]) -> tuple[str, Any]:
    role = SimpleNamespace(term=4)
    settings = SimpleNamespace(heartbeat_ns=500 * MS)
    service = SimpleNamespace(leading=lambda: state, role=role, settings=settings, leader_elsewhere=lambda: "c2:7400")

    async def ask() -> Answer:
        got, posted = routers(cast(Service, service), asyncio.get_running_loop())
        return await asyncio.to_thread(call, got, posted)

    answer = asyncio.run(ask())
    return answer.status, json.loads(answer.body)


def transfer(state: Cluster | None, **fields: object) -> tuple[str, Any]:
    return asked(state, lambda _, posted: cast(Posting, posted["/v1/transfer-time"])(json.dumps(fields).encode()))


def test_ports_say_what_they_owe() -> None:
    status, reply = asked(cluster(), lambda got, _: got["/v1/ports"]({}))
    assert status == "200 OK"
    assert (reply["term"], reply["ttl_ms"], reply["pruned"]) == (4, 500.0, [])
    assert {row["name"]: (row["owed_ns"], row["waiting_bytes"]) for row in reply["ports"]} == {
        "a/out": (3 * GB, 2 * GB),
        "a/in": (0, 0),
        "b/out": (0, 0),
        "b/in": (GB, 0),
    }


def test_ports_as_they_change_until_it_leads_no_more() -> None:
    leading: list[Cluster | None] = [cluster()]
    settings, watchers = SimpleNamespace(heartbeat_ns=500 * MS), set[Callable[[], object]]()
    service = SimpleNamespace(
        leading=lambda: leading[0],
        role=SimpleNamespace(term=4),
        settings=settings,
        leader_elsewhere=lambda: "c2:7400",
        watchers=watchers,
    )

    async def main() -> None:
        got, _ = routers(cast(Service, service), asyncio.get_running_loop())

        def watch() -> Answer:
            return got["/v1/ports"]({"watch": "1"})

        def lines() -> None:
            answer = watch()
            assert answer.content_type == "application/x-ndjson" and not watchers
            assert answer.more is not None
            first = next(answer.more)
            assert first.endswith(b"\n") and json.loads(first) == json.loads(got["/v1/ports"]({}).body)
            assert len(watchers) == 1
            state = leading[0]
            assert state is not None
            state.depart("a", 1, 0)
            for changed in watchers:
                changed()
            owed = {row["name"]: row["owed_ns"] for row in json.loads(next(answer.more))["ports"]}
            assert owed["b/in"] == 0
            other = watch().more
            assert other is not None and next(other)
            other.close()
            leading[0] = None
            assert list(answer.more) == [] and not watchers
            assert watch().status == "503 Service Unavailable"
            leading[0] = state
            watchers.update(partial(print, number) for number in range(16))
            assert watch().content_type == "application/json", "more than it has threads for are answered once"

        await asyncio.to_thread(lines)

    asyncio.run(main())


def test_ports_say_what_bypasses() -> None:
    state = cluster()
    load = pb.Load()
    load.used.bypass_permille = 250
    state.used(state.ports.number("a/out"), used(load))
    _, reply = asked(state, lambda got, _: got["/v1/ports"]({}))
    assert {row["name"]: row["bypass_bytes_per_s"] for row in reply["ports"]} == {
        "a/out": GB // 4,
        "a/in": 0,
        "b/out": 0,
        "b/in": 0,
    }


@pytest.mark.parametrize(
    ("deadline_ms", "ahead", "time_ns", "in_time"),
    [
        (None, 3 * GB, 4 * GB, None),
        (6000, 3 * GB, 4 * GB, True),  # 8 is due later, but its engine serves it before 9
        (4000, 2 * GB, 3 * GB, True),  # the batch is due later
        (2500, 0, GB, True),
        (900, 0, GB, False),
    ],
)
def test_a_transfer_waits_for_what_is_due_before_it(
    deadline_ms: int | None, ahead: int, time_ns: int, in_time: bool | None
) -> None:
    more = {} if deadline_ms is None else {"deadline_ms": deadline_ms}
    status, reply = transfer(cluster(), **{"from": "a", "to": "b/in", "bytes": GB}, **more)
    assert status == "200 OK", reply
    assert (reply["bytes_ahead"], reply["time_ns"], reply["in_time"]) == (ahead, time_ns, in_time)
    assert (reply["term"], reply["epoch"] > 0, reply["ttl_ms"]) == (4, True, 500.0)


@pytest.mark.parametrize(
    ("sent", "received", "time_ns"),
    [
        (500, 500, 8 * GB),  # an all-to-all that the GPU posts has half of the port
        (500, 0, 4 * GB),  # what peers read from it, which is owed
        (250, 500, 4 * GB * 4 // 3),
        (1000, 1000, 64 * GB),  # never all of it
    ],
)
def test_a_transfer_has_what_is_left_by_what_no_daemon_orders(sent: int, received: int, time_ns: int) -> None:
    state = cluster()
    for port, permille in (("a/out", sent), ("a/in", received)):
        load = pb.Load()
        load.used.bypass_permille = permille
        state.used(state.ports.number(port), used(load))
    _, reply = transfer(state, **{"from": "a", "to": "b", "bytes": GB})
    assert (reply["bytes_ahead"], reply["time_ns"]) == (3 * GB, pytest.approx(time_ns, rel=1e-6))


@pytest.mark.parametrize(
    ("fields", "status", "names"),
    [
        ({"from": "a", "to": "nowhere", "bytes": 1}, "404", "to: no daemon has reported a port 'nowhere'"),
        ({"from": "a", "to": "b", "bytes": -1}, "400", "$.bytes"),
        ({"from": "a", "to": "b", "bytes": 1, "deadline_ms": 0}, "400", "$.deadline_ms"),
        ({"from": "a", "to": "b", "bytes": 1, "dead": 1}, "400", "dead"),
        ({"to": "b", "bytes": 1}, "400", "from"),
    ],
)
def test_what_cannot_be_asked_is_said_by_field(fields: dict[str, object], status: str, names: str) -> None:
    said, reply = transfer(cluster(), **fields)
    assert said.startswith(status) and names in reply["problem"]


def test_one_that_stands_by_names_the_leader() -> None:
    for status, reply in (
        transfer(None, **{"from": "a", "to": "b", "bytes": 1}),
        asked(None, lambda got, _: got["/v1/ports"]({})),
    ):
        assert status.startswith("503") and reply["leader"] == "c2:7400"


@pytest.mark.parametrize(
    ("method", "path", "body", "length", "status"),
    [
        ("POST", "/asked", b"{}", "2", "200"),
        ("GET", "/asked", b"", "", "405"),
        ("POST", "/page", b"{}", "2", "405"),
        ("POST", "/asked", b"{}", "999999", "413"),
        ("POST", "/asked", b"{}", "-1", "413"),
        ("POST", "/asked", b"{}", "1" * 5000, "413"),
        ("POST", "/asked", b"{}", "", "413"),
    ],
)
def test_the_door_takes_bodies_only_of_questions(method: str, path: str, body: bytes, length: str, status: str) -> None:
    import io

    received: list[str] = []
    answer = Answer("200 OK", "text/plain", b"fine")
    made = application({"/page": lambda _: answer}, {"/asked": lambda _: answer})
    environment = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "CONTENT_LENGTH": length,
        "wsgi.input": io.BytesIO(body),
    }
    made(environment, lambda status, *_: received.append(status))  # type: ignore[arg-type]
    assert received[0].startswith(status)
