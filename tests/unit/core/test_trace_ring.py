"""The ring of events: what it holds, in which order, and what happens when it is not read."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import Any

import pytest

from mfsd import _native
from mfsd._native import Client, Policy, RequestInfo, Stage, Variant
from mfsd.node.events import Event, Kind, decode
from tests.support.arbiter import Server

Take = Callable[[Client, int], list[int]]
Eventually = Callable[..., Any]


class Reader:
    def __init__(self, server: Server) -> None:
        self.server, self.events, self.lost = server, list[Event](), 0

    def until(self, kind: Kind, n: int, eventually: Eventually) -> list[Event]:
        def poll() -> bool:
            data, self.lost = self.server.arbiter.trace_read()
            self.events += decode(data)
            return sum(e.kind == kind for e in self.events) >= n

        eventually(poll, f"{n} events {kind.name}")
        return self.events


def test_a_flow_from_submit_to_complete(serve: Callable[..., Server], take: Take, eventually: Eventually) -> None:
    server = serve()
    client = server.attach()
    nic = client.nic("soft0")
    server.arbiter.trace_attach(1024)
    reader = Reader(server)
    deadline_ns = time.monotonic_ns() + 10**12
    slot, _ = client.batch_begin_with(70, 4, [RequestInfo(7, deadline_ns=deadline_ns, budget_ns=10**9)])
    task = client.submit(1000, stage=Stage.P2D, nic=nic, request_id=7, batch=slot, layer=2)
    take(client, 1)
    client.batch_layer(slot, 3)
    reader.until(Kind.BATCH_LAYER, 1, eventually)  # seen with the next heartbeat
    client.complete(task)
    client.batch_end(slot)
    events = reader.until(Kind.BATCH_END, 1, eventually)
    flow = [e for e in events if e.task == task and e.bytes]
    assert [e.kind for e in flow] == [Kind.SUBMIT, Kind.PERMIT, Kind.COMPLETE]
    assert [e.time_ns for e in flow] == sorted(e.time_ns for e in flow)
    assert {(e.bytes, e.request_id, e.batch_id, e.stage, e.layer, e.deadline_ns) for e in flow} == {
        (1000, 7, 70, Stage.P2D, 2, deadline_ns)
    }
    reported = next(e for e in events if e.kind == Kind.REQUEST_ANNOUNCED)
    assert (reported.request_id, reported.deadline_ns, reported.value) == (7, deadline_ns, 10**6)
    begun = next(e for e in events if e.kind == Kind.BATCH_BEGIN)
    assert (begun.batch_id, begun.value) == (70, 4)
    assert {e.batch_id for e in events if e.kind == Kind.REQUEST_BATCH} <= {70}
    assert [e.layer for e in events if e.kind == Kind.BATCH_LAYER] == [3]
    assert any(e.kind == Kind.REQUEST_ENDED and e.request_id == 7 for e in events)
    assert reader.lost == 0
    server.arbiter.trace_detach()


def test_an_event_says_in_which_direction_its_bytes_go(
    serve: Callable[..., Server], take: Take, eventually: Eventually
) -> None:
    server = serve()
    client = server.attach()
    client.nic("soft0")
    nic = client.nic("soft1")
    server.arbiter.trace_attach(64)
    for incoming in (False, True):
        task = client.submit(1000, stage=Stage.REUSE, nic=nic, incoming=incoming)
        take(client, 1)
        client.complete(task)
    events = Reader(server).until(Kind.COMPLETE, 2, eventually)
    assert [(e.nic, e.incoming) for e in events] == [(nic, False)] * 3 + [(nic, True)] * 3


def test_promotion_and_pruning(serve: Callable[..., Server], take: Take, eventually: Eventually) -> None:
    server = serve(window_bytes_min=1, policy=Policy(variant=Variant.PAPER))
    client = server.attach()
    nic = client.nic("slow", 0, 1000)
    take_first = client.submit(10**6, stage=Stage.P2D, nic=nic)
    take(client, 1)
    server.arbiter.trace_attach(1024)
    reader = Reader(server)
    # The more bytes it has, the shorter is its time: it is promoted again and again, and never lost.
    slot, _ = client.batch_begin_with(1, 1, [RequestInfo(7, deadline_ns=time.monotonic_ns() + 1000 * 10**9)])
    waiting = client.submit(100, stage=Stage.P2D, nic=nic, request_id=7, batch=slot)
    for size in (20_000, 100_000, 400_000):
        client.submit(size, stage=Stage.P2D, nic=nic, request_id=7, batch=slot)
    events = reader.until(Kind.PROMOTE, 2, eventually)
    levels = [e.level for e in events if e.kind == Kind.PROMOTE]
    assert levels == sorted(levels, reverse=True)
    assert {(e.task, e.request_id) for e in events if e.kind == Kind.PROMOTE} == {(waiting, 7)}
    server.arbiter.request_prune(client.client_id, 7, True)
    pruned = [e for e in reader.until(Kind.REQUEST_PRUNED, 1, eventually) if e.kind == Kind.REQUEST_PRUNED]
    assert [(e.request_id, e.value) for e in pruned] == [(7, 1)]
    client.complete(take_first)


def test_losses_are_counted_and_nothing_waits(serve: Callable[..., Server], take: Take, eventually: Eventually) -> None:
    server = serve()
    client = server.attach()
    nic = client.nic("soft0")
    server.arbiter.trace_attach(8)
    n = 100
    for _ in range(n):
        task = client.submit(1, stage=Stage.BACKGROUND, nic=nic)
        take(client, 1)
        client.complete(task)
    eventually(lambda: server.arbiter.client_stats(client.client_id)["completes"] == n, "all of them")
    data, lost = server.arbiter.trace_read()
    assert len(data) == 8 * _native.EVENT_BYTES
    assert lost == 3 * n - 8
    assert [e.kind for e in decode(data)[:3]] == [Kind.SUBMIT, Kind.PERMIT, Kind.COMPLETE], "the oldest are kept"
    task = client.submit(1, stage=Stage.BACKGROUND, nic=nic)
    take(client, 1)
    data, lost = server.arbiter.trace_read()
    assert [e.kind for e in decode(data)] == [Kind.SUBMIT, Kind.PERMIT], "room again"
    assert lost == 3 * n - 8


def test_one_ring_at_a_time(serve: Callable[..., Server]) -> None:
    arbiter = serve().arbiter
    for slots in (0, 3, 2 * _native.EVENT_SLOTS_MAX):
        with pytest.raises(OSError) as refused:
            arbiter.trace_attach(slots)
        assert refused.value.errno == errno.EINVAL
    for call in (arbiter.trace_detach, arbiter.trace_read):
        with pytest.raises(OSError) as refused:
            call()
        assert refused.value.errno == errno.ENOENT
    arbiter.trace_attach(16)
    with pytest.raises(OSError) as refused:
        arbiter.trace_attach(16)
    assert refused.value.errno == errno.EBUSY
    arbiter.trace_detach()
    arbiter.trace_attach(16)


def test_a_client_that_is_given_up_is_an_event(serve: Callable[..., Server], eventually: Eventually) -> None:
    server = serve()
    client = server.attach()
    server.arbiter.trace_attach(16)
    reader = Reader(server)
    client.submit(1, stage=Stage.P2D, nic=15)  # a NIC that was not named
    (event,) = [e for e in reader.until(Kind.FAIL_OPEN, 1, eventually) if e.kind == Kind.FAIL_OPEN]
    assert (event.client_id, event.value) == (client.client_id, 1)
    assert server.arbiter.opened()["given_up"] == 1
