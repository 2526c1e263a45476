"""Submit, permit, completion through a real segment: what is granted, when, and in which order."""

from __future__ import annotations

import errno
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from mfsd import _native
from mfsd._native import Client, Policy, SegmentState, Stage
from tests.support.waiting import TIMEOUT_S

WINDOW_BYTES = 100_000
KIB = 1024
Take = Callable[[Client, int], list[int]]
Eventually = Callable[..., Any]


def test_one_task(serve, take: Take, eventually: Eventually) -> None:
    server = serve()
    with server.attach() as client:
        nic = client.nic("rdma0", 7, 2000)
        task = client.submit(64 * KIB, stage=Stage.P2D, nic=nic)
        assert take(client, 1) == [task]
        stats = server.arbiter.nic_stats(nic)
        assert (stats["name"], stats["rate_bytes_per_s"]) == ("rdma0", 2000)
        assert stats["in_flight_bytes"] == [sum(stats["in_flight_class_bytes"]), 0] == [64 * KIB, 0]
        client.complete(task)
        eventually(lambda: sum(server.arbiter.nic_stats(nic)["in_flight_bytes"]) == 0)
        seen = server.arbiter.client_stats(client.client_id)
        assert (seen["submits"], seen["grants"], seen["completes"], seen["cancels"]) == (1, 1, 1, 0)
        assert seen["state"] == SegmentState.ACTIVE


def hold_with_one(client: Client, take: Take, nic: int) -> int:
    """Fills the window with a task that is alone, so that what is submitted next is ordered before it is granted."""
    first = client.submit(10 * WINDOW_BYTES, stage=Stage.BACKGROUND, nic=nic)
    assert take(client, 1) == [first]
    return first


def test_order_is_the_queues(serve, take: Take, eventually: Eventually) -> None:
    server = serve(window_ns=0, window_bytes_min=1)
    with server.attach() as client:
        nic = client.nic("rdma0")
        batch = client.batch_begin(77, layers=10)
        client.batch_layer(batch, 2)
        first = hold_with_one(client, take, nic)
        background = client.submit(KIB, stage=Stage.BACKGROUND, nic=nic)
        late = client.submit(KIB, stage=Stage.P2D, nic=nic, request_id=1, deadline_ns=time.monotonic_ns() + 2 * 10**12)
        soon = client.submit(KIB, stage=Stage.P2D, nic=nic, request_id=2, deadline_ns=time.monotonic_ns() + 10**12)
        layer_8 = client.submit(KIB, stage=Stage.REUSE, nic=nic, batch=batch, layer=8)
        layer_3 = client.submit(KIB, stage=Stage.REUSE, nic=nic, batch=batch, layer=3)
        eventually(lambda: server.arbiter.client_stats(client.client_id)["submits"] == 6)
        order = []
        for previous in [first, layer_3, layer_8, soon, late]:
            client.complete(previous)
            order += take(client, 1)
        assert order == [layer_3, layer_8, soon, late, background]


def test_a_layer_boundary_promotes_what_waits(serve, take: Take, eventually: Eventually) -> None:
    server = serve(window_ns=0, window_bytes_min=1)
    with server.attach() as client:
        nic = client.nic("rdma0")
        here, there = client.batch_begin(1, layers=10), client.batch_begin(2, layers=10)
        first = hold_with_one(client, take, nic)
        a = client.submit(KIB, stage=Stage.REUSE, nic=nic, batch=here, layer=3)
        b = client.submit(KIB, stage=Stage.REUSE, nic=nic, batch=there, layer=5)
        messages = server.arbiter.stats()["messages"]
        client.batch_layer(there, 4)  # now b is one layer away, a three
        eventually(lambda: server.arbiter.stats()["messages"] > messages)
        client.complete(first)
        assert take(client, 1) == [b]
        client.complete(b)
        assert take(client, 1) == [a]
        client.batch_end(here)
        with pytest.raises(OSError, match="Invalid argument"):
            client.batch_layer(_native.BATCHES_MAX, 0)


def test_the_coordinators_rank_decides_between_batches(serve, take: Take, eventually: Eventually) -> None:
    policy = Policy(early_order=_native.EarlyOrder.RANK)
    server = serve(window_ns=0, window_bytes_min=1, policy=policy)
    with server.attach() as client:
        nic = client.nic("rdma0")
        batches = [client.batch_begin(batch_id, layers=10) for batch_id in (11, 12)]
        server.arbiter.batch_rank(client.client_id, 12, 1)
        server.arbiter.batch_rank(client.client_id, 11, 2)
        first = hold_with_one(client, take, nic)
        tasks = [client.submit(KIB, stage=Stage.REUSE, nic=nic, batch=batch, layer=1) for batch in batches]
        eventually(lambda: server.arbiter.client_stats(client.client_id)["submits"] == 3)
        client.complete(first)
        assert take(client, 1) == [tasks[1]]
        for unknown in ((client.client_id, 13), (client.client_id + 1, 11)):
            with pytest.raises(OSError) as raised:
                server.arbiter.batch_rank(*unknown, 1)
            assert raised.value.errno == errno.ENOENT


def test_batches_run_out_and_come_back(serve) -> None:
    server = serve()
    with server.attach() as client:
        slots = [client.batch_begin(1 + i, layers=1) for i in range(_native.BATCHES_MAX)]
        assert sorted(slots) == list(range(_native.BATCHES_MAX))
        with pytest.raises(OSError) as raised:
            client.batch_begin(999, layers=1)
        assert raised.value.errno == errno.ENOSPC
        client.batch_end(slots[5])
        assert client.batch_begin(999, layers=1) == slots[5]


def test_cancel_and_complete_end_a_task_once(serve, take: Take, eventually: Eventually) -> None:
    server = serve(window_ns=0, window_bytes_min=1)
    with server.attach() as client:
        nic = client.nic("rdma0")
        first = hold_with_one(client, take, nic)
        waiting = client.submit(KIB, stage=Stage.P2D, nic=nic)
        bypassed = client.submit(KIB, stage=Stage.P2D, nic=nic)
        for _ in range(2):  # the second time says nothing
            client.cancel(waiting)
            client.cancel(bypassed, True)
            client.complete(first)
        stats = eventually(
            lambda: (s := server.arbiter.client_stats(client.client_id))["cancels"] + s["completes"] == 3 and s
        )
        assert (stats["cancels"], stats["held_bytes"], stats["in_flight_bytes"]) == (2, 0, 0)
        assert stats["bad_messages"] == 0
        assert client.permits() == []
        task = client.submit(KIB, stage=Stage.P2D, nic=nic)
        assert take(client, 1) == [task]


def test_a_permit_under_way_to_a_cancelled_task_is_swallowed(serve, take: Take, eventually: Eventually) -> None:
    server = serve()
    with server.attach() as client:
        nic = client.nic("rdma0")
        gone = client.submit(KIB, stage=Stage.P2D, nic=nic)
        eventually(lambda: server.arbiter.client_stats(client.client_id)["grants"] == 1)
        client.cancel(gone)
        reused = client.submit(KIB, stage=Stage.P2D, nic=nic)  # the same slot, another generation
        assert reused & 0xFFFFFFFF == gone & 0xFFFFFFFF
        assert take(client, 1) == [reused]
        eventually(lambda: sum(server.arbiter.nic_stats(nic)["in_flight_bytes"]) == KIB)


def submit_when_there_is_room(client: Client, nic: int) -> int:
    """Submits as soon as the arbiter has made room in the ring: this thread is faster."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return client.submit(1, stage=Stage.BACKGROUND, nic=nic)
        except BlockingIOError:
            assert time.monotonic() < deadline_s
            client.wait(1_000_000)


def test_tasks_run_out_and_come_back(serve, take: Take, eventually: Eventually) -> None:
    server = serve(window_ns=0, window_bytes_min=1)
    with server.attach() as client:
        nic = client.nic("rdma0")
        tasks: list[int] = []
        while len(tasks) < _native.TASKS_MAX:
            tasks.append(submit_when_there_is_room(client, nic))
        assert len(set(tasks)) == _native.TASKS_MAX
        with pytest.raises(OSError) as raised:
            client.submit(1, stage=Stage.BACKGROUND, nic=nic)
        assert raised.value.errno == errno.EAGAIN
        for task in tasks:
            client.cancel(task)

        def cancelled() -> bool:
            client.permits()  # any call sends what found the ring full
            return server.arbiter.client_stats(client.client_id)["cancels"] == _native.TASKS_MAX

        eventually(cancelled)
        assert server.arbiter.client_stats(client.client_id)["held_bytes"] == 0
        client.permits(_native.TASKS_MAX)
        task = client.submit(1, stage=Stage.BACKGROUND, nic=nic)
        assert take(client, 1) == [task]


def test_what_finds_the_ring_full_is_reported_later(serve, take: Take, eventually: Eventually) -> None:
    server = serve(start=False)  # no arbiter reads
    with server.attach() as client:
        nic = client.nic("rdma0")
        batch = client.batch_begin(1, layers=9)
        held = [client.submit(1, stage=Stage.P2D, nic=nic) for _ in range(3)]
        pairs = 0
        with pytest.raises(OSError, match="temporarily unavailable"):
            while True:
                client.cancel(client.submit(1, stage=Stage.P2D, nic=nic))
                pairs += 1
        assert pairs <= _native.SUBMIT_SLOTS  # this thread's own lane and the shared one
        client.cancel(held[0])
        client.cancel(held[1], True)
        client.batch_end(batch)
        server.arbiter.start()
        assert take(client, 1) == [held[2]]
        client.complete(held[2])

        def balanced() -> bool:
            client.permits()  # any call sends what found the ring full
            stats = server.arbiter.client_stats(client.client_id)
            return stats["submits"] == stats["cancels"] + stats["completes"] >= pairs + 3

        eventually(balanced)
        assert server.arbiter.client_stats(client.client_id)["bad_messages"] == 0
        # All slots are free again.
        assert len({submit_when_there_is_room(client, nic) for _ in range(_native.TASKS_MAX)}) == _native.TASKS_MAX


def test_a_permit_of_another_epoch_is_ignored(serve) -> None:
    """What a daemon's former life wrote, or a stale page says, permits nothing."""
    server = serve(start=False)  # no other permits
    with server.attach() as client:
        nic = client.nic("rdma0")
        task = client.submit(1000, stage=Stage.P2D, nic=nic)
        segment = server.segments[client.client_id]
        layout = _native.LAYOUT

        def grant(epoch: int) -> None:
            tail = int.from_bytes(segment[layout["grant.tail"] :][:8], "little")
            at = layout["grant_slot"] + tail % _native.GRANT_SLOTS * 16
            segment[at : at + 16] = struct.pack("<QQ", task, (epoch & 0xFFFFFFFF) << 32)
            segment[layout["grant.tail"] : layout["grant.tail"] + 8] = (tail + 1).to_bytes(8, "little")

        grant(client.epoch + 1)
        grant(client.epoch - 1)
        assert client.permits() == []
        grant(client.epoch)
        assert [permitted for permitted, _ in client.permits()] == [task]
