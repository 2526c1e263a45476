"""Submit, permit, completion through a real segment: what is granted, when, and in which order."""

from __future__ import annotations

import errno
import struct
import time
from collections.abc import Callable

import pytest

from mfsd import _native
from mfsd._native import Arbiter, Client, Mode, Policy, Rule, SegmentState, Stage
from tests.support.waiting import TIMEOUT_S

WINDOW_BYTES = 100_000
KIB = 1024
Take = Callable[[Client, int], list[int]]
Eventually = Callable[..., object]


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
    server = serve(quiet_ns=0, stuck_ns=3600 * 10**9)
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


def test_what_finds_the_ring_full_is_told_later(serve, take: Take, eventually: Eventually) -> None:
    server = serve(start=False)  # nobody reads
    with server.attach() as client:
        nic = client.nic("rdma0")
        batch = client.batch_begin(1, layers=9)
        held = [client.submit(1, stage=Stage.P2D, nic=nic) for _ in range(3)]
        pairs = 0
        with pytest.raises(OSError, match="temporarily unavailable"):
            while True:
                client.cancel(client.submit(1, stage=Stage.P2D, nic=nic))
                pairs += 1
        assert pairs <= _native.LANE_SLOTS  # this thread's own lane and the shared one
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


def test_what_never_waits_goes_before_what_is_held(serve, take: Take, eventually: Eventually) -> None:
    server = serve(quiet_ns=0, stuck_ns=3600 * 10**9)
    with server.attach() as collective, server.attach() as bulk:
        nic = collective.nic("rdma0")
        assert bulk.nic("rdma0") == nic
        collective.count_posted(nic, Stage.COLLECTIVE, 1_000_000)
        task = bulk.submit(KIB, stage=Stage.P2D, nic=nic)
        # The arbiter has seen both, and asks to be told when the collective is done.
        eventually(lambda: collective.gate(nic) >> 31)
        assert server.arbiter.nic_stats(nic)["unscheduled_in_flight_bytes"] == 1_000_000
        assert bulk.permits() == []
        collective.count_completed(nic, Stage.COLLECTIVE, 1_000_000)
        assert take(bulk, 1) == [task]
        eventually(lambda: not collective.gate(nic) >> 31)


@pytest.mark.parametrize(
    ("dscp", "laned", "waits"),
    [
        ([46, 34, 26, 18, 10, 9, 8, 1], True, False),
        ([46, 34, 26, 18, 10, 9, 8, 1], False, True),  # posted who knows where
        ([], True, True),  # no classes on the wire
        ([46, 34, 34, 34, 34, 34, 34, 34], True, True),  # the wire does not tell them apart
    ],
)
def test_what_the_wire_keeps_apart_does_not_wait_for_collectives(
    serve, take: Take, eventually: Eventually, dscp: list[int], laned: bool, waits: bool
) -> None:
    server = serve(quiet_ns=0, stuck_ns=3600 * 10**9)
    server.arbiter.wire(dscp)
    with server.attach() as client:
        nic = client.nic("rdma0")
        client.count_posted(nic, Stage.COLLECTIVE, 1_000_000)
        task = client.submit(KIB, stage=Stage.P2D, nic=nic, laned=laned)
        if waits:
            eventually(lambda: client.gate(nic) >> 31)
            assert client.permits() == []
        else:
            assert take(client, 1) == [task]


def test_critical_flows_do_not_wait_for_collectives(serve, take: Take, eventually: Eventually) -> None:
    server = serve(policy=Policy(variant=_native.Variant.PAPER), stuck_ns=3600 * 10**9)
    with server.attach() as client:
        nic = client.nic("rdma0", 0, 10**9)
        # 1 TB at 1 GB/s due in 1500 s: MLU 0.67 is over the first threshold, so the paper's rule makes it critical.
        client.count_posted(nic, Stage.COLLECTIVE, 1_000_000)
        due_ns = time.monotonic_ns() + 1500 * 10**9
        task = client.submit(10**12, stage=Stage.P2D, nic=nic, request_id=1, deadline_ns=due_ns)
        assert take(client, 1) == [task]
        assert server.arbiter.nic_stats(nic)["grants"][0] == 1


@pytest.mark.parametrize("completed", [0, 2_000_000], ids=["stuck", "garbage"])
def test_counters_that_make_no_sense_block_nobody_for_ever(serve, take: Take, completed: int) -> None:
    server = serve()
    with server.attach() as liar, server.attach() as client:
        nic = client.nic("rdma0")
        liar.count_posted(nic, Stage.COLLECTIVE, 1_000_000)
        liar.count_completed(nic, Stage.COLLECTIVE, completed)
        task = client.submit(KIB, stage=Stage.P2D, nic=nic)
        assert take(client, 1) == [task]


def test_a_permit_of_another_epoch_is_ignored(serve) -> None:
    """What a daemon's former life wrote, or a stale page says, permits nothing."""
    server = serve(start=False)  # nobody else grants
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


def test_a_client_that_left_blocks_nobody(serve, take: Take, eventually: Eventually) -> None:
    server = serve(window_ns=0, window_bytes_min=WINDOW_BYTES)
    with server.attach() as client:
        nic = client.nic("rdma0")
        leaver = server.attach()
        granted = leaver.submit(WINDOW_BYTES, stage=Stage.P2D, nic=nic)
        assert take(leaver, 1) == [granted]
        leaver.submit(WINDOW_BYTES, stage=Stage.P2D, nic=nic)
        leaver.count_posted(nic, Stage.COLLECTIVE, 1_000_000)
        task = client.submit(WINDOW_BYTES, stage=Stage.P2D, nic=nic)
        leaver.detach()
        assert take(client, 1) == [task]
        eventually(lambda: server.arbiter.stats()["clients"] == 1)
        assert server.arbiter.nic_stats(nic)["held_bytes"] == [0] * 8


def test_a_client_that_finishes_nothing_blocks_nobody_for_ever(serve, take: Take) -> None:
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


def test_modes_and_gates(serve, take: Take, eventually: Eventually) -> None:
    server = serve(window_ns=0, window_bytes_min=1)
    with server.attach() as client:
        nic = client.nic("rdma0")
        never = 1 << Stage.CONTROL | 1 << Stage.COLLECTIVE
        assert (client.mode(), client.gate(nic)) == (Mode.ENFORCE, 0xFF & ~never)
        tasks = [client.submit(KIB, stage=Stage.BACKGROUND, nic=nic) for _ in range(20)]
        server.arbiter.mode(Mode.OBSERVE)
        assert sorted(take(client, 20)) == sorted(tasks)  # what was held when the mode changed goes
        assert (client.mode(), client.gate(nic)) == (Mode.OBSERVE, 0)
        assert server.attach().gate(nic) == 0
        server.arbiter.mode(Mode.ENFORCE)
        assert client.gate(nic) == 0xFF & ~never


def test_rules_reach_all_clients(serve) -> None:
    server = serve()
    rules = [
        Rule(library="libnccl", role=1, stage=Stage.COLLECTIVE),
        Rule(
            process="vllm", peer=bytes(range(16)), peer_prefix_bits=96, action=1, stage=Stage.P2D, dscp=26, set_role=4
        ),
    ]
    with server.attach() as before:
        server.arbiter.rules(rules)
        with server.attach() as after:
            for client in (before, after):
                seen = client.rules()
                assert [rule._replace(peer=b"") for rule in seen] == [rule._replace(peer=b"") for rule in rules]
                assert seen[1].peer == bytes(range(16))
    with pytest.raises(ValueError, match=r"rule\.dscp: 64"):
        server.arbiter.rules([Rule(dscp=64)])
    with pytest.raises(ValueError, match=f"rules: {_native.RULES_MAX + 1}"):
        server.arbiter.rules([Rule()] * (_native.RULES_MAX + 1))


def test_load_is_what_goes_before(serve, eventually: Eventually) -> None:
    server = serve()
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


def test_waiting_ends_when_the_daemon_gives_up(serve) -> None:
    server = serve()
    client = server.attach()
    assert client.alive()
    assert not client.hung_up()
    assert client.wait(1) is False
    server.arbiter.close()
    assert not client.alive()
    assert client.wait(3600 * 10**9) is False  # at once: nobody will ever grant
    with pytest.raises(OSError) as raised:
        client.submit(1, stage=Stage.P2D)
    assert raised.value.errno == errno.ENOTCONN
    server.close()
    assert client.hung_up()


def test_a_heartbeat_that_stopped_is_noticed() -> None:
    arbiter = Arbiter(heartbeat_ns=1, stale_after_ns=2)  # and never started
    try:
        assert arbiter.stats()["clients"] == 0
    finally:
        arbiter.close()
    with pytest.raises(OSError) as raised:
        arbiter.stats()
    assert raised.value.errno == errno.ESHUTDOWN


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heartbeat_ns": 0}, "heartbeat_ns: 0"),
        ({"heartbeat_ns": 50, "stale_after_ns": 50}, "stale_after_ns: 50, at least 51"),
        ({"window_bytes_min": 0}, "window_bytes_min: 0"),
        ({"tasks_max": 2**31}, "tasks_max"),
        ({"mode": 3}, "mode: 3"),
        ({"policy": Policy(classes=1)}, "policy.classes: 1"),
        ({"policy": Policy(levels=9)}, "policy.levels: 9"),
        ({"policy": Policy(threshold=(0.5,))}, "policy.threshold: 1 values, needed 7"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Arbiter(**options)  # type: ignore[arg-type]


def test_nics_run_out(serve) -> None:
    server = serve()
    for i in range(_native.NICS_MAX):
        server.arbiter.nic(f"rdma{i}")
    with pytest.raises(OSError) as raised:
        server.arbiter.nic("one more")
    assert raised.value.errno == errno.ENOSPC
    with server.attach() as client, pytest.raises(OSError) as raised:
        client.nic("one more")
    assert raised.value.errno == errno.ENOSPC
    for nic in (_native.NICS_MAX, 2**32 - 1):
        with pytest.raises(OSError) as raised:
            server.arbiter.nic_stats(nic)
        assert raised.value.errno == errno.ENOENT
