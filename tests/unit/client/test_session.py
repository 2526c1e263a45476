"""mfsd.client against a real arbiter: tasks, batches, requests, and life without a daemon."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from typing import Any

import pytest

from mfsd._native import LAYOUT, SUBMIT_SLOT_BYTES, TASKS_MAX, Judgement, peer_hash
from mfsd.client import Flow, Mode, Request, Session, Stage
from mfsd.client.checking import destination
from tests.support.waiting import eventually

WINDOW = 131_072
"""The least window of the arbiter: one task of this size fills a slow NIC."""
SLOW = 1000
"""Bytes a second of a NIC on which what fills the window is not overdue before minutes have passed."""


def fill(session: Session, nic: int):
    """A task in flight that takes the whole window."""
    task = session.submit(WINDOW, stage=Stage.P2D, nic=nic)
    assert task.wait(100) is not None
    return task


def snapshot(server, session_number: int = 0, slot: int = 0):
    client_id = sorted(server.segments)[session_number]
    return server.arbiter.batch_snapshot(client_id, slot)


def test_a_permitted_task_has_its_class(serve, session) -> None:
    serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=125_000_000)
    with s.submit(1000, stage=Stage.REUSE, nic=nic) as task:
        assert s.scheduled
        assert 0 <= task.wire_class < s.classes == 8
    with s.submit(1000, stage=Stage.BACKGROUND, nic=nic) as task:
        assert task.wire_class == s.classes - 1


def test_held_tasks_wait_for_the_window(serve, session) -> None:
    serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=SLOW)
    first = fill(s, nic)
    second = s.submit(WINDOW, stage=Stage.P2D, nic=nic)
    assert not second.ready()
    first.complete()
    assert second.wait(100) < s.classes - 1
    assert second.ready()


PEER = slice(60, 64)
"""Of a slot of a submit ring: struct mfs_message.peer behind the slot's sequence."""


@pytest.mark.parametrize("call", ["submit", "permit"])
def test_a_task_says_where_it_goes(serve, session, call: str) -> None:
    """One number for one port, however it is called; the shim has it from the queue pair's GID."""
    server = serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=125_000_000)
    gid = b"\0" * 10 + b"\xff\xff\x0a\0\0\1"
    for peer in ("10.0.0.1", gid, "decode-7", ""):
        getattr(s, call)(1000, stage=Stage.P2D, nic=nic, peer=peer).complete()
    (segment,) = server.segments.values()
    first = LAYOUT["submit_slot"]
    slots = [segment[first + i * SUBMIT_SLOT_BYTES :][:SUBMIT_SLOT_BYTES] for i in range(8)]  # submits and ends in turn
    assert [int.from_bytes(slot[PEER], "little") for slot in slots[::2]] == [
        peer_hash(gid),
        peer_hash(gid),
        destination("decode-7"),
        0,
    ]
    assert len({peer_hash(gid), destination("decode-7"), destination("decode-8"), 0}) == 4
    assert peer_hash(bytes(16)) == 0
    assert peer_hash(gid) == 0xE0FA896D, "other processes and hosts, maybe of another version, must agree"


def test_a_permit_in_one_call_is_a_task_like_any(serve, session) -> None:
    server = serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=SLOW)
    with s.batch(5, layers=4, requests=[Request(9)]) as batch:
        first = s.permit(WINDOW, stage=Stage.P2D, nic=nic, request_id=9, batch=batch, layer=2, peer="10.0.0.1")
    assert 0 <= first.wire_class < s.classes
    assert sum(server.arbiter.nic_stats(0)["in_flight_bytes"]) == WINDOW
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(s.permit(WINDOW, stage=Stage.P2D, nic=nic)))
    thread.start()
    eventually(lambda: sum(server.arbiter.nic_stats(0)["held_bytes"]) == WINDOW)
    assert answers == []
    first.complete()
    first.complete()
    thread.join()
    answers.pop().cancel()
    eventually(lambda: sum(server.arbiter.nic_stats(0)["in_flight_bytes"]) == 0)


def test_a_forgotten_permit_does_not_fill_the_window(serve, session) -> None:
    server = serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=SLOW)
    permit = s.permit(WINDOW, stage=Stage.P2D, nic=nic)
    assert sum(server.arbiter.nic_stats(0)["in_flight_bytes"]) == WINDOW
    del permit
    eventually(lambda: sum(server.arbiter.nic_stats(0)["in_flight_bytes"]) == 0)


def test_a_permit_that_does_not_come_in_time_is_gone_without(serve, session) -> None:
    serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=SLOW)
    first = fill(s, nic)
    late = s.permit(WINDOW, stage=Stage.P2D, nic=nic, timeout_s=0.01)
    assert late.wire_class == s.classes - 2
    late.complete()
    first.complete()


def test_a_permit_of_a_stage_that_never_asks_comes_at_once(serve, session) -> None:
    serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=SLOW)
    first = fill(s, nic)
    s.permit(WINDOW, stage=Stage.COLLECTIVE, nic=nic).complete()
    first.complete()


def test_no_permit_where_nothing_is_scheduled(serve, session) -> None:
    assert session().permit(1000, stage=Stage.P2D) is None
    serve()
    observing = session(mode=Mode.OBSERVE)
    assert observing.permit(1000, stage=Stage.P2D, nic=observing.nic("a")) is None
    assert session().permit(1000, stage=Stage.P2D, nic=0).wire_class == 6  # a NIC that was not named: without a permit


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request_id", -1),
        ("deadline_ns", 2**61),
        ("layer", 2**16),
        ("size_bytes", 2**41),
        ("left_bytes", -1),
        ("peer", b"no GID"),
        ("nic", 99),
    ],
)
def test_a_permit_with_metadata_that_cannot_be_is_given_and_reported_once(serve, session, caplog, field, value) -> None:
    serve()
    s = session()
    arguments = {"size_bytes": 1000, "stage": Stage.P2D, "nic": s.nic("a"), field: value}
    with caplog.at_level(logging.WARNING, "mfsd.client"):
        for _ in range(3):
            s.permit(arguments.pop("size_bytes", value), **arguments).complete()
            arguments["size_bytes"] = 1000 if field != "size_bytes" else value
    assert len(caplog.records) == 1
    assert s.refused[field] == 3


def test_a_permit_for_a_batch_that_has_ended_is_given_and_reported_once(serve, session, caplog) -> None:
    serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=125_000_000)
    with s.batch(5, layers=4, requests=[Request(9)]) as batch:
        pass
    with caplog.at_level(logging.WARNING, "mfsd.client"):
        for _ in range(3):
            s.permit(1000, stage=Stage.P2D, nic=nic, request_id=9, batch=batch).complete()
    assert [record.getMessage() for record in caplog.records] == [
        "batch is 5: it has ended; taken as unknown (logged once for this kind)"
    ]


def test_a_permit_of_one_direction_does_not_wait_for_the_other(serve, session) -> None:
    serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=SLOW)
    first = fill(s, nic)
    s.permit(WINDOW, stage=Stage.REUSE, nic=nic, incoming=True, timeout_s=100).complete()
    assert s.submit(WINDOW, stage=Stage.P2D, nic=nic).ready() is False
    first.complete()


def test_what_is_class_marked_does_not_wait_for_collectives(serve, session) -> None:
    server = serve(quiet_ns=0, gate_max_ns=3600 * 10**9)
    server.arbiter.wire([46, 34, 26, 18, 10, 9, 8, 1])
    s = session()
    nic = s.nic("a", rate_bytes_per_s=1000)  # the collective is on the wire for minutes
    collective = s.submit(1_000_000, stage=Stage.COLLECTIVE, nic=nic)
    collective.wait()
    with s.submit(1000, stage=Stage.P2D, nic=nic, class_marked=True) as task:
        assert task.wire_class is not None
    s.permit(1000, stage=Stage.P2D, nic=nic, class_marked=True).complete()
    waiting = s.submit(1000, stage=Stage.P2D, nic=nic)
    eventually(lambda: sum(server.arbiter.nic_stats(0)["held_bytes"]) == 1000)
    assert not waiting.ready()
    collective.complete()
    assert waiting.wait() is not None
    (client_id,) = server.segments
    assert server.arbiter.client_stats(client_id)["bypassed_hold"] == 0


def test_a_batch_with_requests_reaches_the_daemon(serve, session) -> None:
    server = serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=125_000_000)
    due = time.monotonic_ns() + 10**12
    flows = (
        Flow(Stage.P2D, "10.0.0.2", 4096, nic, layer=3),
        Flow(Stage.REUSE, "fd00::1", 100, nic, layer=1, incoming=True),
    )
    with s.batch(7, layers=4, requests=[Request(41, due, 10**9, 5, flows), Request(42)], compute_ns=4000) as batch:
        seen = eventually(lambda: snapshot(server))
        assert (seen.batch_id, seen.layers, seen.layer_current) == (7, 4, 0)
        by_id = {r.request_id: r for r in seen.requests}
        assert by_id.keys() == {41, 42}
        assert (by_id[41].deadline_ns, by_id[41].budget_ns, by_id[41].program_id) == (due, 10**9, 5)
        p2d, reuse = by_id[41].demands
        assert (p2d.bytes, p2d.bytes_left, p2d.layer, p2d.stage, p2d.direction) == (4096, 4096, 3, Stage.P2D, 0)
        assert p2d.peer == b"\0" * 10 + b"\xff\xff\x0a\0\0\2"
        assert (reuse.bytes, reuse.direction, reuse.peer[:2]) == (100, 1, b"\xfd\0")
        batch.layer(2)
        eventually(lambda: snapshot(server).layer_current == 2)
        batch.done(42)
        eventually(lambda: len(snapshot(server).requests) == 1)
    eventually(lambda: snapshot(server) is None)


def test_completed_bytes_are_taken_off(serve, session) -> None:
    server = serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=125_000_000)
    with s.batch(7, layers=2, requests=[Request(41, flows=(Flow(Stage.P2D, "", 3000, nic, layer=1),))]) as batch:
        with s.submit(1000, stage=Stage.P2D, nic=nic, request_id=41, batch=batch, layer=1):
            pass
        eventually(lambda: (seen := snapshot(server)) and seen.requests[0].demands[0].bytes_left == 2000)


def test_the_daemons_judgement_is_seen(serve, session) -> None:
    server = serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=SLOW)
    due = time.monotonic_ns() + 10**12
    with s.batch(7, layers=2, requests=[Request(41, due)]) as batch:
        eventually(lambda: snapshot(server))
        (client_id,) = server.segments
        assert not s.pruned(41)
        server.arbiter.request_prune(client_id, 41, True)
        eventually(lambda: s.pruned(41))
        first = fill(s, nic)
        task = s.submit(WINDOW, stage=Stage.P2D, nic=nic, request_id=41, deadline_ns=due, batch=batch)
        assert task.pruned
        first.complete()
        assert task.wait(100) == s.classes - 1
        server.arbiter.request_prune(client_id, 41, False)
        eventually(lambda: not s.pruned(41))
    assert Judgement.PRUNED == 1
    assert not s.pruned(41)


def test_without_a_daemon_everything_goes(session) -> None:
    s = session()
    assert not s.scheduled
    with s.batch(1, layers=2, requests=[Request(1, flows=(Flow(Stage.P2D, "", 1),))]) as batch:
        batch.layer(1)
        assert batch.slot is None
        with s.submit(10, stage=Stage.P2D, nic=s.nic("a"), request_id=1, batch=batch) as task:
            assert task.wire_class == s.classes - 2 == 6
        assert (s.class_of(Stage.REUSE), s.class_of(Stage.P2D)) == (1, 6), "of connections that have one class for all"
    with s.context(stage=Stage.P2D, request_id=1), s.memory_range(4096, 4096, stage=Stage.P2D), s.lane(0):
        pass


def test_a_session_attaches_by_itself_and_tells_what_is_open(serve, session) -> None:
    s = session()
    nic = s.nic("a", rate_bytes_per_s=125_000_000)
    batch = s.batch(9, layers=8, requests=[Request(3, flows=(Flow(Stage.P2D, "", 5, nic),))])
    batch.layer(4)
    server = serve()
    eventually(lambda: s.scheduled, "attached")
    seen = eventually(lambda: (seen := snapshot(server)) and seen.layer_current == 4 and seen)
    assert (seen.batch_id, len(seen.requests)) == (9, 1)
    assert batch.slot == 0
    batch.end()


def test_a_daemon_that_goes_lets_go_and_its_successor_is_found(serve, session) -> None:
    first = serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=SLOW)
    batch = s.batch(9, layers=8)
    held = fill(s, nic)
    waiting = s.submit(WINDOW, stage=Stage.P2D, nic=nic)
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(waiting.wait()))
    thread.start()
    first.arbiter.close()
    first.close()
    thread.join(20)
    assert answers == [s.classes - 2]
    held.complete()
    second = serve()
    eventually(lambda: s.scheduled, "attached again")
    assert eventually(lambda: snapshot(second)).batch_id == 9
    with s.submit(10, stage=Stage.P2D, nic=nic, batch=batch) as task:
        assert task.wire_class is not None
    waiting.complete()


def test_a_timeout_falls_open(serve, session) -> None:
    server = serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=SLOW)
    first = fill(s, nic)
    second = s.submit(WINDOW, stage=Stage.P2D, nic=nic)
    assert second.wait(0.0) == s.classes - 2
    second.complete()
    first.complete()
    (client_id,) = server.segments
    eventually(lambda: sum(server.arbiter.nic_stats(0)["in_flight_bytes"]) == 0)
    assert server.arbiter.client_stats(client_id)["held_bytes"] == 0
    assert server.arbiter.client_stats(client_id)["bypassed_hold"] == 1
    assert server.arbiter.opened()["bypass"] == 1


def test_a_permit_that_does_not_come_in_time_is_counted(serve, session) -> None:
    server = serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=SLOW)
    first = fill(s, nic)
    permit = s.permit(WINDOW, stage=Stage.P2D, nic=nic, timeout_s=0.0)
    assert permit.wire_class == s.classes - 2
    (client_id,) = server.segments
    assert server.arbiter.client_stats(client_id)["bypassed_hold"] == 1
    permit.complete()
    first.complete()


def test_a_full_table_falls_open(serve, session) -> None:
    server = serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=SLOW)
    tasks = [s.submit(1, stage=Stage.BACKGROUND, nic=nic) for _ in range(TASKS_MAX + 3)]
    assert [t.wire_class for t in tasks[-3:]] == [s.classes - 2] * 3
    permit = s.permit(1, stage=Stage.BACKGROUND, nic=nic)
    assert permit.wire_class == s.classes - 2
    (client_id,) = server.segments
    assert server.arbiter.client_stats(client_id)["bypassed_overflow"] == 4


def test_observing_never_waits(serve, session) -> None:
    server = serve()
    s = session(mode=Mode.OBSERVE)
    nic = s.nic("a", rate_bytes_per_s=SLOW)
    tasks = [s.submit(WINDOW, stage=Stage.P2D, nic=nic) for _ in range(4)]
    assert all(task.ready() for task in tasks)
    for task in tasks:
        task.complete()
    (client_id,) = server.segments
    assert server.arbiter.client_stats(client_id)["completed_bytes"][Stage.P2D] == 4 * WINDOW


def test_collectives_never_wait(serve, session) -> None:
    serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=SLOW)
    fill(s, nic)
    assert s.submit(WINDOW, stage=Stage.COLLECTIVE, nic=nic).ready()


def test_permits_come_to_many_threads(serve, session) -> None:
    serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=10_000_000_000)
    done: list[int] = []

    def work() -> None:
        for _ in range(200):
            with s.submit(50_000, stage=Stage.P2D, nic=nic) as task:
                done.append(task.wait())

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 1200


def test_a_loop_goes_on_while_a_task_waits(serve, session) -> None:
    serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=SLOW)
    first = fill(s, nic)

    async def run() -> int:
        waiting = asyncio.create_task(s.submit(WINDOW, stage=Stage.P2D, nic=nic).permitted())
        await asyncio.sleep(0)
        first.complete()
        return await waiting

    assert asyncio.run(run()) < s.classes


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("deadline_ns", {"deadline_ns": -1}),
        ("deadline_ns", {"deadline_ns": 2**64}),
        ("deadline_ns", {"deadline_ns": float("nan")}),
        ("size_bytes", {"size_bytes": -5}),
        ("size_bytes", {"size_bytes": 2**50}),
        ("left_bytes", {"left_bytes": -1}),
        ("left_bytes", {"left_bytes": "all"}),
        ("request_id", {"request_id": -1}),
        ("layer", {"layer": 1 << 20}),
        ("stage", {"stage": -1}),
        ("stage", {"stage": "p2d"}),
        ("peer", {"peer": b"no GID"}),
        ("nic", {"nic": 99}),
        ("nic", {"nic": 7}),
    ],
)
def test_what_cannot_be_is_unknown_and_reported_once(
    serve, session, caplog, kind: str, arguments: dict[str, Any]
) -> None:
    server = serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=125_000_000)
    with caplog.at_level(logging.WARNING, "mfsd.client"):
        for _ in range(3):
            given = {"size_bytes": 10, "stage": Stage.P2D, "nic": nic, **arguments}
            with s.submit(given.pop("size_bytes"), **given) as task:
                assert task.wire_class is not None
    assert s.refused == {kind: 3}
    assert len([r for r in caplog.records if kind in r.getMessage()]) == 1
    (client_id,) = server.segments
    assert server.arbiter.client_stats(client_id)["state"] == 1


@pytest.mark.parametrize("name", ["", "x" * 32])
def test_a_nic_that_cannot_be_is_not_reported(serve, session, name: str) -> None:
    serve()
    s = session()
    with s.submit(10, stage=Stage.P2D, nic=s.nic(name)) as task:
        assert task.wire_class == 6
    assert s.scheduled
    assert s.refused == {"nic": 2}


def test_an_ended_batch_is_no_batch(serve, session) -> None:
    serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=125_000_000)
    batch = s.batch(7, layers=2)
    batch.end()
    batch.end()
    batch.layer(1)
    with s.submit(10, stage=Stage.REUSE, nic=nic, batch=batch) as task:
        assert task.wire_class is not None
    assert s.refused == {"batch": 1}


def test_a_batch_of_a_hundred_thousand_requests_goes_without_them(serve, session) -> None:
    server = serve()
    s = session()
    batch = s.batch(7, layers=2, requests=[Request(i + 1) for i in range(100_000)], deadline_ns=10**15)
    seen = eventually(lambda: snapshot(server))
    assert (seen.deadline_ns, seen.requests) == (10**15, ())
    assert s.refused == {"requests": 1}
    batch.end()


def test_flows_beyond_a_requests_share_are_merged_by_layers(serve, session) -> None:
    server = serve()
    s = session()
    s.nic("a", rate_bytes_per_s=125_000_000)
    flows = tuple(Flow(Stage.P2D, f"10.0.0.{peer}", 10, layer=layer) for layer in range(100) for peer in range(8))
    with s.batch(7, layers=100, requests=[Request(1, flows=flows)]):
        seen = eventually(lambda: snapshot(server))
        assert [(d.bytes, d.layer) for d in seen.requests[0].demands] == [(1000, 99)] * 8


def test_a_forked_child_leaves_the_parents_session_alone(serve, session) -> None:
    server = serve()
    s = session()
    nic = s.nic("a", rate_bytes_per_s=125_000_000)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with s.submit(10, stage=Stage.P2D, nic=nic) as task:
                code = 0 if task.wire_class is not None else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert s.scheduled
    with s.submit(10, stage=Stage.P2D, nic=nic) as task:
        assert task.wire_class is not None
    assert len(server.segments) >= 1
