"""What may be in flight: windows of NICs and directions, and what goes before or beside them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from mfsd import _native
from mfsd._native import Client, Policy, Stage, Variant
from tests.support.waiting import TIMEOUT_S

WINDOW_BYTES = 100_000
KIB = 1024
Take = Callable[[Client, int], list[int]]
Eventually = Callable[..., Any]


def test_the_window_bounds_what_is_in_flight(serve, take: Take, eventually: Eventually) -> None:
    server = serve(window_ns=0, window_bytes_min=WINDOW_BYTES)
    with server.attach() as client:
        nic = client.nic("rdma0")
        tasks = [client.submit(30_000, stage=Stage.P2D, nic=nic, deadline_ns=2**62) for _ in range(10)]
        granted = take(client, 3)
        # The arbiter has read all ten and granted three: the fourth would be 120,000 bytes.
        eventually(lambda: server.arbiter.client_stats(client.client_id)["submits"] == 10)
        assert client.permits() == []
        assert sum(server.arbiter.nic_stats(nic)["in_flight_bytes"]) == 90_000
        while len(granted) < 10:
            client.complete(granted[-1])
            granted += take(client, 1)
            assert sum(server.arbiter.nic_stats(nic)["in_flight_bytes"]) <= WINDOW_BYTES
        assert sorted(granted) == sorted(tasks)


def test_a_task_larger_than_the_window_goes_alone(serve, take: Take, eventually: Eventually) -> None:
    server = serve(window_ns=0, window_bytes_min=WINDOW_BYTES)
    with server.attach() as client:
        nic = client.nic("rdma0")
        large = [client.submit(10 * WINDOW_BYTES, stage=Stage.BACKGROUND, nic=nic) for _ in range(2)]
        assert take(client, 1) == large[:1]
        eventually(lambda: server.arbiter.client_stats(client.client_id)["submits"] == 2)
        assert client.permits() == []
        client.complete(large[0])
        assert take(client, 1) == large[1:]


def test_nics_have_windows_of_their_own(serve, take: Take) -> None:
    server = serve(window_ns=0, window_bytes_min=WINDOW_BYTES)
    with server.attach() as client:
        nics = [client.nic("rdma0"), client.nic("rdma1"), client.nic("rdma0", 1)]
        assert nics == [0, 1, 2]
        assert client.nic("rdma1") == 1
        tasks = {client.submit(WINDOW_BYTES, stage=Stage.P2D, nic=nic) for nic in nics}
        assert set(take(client, 3)) == tasks


def test_directions_have_windows_of_their_own(serve, take: Take, eventually: Eventually) -> None:
    """A link is full duplex: reads that wait at a busy peer hold no write up, nor the reverse."""
    server = serve(window_ns=0, window_bytes_min=WINDOW_BYTES)
    with server.attach() as client:
        nic = client.nic("rdma0")
        first = {
            incoming: client.submit(WINDOW_BYTES, stage=Stage.P2D, nic=nic, incoming=incoming)
            for incoming in (True, False)
        }
        assert set(take(client, 2)) == set(first.values())
        assert server.arbiter.nic_stats(nic)["in_flight_bytes"] == [WINDOW_BYTES, WINDOW_BYTES]
        second = {
            incoming: client.submit(KIB, stage=Stage.P2D, nic=nic, incoming=incoming) for incoming in (True, False)
        }
        eventually(lambda: server.arbiter.client_stats(client.client_id)["submits"] == 4)
        assert client.permits() == []
        client.complete(first[True])
        assert take(client, 1) == [second[True]]
        assert client.permits() == []
        client.complete(first[False])
        assert take(client, 1) == [second[False]]


def test_collectives_hold_both_directions_up(serve, take: Take, eventually: Eventually) -> None:
    server = serve(quiet_ns=0, gate_max_ns=3600 * 10**9)
    with server.attach() as client:
        nic = client.nic("rdma0")
        client.count_posted(nic, Stage.COLLECTIVE, 1_000_000)
        tasks = {client.submit(KIB, stage=Stage.P2D, nic=nic, incoming=incoming) for incoming in (True, False)}
        eventually(lambda: client.gate(nic) >> 31)
        eventually(lambda: server.arbiter.client_stats(client.client_id)["submits"] == 2)
        assert client.permits() == []
        client.count_completed(nic, Stage.COLLECTIVE, 1_000_000)
        assert set(take(client, 2)) == tasks
        eventually(lambda: not client.gate(nic) >> 31)


def test_what_never_waits_goes_before_what_is_held(serve, take: Take, eventually: Eventually) -> None:
    server = serve(quiet_ns=0, gate_max_ns=3600 * 10**9)
    with server.attach() as collective, server.attach() as bulk:
        nic = collective.nic("rdma0")
        assert bulk.nic("rdma0") == nic
        collective.count_posted(nic, Stage.COLLECTIVE, 1_000_000)
        task = bulk.submit(KIB, stage=Stage.P2D, nic=nic)
        # The arbiter has seen both, and asks to be rung when the collective is done.
        eventually(lambda: collective.gate(nic) >> 31)
        assert server.arbiter.nic_stats(nic)["unscheduled_in_flight_bytes"] == 1_000_000
        assert bulk.permits() == []
        collective.count_completed(nic, Stage.COLLECTIVE, 1_000_000)
        assert take(bulk, 1) == [task]
        eventually(lambda: not collective.gate(nic) >> 31)


@pytest.mark.parametrize(
    ("dscp", "class_marked", "waits"),
    [
        ([46, 34, 26, 18, 10, 9, 8, 1], True, False),
        ([46, 34, 26, 18, 10, 9, 8, 1], False, True),  # posted in an unknown class
        ([], True, True),  # no classes on the wire
        ([34, 34, 34, 34, 34, 34, 34, 8], True, True),  # the wire does not tell them apart
    ],
)
def test_what_the_wire_keeps_apart_does_not_wait_for_collectives(
    serve, take: Take, eventually: Eventually, dscp: list[int], class_marked: bool, waits: bool
) -> None:
    server = serve(quiet_ns=0, gate_max_ns=3600 * 10**9)
    server.arbiter.wire(dscp)
    with server.attach() as client:
        nic = client.nic("rdma0")
        client.count_posted(nic, Stage.COLLECTIVE, 1_000_000)
        task = client.submit(KIB, stage=Stage.P2D, nic=nic, class_marked=class_marked)
        if waits:
            eventually(lambda: client.gate(nic) >> 31)
            assert client.permits() == []
        else:
            assert take(client, 1) == [task]


def test_critical_flows_do_not_wait_for_collectives(serve, take: Take, eventually: Eventually) -> None:
    server = serve(policy=Policy(variant=_native.Variant.PAPER), gate_max_ns=3600 * 10**9)
    with server.attach() as client:
        nic = client.nic("rdma0", 0, 10**9)
        # 1 TB at 1 GB/s due in 1500 s: MLU 0.67 is over the first threshold, so the paper's rule makes it critical.
        client.count_posted(nic, Stage.COLLECTIVE, 1_000_000)
        due_ns = time.monotonic_ns() + 1500 * 10**9
        task = client.submit(10**12, stage=Stage.P2D, nic=nic, request_id=1, deadline_ns=due_ns)
        assert take(client, 1) == [task]
        assert server.arbiter.nic_stats(nic)["grants"][0] == 1


@pytest.mark.parametrize("completed", [0, 2_000_000], ids=["stuck", "garbage"])
def test_counters_that_make_no_sense_block_no_client_for_ever(serve, take: Take, completed: int) -> None:
    server = serve()
    with server.attach() as liar, server.attach() as client:
        nic = client.nic("rdma0")
        liar.count_posted(nic, Stage.COLLECTIVE, 1_000_000)
        liar.count_completed(nic, Stage.COLLECTIVE, completed)
        task = client.submit(KIB, stage=Stage.P2D, nic=nic)
        assert take(client, 1) == [task]


def test_a_client_that_finishes_nothing_blocks_no_other_for_ever(serve, take: Take) -> None:
    server = serve(window_ns=0, window_bytes_min=WINDOW_BYTES)
    with server.attach() as stuck, server.attach() as client:
        nic = client.nic("rdma0", 0, 10**10)
        granted = stuck.submit(WINDOW_BYTES, stage=Stage.P2D, nic=nic)
        assert take(stuck, 1) == [granted]
        task = client.submit(WINDOW_BYTES, stage=Stage.P2D, nic=nic)
        assert take(client, 1) == [task]
        stuck.complete(granted)
        client.complete(task)
        assert client.nic("rdma0", 0, 1000) == nic  # from here on nothing is overdue for minutes
        task = client.submit(WINDOW_BYTES, stage=Stage.P2D, nic=nic)
        assert take(client, 1) == [task]
        assert sum(server.arbiter.nic_stats(nic)["in_flight_bytes"]) == WINDOW_BYTES  # counted once, released once


def test_reads_that_hang_are_written_off_while_writes_go_on(serve, take: Take) -> None:
    server = serve(window_ns=0, window_bytes_min=WINDOW_BYTES)
    with server.attach() as client:
        nic = client.nic("rdma0", 0, 10**10)
        hangs = client.submit(WINDOW_BYTES, stage=Stage.P2D, nic=nic, incoming=True)
        assert take(client, 1) == [hangs]
        waits = client.submit(WINDOW_BYTES, stage=Stage.P2D, nic=nic, incoming=True)
        end_s = time.monotonic() + TIMEOUT_S
        granted: list[int] = []
        while waits not in granted:
            assert time.monotonic() < end_s, "the read behind the one that hangs never goes"
            for task in granted:
                client.complete(task)
            client.submit(KIB, stage=Stage.P2D, nic=nic)
            granted = take(client, 1)


def test_load_is_what_goes_before(serve, eventually: Eventually) -> None:
    server = serve(policy=Policy(variant=Variant.PAPER))
    with server.attach() as client:
        nic = client.nic("rdma0", 0, 10**6)
        client.count_completed(nic, Stage.P2D, 10**9)
        client.count_completed(nic, Stage.BACKGROUND, 10**9)
        loops = server.arbiter.stats()["loops"]
        eventually(lambda: server.arbiter.stats()["loops"] > loops + 50)
        assert server.arbiter.nic_stats(nic)["load"] == [0, 0]

        def loaded() -> bool:  # which soon passes, seen or not
            client.count_completed(nic, Stage.COLLECTIVE, 10**9)
            return server.arbiter.nic_stats(nic)["load"][0] > 0

        eventually(loaded)


def test_variant_mfs_measures_no_load(serve, eventually: Eventually) -> None:
    server = serve()
    with server.attach() as client:
        nic = client.nic("rdma0", 0, 10**6)
        client.count_completed(nic, Stage.COLLECTIVE, 10**9)
        eventually(lambda: server.arbiter.nic_stats(nic)["used"][0] > 0)
        assert server.arbiter.nic_stats(nic)["load"] is None
        assert server.arbiter.facts(nic, 0).rho == 0


def test_what_a_link_carried_is_counted_by_direction_and_class(serve, take: Take, eventually: Eventually) -> None:
    """Bytes that really went: permitted ones when they are complete, others as their programs count them."""
    server = serve(window_ns=0, window_bytes_min=WINDOW_BYTES, load_time_constant_ns=20_000_000)
    with server.attach() as client:
        nic = client.nic("rdma0", 0, 1_000_000)

        def stats() -> _native.NicStats:
            return server.arbiter.nic_stats(nic)

        out = client.submit(3000, stage=Stage.P2D, nic=nic, deadline_ns=2**62)
        back = client.submit(500, stage=Stage.P2D, nic=nic, deadline_ns=2**62, incoming=True)
        dropped = client.submit(700, stage=Stage.P2D, nic=nic, deadline_ns=2**62)
        take(client, 3)
        assert [sum(one) for one in stats()["carried_bytes"]] == [0, 0], "in flight is not there yet"
        for task, size in ((out, 3000), (back, 500)):
            client.count_posted(nic=nic, stage=Stage.P2D, size_bytes=size)
            client.count_completed(nic=nic, stage=Stage.P2D, size_bytes=size)
            client.complete(task)
        client.cancel(dropped)
        eventually(lambda: [sum(one) for one in stats()["carried_bytes"]] == [3000, 500])
        for stage, size in ((Stage.COLLECTIVE, 40), (Stage.P2D, 900)):
            client.count_posted(nic=nic, stage=stage, size_bytes=size)
            client.count_completed(nic=nic, stage=stage, size_bytes=size)
        eventually(lambda: stats()["unscheduled_carried_bytes"] == 40)
        eventually(lambda: stats()["passed_bytes"] == 900)
        assert stats()["used"][0] > stats()["used"][1] >= 0
    eventually(lambda: server.arbiter.stats()["clients"] == 0)
    assert stats()["passed_bytes"] == 900, "what a program has sent stays when it ends"
