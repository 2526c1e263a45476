"""A client that writes anything into its segment harms none but itself."""

from __future__ import annotations

import errno
import mmap
import random
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mfsd import _native
from mfsd._native import LAYOUT, Client, MessageKind, SegmentState, Stage

KIB = 1024
NONE_U32 = 2**32 - 1
MESSAGE = struct.Struct("<QQQQQIHBBBBB5x")  # struct mfs_message
Take = Callable[[Client, int], list[int]]
Eventually = Callable[..., Any]


class SubmitRing:
    """Plays a producer on one ring of a segment, step by step; by default on the one that threads share."""

    def __init__(self, segment: mmap.mmap, index: int = _native.SUBMIT_SHARED) -> None:
        self.segment = segment
        self._ring = index * _native.SUBMIT_RING_BYTES
        self._slots = LAYOUT["submit_slot"] + index * _native.SUBMIT_SLOTS * _native.SUBMIT_SLOT_BYTES
        assert MESSAGE.size == _native.MESSAGE_BYTES

    def at(self, name: str) -> int:
        return LAYOUT[name] + (self._ring if name.startswith("submit.") else 0)

    def load(self, name: str) -> int:
        return int.from_bytes(self.segment[self.at(name) : self.at(name) + 8], "little")

    def store(self, name: str, value: int) -> None:
        self.segment[self.at(name) : self.at(name) + 8] = (value % 2**64).to_bytes(8, "little")

    def slot(self, ticket: int) -> int:
        return self._slots + ticket % _native.SUBMIT_SLOTS * _native.SUBMIT_SLOT_BYTES

    def claim(self, n: int = 1) -> int:
        ticket = self.load("submit.tail")
        self.store("submit.tail", ticket + n)
        return ticket

    def publish(self, ticket: int, message: bytes) -> None:
        at = self.slot(ticket)
        self.segment[at + 8 : at + 8 + len(message)] = message
        self.segment[at : at + 8] = (ticket + 1).to_bytes(8, "little")

    def send(self, message: bytes) -> None:
        """Published before it is claimed, no other being on this ring: a test that stalls leaves no torn slot."""
        ticket = self.load("submit.tail")
        self.publish(ticket, message)
        self.store("submit.tail", ticket + 1)


def message(
    kind: int = MessageKind.SUBMIT,
    slot: int = 0,
    generation: int = 1,
    size: int = KIB,
    batch: int = NONE_U32,
    stage: int = Stage.P2D,
    nic: int = 0,
    request_id: int = 0,
) -> bytes:
    return MESSAGE.pack(generation << 32 | slot, size, request_id, 0, 0, batch, 0, kind, stage, nic, 0, 0)


@pytest.fixture
def pair(serve, take: Take):
    """A server, a client whose segment the test writes, and an honest client that must never notice."""
    server = serve(torn_slot_ns=100_000_000)  # far above the pause of a real producer that has to wait for its core
    hostile, honest = server.attach(), server.attach()
    assert honest.nic("rdma0") == 0
    yield server, hostile, SubmitRing(server.segments[hostile.client_id])
    task = honest.submit(KIB, stage=Stage.P2D)
    assert take(honest, 1) == [task]
    honest.complete(task)
    assert honest.alive()
    assert server.arbiter.client_stats(honest.client_id)["state"] == SegmentState.ACTIVE


def detached(server, client: Client) -> bool:
    return server.arbiter.client_stats(client.client_id)["state"] == SegmentState.DETACHED


@pytest.mark.parametrize(
    "bad",
    [
        message(kind=0),
        message(kind=255),
        message(slot=_native.TASKS_MAX),
        message(slot=NONE_U32),
        message(nic=1),
        message(nic=255),
        message(batch=_native.BATCHES_MAX),
        message(kind=MessageKind.COMPLETE, slot=_native.TASKS_MAX),
        message(kind=MessageKind.CANCEL, slot=NONE_U32),
        message(kind=MessageKind.BATCH, batch=_native.BATCHES_MAX),
        message(kind=MessageKind.BATCH, batch=NONE_U32),
        b"\xff" * 56,
    ],
)
def test_a_bad_message_detaches_its_client(pair, eventually: Eventually, bad: bytes) -> None:
    server, hostile, ring = pair
    ring.send(bad)
    eventually(lambda: detached(server, hostile))
    assert server.arbiter.client_stats(hostile.client_id)["detach_reason"] == -errno.EBADMSG
    assert not hostile.alive()


def test_a_slot_submitted_twice_detaches(pair, eventually: Eventually) -> None:
    server, hostile, ring = pair
    ring.send(message(slot=5, generation=2))
    ring.send(message(slot=5, generation=2))
    eventually(lambda: detached(server, hostile))
    assert sum(server.arbiter.nic_stats(0)["in_flight_bytes"]) == 0


def test_a_task_ended_twice_is_counted(pair, eventually: Eventually) -> None:
    server, hostile, ring = pair
    for kind in (MessageKind.SUBMIT, MessageKind.COMPLETE, MessageKind.CANCEL):
        ring.send(message(kind=kind, slot=9, generation=3))
    eventually(lambda: server.arbiter.client_stats(hostile.client_id)["bad_messages"] == 1)
    assert not detached(server, hostile)


@pytest.mark.parametrize(
    "order",
    [
        ["complete 1", "submit 1", "submit 2"],  # an end ahead of its submit
        ["submit 1", "submit 2", "complete 1"],  # a slot's next task ahead of the last one's end
        ["cancel 1", "submit 1", "submit 2"],
        ["submit 1", "submit 2", "cancel 1"],
        ["submit 1", "complete 2", "complete 1", "submit 2", "submit 3", "cancel 3", "submit 4"],
        ["complete 1", "submit 2", "submit 3", "complete 2"],  # its submit is never read: torn
        ["cancel 1", "submit 2", "submit 1"],  # a slot's next task ahead of the last one's submit
        ["submit 2", "cancel 1", "submit 1"],
        ["submit 3", "cancel 2", "submit 1", "submit 2", "cancel 1"],
        ["cancel 2", "cancel 1", "submit 1", "submit 2", "submit 3"],
        ["cancel 2", "cancel 1", "submit 3", "submit 2", "submit 1"],
    ],
)
def test_lanes_are_read_in_any_order(pair, eventually: Eventually, order: list[str]) -> None:
    """One task of this slot is left, whatever the order in which the threads' messages are read."""
    server, hostile, ring = pair
    for step in order:
        kind, generation = step.split()
        ring.send(message(kind=MessageKind[kind.upper()], slot=7, generation=int(generation)))
    ends = sum("submit" not in step for step in order)
    stats = eventually(
        lambda: (
            (s := server.arbiter.client_stats(hostile.client_id))["submits"] == len(order) - ends
            and s["completes"] + s["cancels"] == ends
            and s
        )
    )
    assert (stats["in_flight_bytes"], stats["bad_messages"]) == (KIB, 0)
    assert sum(server.arbiter.nic_stats(0)["in_flight_bytes"]) == KIB


def test_accounts_of_tasks_whose_end_is_read_at_another_time(pair, eventually: Eventually) -> None:
    """What had its permit counts as moved; what was over before it was seen is on no account, and counted as such."""
    server, hostile, ring = pair
    ring.send(message(generation=1, request_id=5))
    eventually(lambda: server.arbiter.client_stats(hostile.client_id)["grants"] == 1, "the permit")
    ring.send(message(generation=2, request_id=5))
    ring.send(message(kind=MessageKind.COMPLETE, generation=1))
    ring.send(message(kind=MessageKind.CANCEL, generation=2))
    for slot in (1, 2):
        ring.send(message(kind=MessageKind.CANCEL, slot=slot, generation=1))
    ring.send(message(slot=1, generation=1, request_id=5))
    ring.send(message(slot=2, generation=2, request_id=5))
    ring.send(message(slot=2, generation=1, request_id=5))
    eventually(lambda: server.arbiter.client_stats(hostile.client_id)["submits"] == 5, "all messages")
    (account,) = server.arbiter.accounts(5)
    (cell,) = account.cells
    assert (cell.tasks, cell.completed_bytes, cell.dropped_bytes, account.open) == (3, KIB, KIB, 1)
    assert server.arbiter.ledger_totals()["unaccounted"] == 2


@pytest.mark.parametrize(
    "order",
    ["cancel 2,cancel 1,submit 1,submit 2", "cancel 1,submit 2,cancel 2,submit 1", "cancel 2,submit 2,submit 1"],
)
def test_nothing_is_left_of_a_slot_whose_tasks_have_ended(pair, eventually: Eventually, order: str) -> None:
    server, hostile, ring = pair
    for step in order.split(","):
        kind, generation = step.split()
        ring.send(message(kind=MessageKind[kind.upper()], slot=7, generation=int(generation)))
    ring.send(message(kind=MessageKind.CANCEL, slot=8, generation=1))
    cancels = order.count("cancel") + 1
    stats = eventually(
        lambda: (
            (s := server.arbiter.client_stats(hostile.client_id))["cancels"] == cancels
            and not detached(server, hostile)
            and s
        )
    )
    assert (stats["held_bytes"], stats["in_flight_bytes"]) == (0, 0)
    assert sum(server.arbiter.nic_stats(0)["in_flight_bytes"]) == 0


@pytest.mark.parametrize("stage", [5, 7, 8, 255])
def test_a_stage_of_the_future_is_background(pair, take: Take, eventually: Eventually, stage: int) -> None:
    server, hostile, ring = pair
    ring.send(message(stage=stage))
    eventually(lambda: server.arbiter.client_stats(hostile.client_id)["grants"] == 1)
    assert server.arbiter.nic_stats(0)["grants"][7] == 1  # the scavenger's class


@pytest.mark.parametrize("jump", [_native.SUBMIT_SLOTS + 1, 2**63, -_native.SUBMIT_SLOTS - 1])
def test_an_absurd_index_detaches(pair, eventually: Eventually, jump: int) -> None:
    server, hostile, ring = pair
    ring.store("submit.tail", ring.load("submit.tail") + jump)
    eventually(lambda: detached(server, hostile))
    assert server.arbiter.client_stats(hostile.client_id)["detach_reason"] == -errno.EPROTO


def test_an_absurd_grant_index_detaches(pair, eventually: Eventually) -> None:
    server, hostile, ring = pair
    ring.store("grant.head", 2**63)
    ring.send(message())
    eventually(lambda: detached(server, hostile))


@pytest.mark.parametrize("head", [2**63, -1])
def test_a_stray_write_into_the_grants_hangs_no_client(pair, eventually: Eventually, head: int) -> None:
    """It finds no permit there, however long the ring would seem to be."""
    _, hostile, ring = pair
    asked = hostile.submit(1 << 30, stage=Stage.P2D, asked=True)
    eventually(lambda: hostile.permit(asked) is not None, "all of the credit is spent")
    task = hostile.submit(KIB, stage=Stage.P2D, asked=True)
    ring.store("grant.head", ring.load("grant.tail") + _native.GRANT_SLOTS + 1 if head == -1 else head)
    assert hostile.permits(64) == []
    assert hostile.permit(task) is None


@pytest.fixture
def crowd(pair) -> Iterator[None]:
    """Threads that take all rings that a thread can have to itself; this one has to share."""
    _, hostile, _ = pair
    leave = threading.Event()
    barrier = threading.Barrier(_native.SUBMIT_RINGS)

    def take_a_ring() -> None:
        hostile.cancel(hostile.submit(1, stage=Stage.P2D))
        barrier.wait()
        leave.wait()

    threads = [threading.Thread(target=take_a_ring) for _ in range(_native.SUBMIT_RINGS - 1)]
    for thread in threads:
        thread.start()
    barrier.wait()
    yield
    leave.set()
    for thread in threads:
        thread.join()


def test_a_stray_write_into_a_ring_hangs_no_client(pair, crowd: None) -> None:
    """The program posts natively then; the daemon gives it up when it sees the same."""
    _, hostile, ring = pair
    ring.store("submit.head_seen", 2**62)
    ring.store("submit.head", 2**62)
    with pytest.raises(OSError) as caught:
        hostile.submit(KIB, stage=Stage.P2D)
    assert caught.value.errno in (errno.EAGAIN, errno.ENOTCONN)


def test_a_torn_slot_is_passed_by_and_delivered_late(pair, crowd: None, eventually: Eventually) -> None:
    server, hostile, ring = pair
    before = eventually(lambda: server.arbiter.client_stats(hostile.client_id)["submits"])
    torn = ring.claim()  # a thread that stops here
    ring.send(message(slot=3001))
    assert hostile.submit(KIB, stage=Stage.P2D) is not None  # a real producer behind it
    stats = eventually(lambda: (s := server.arbiter.client_stats(hostile.client_id))["torn_slots"] == 1 and s)
    eventually(lambda: server.arbiter.client_stats(hostile.client_id)["submits"] == before + 2)
    ring.publish(torn, message(slot=3002))  # it was only slow
    eventually(lambda: server.arbiter.client_stats(hostile.client_id)["submits"] == before + 3)
    assert stats["state"] == SegmentState.ACTIVE


def test_a_torn_slot_is_left_out_until_its_producer_comes_back(pair, crowd: None, take: Take, eventually) -> None:
    """Three times around the ring, past a slot whose producer has stopped: nothing is lost, nothing overwritten."""
    server, hostile, ring = pair
    torn = ring.claim()
    at = ring.slot(torn)
    empty = ring.segment[at : at + 64]
    eventually(lambda: ring.load("submit.head") > torn)
    quarantine = struct.unpack_from("<I", ring.segment, ring.at("submit.quarantine"))[0]
    assert quarantine == torn % _native.SUBMIT_SLOTS + 1

    def around(laps: int) -> None:
        end = ring.load("submit.tail") + laps * _native.SUBMIT_SLOTS
        while ring.load("submit.tail") < end:
            task = hostile.submit(1, stage=Stage.P2D)
            assert take(hostile, 1) == [task]
            hostile.complete(task)

    around(3)
    assert ring.segment[at : at + 64] == empty
    stats = server.arbiter.client_stats(hostile.client_id)
    eventually(lambda: server.arbiter.client_stats(hostile.client_id)["completes"] >= 3 * _native.SUBMIT_SLOTS // 2 - 1)
    ring.publish(torn, message(slot=3002))
    submits = server.arbiter.client_stats(hostile.client_id)["submits"]
    eventually(
        lambda: server.arbiter.client_stats(hostile.client_id)["submits"] > submits or submits > stats["submits"]
    )
    around(2)
    assert ring.load("submit.quarantined") & 0xFFFFFFFF == 0  # in use again
    assert ring.segment[at : at + 64] != empty
    assert server.arbiter.client_stats(hostile.client_id)["torn_slots"] == 1


def test_a_lane_outlives_its_thread(pair, take: Take, eventually: Eventually) -> None:
    """More threads than rings, one after the other: each finds a ring of its own, where the last one left it."""
    server, hostile, _ = pair
    tasks: list[int] = []
    for _ in range(3 * _native.SUBMIT_RINGS):
        thread = threading.Thread(target=lambda: tasks.append(hostile.submit(1, stage=Stage.P2D)))
        thread.start()
        thread.join()
    assert sorted(take(hostile, len(tasks))) == sorted(tasks)
    shared = SubmitRing(server.segments[hostile.client_id])
    assert shared.load("submit.tail") == 0
    # A thread that ended between publishing and moving the tail: its ring's next owner goes on behind the message.
    tids = SubmitRing(server.segments[hostile.client_id], 0)
    used = next(
        SubmitRing(server.segments[hostile.client_id], i)
        for i in range(_native.SUBMIT_RINGS)
        if tids.load("submit.tail")
    )
    used.publish(used.load("submit.tail"), message(slot=3003))
    for _ in range(2 * _native.SUBMIT_RINGS):
        thread = threading.Thread(target=lambda: tasks.append(hostile.submit(1, stage=Stage.P2D)))
        thread.start()
        thread.join()
    eventually(lambda: server.arbiter.client_stats(hostile.client_id)["submits"] == len(tasks) + 1)
    assert not detached(server, hostile)


def test_too_many_torn_slots_detach(pair, eventually: Eventually) -> None:
    server, hostile, ring = pair
    ring.claim(_native.QUARANTINE_MAX + 1)
    eventually(lambda: detached(server, hostile))
    assert server.arbiter.client_stats(hostile.client_id)["torn_slots"] == _native.QUARANTINE_MAX


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_anywhere(pair, eventually: Eventually, seed: int) -> None:
    server, _, ring = pair
    chance = random.Random(seed)
    header = LAYOUT["gate"]
    for _ in range(200):
        start = chance.choice(
            [LAYOUT["submit"], LAYOUT["submit_slot"], LAYOUT["batch"], LAYOUT["usage"], LAYOUT["grant"]]
        )
        at = start + chance.randrange(4096)
        size = chance.randrange(1, 600)
        ring.segment[at : at + size] = chance.randbytes(size)
    ring.segment[header:] = chance.randbytes(len(ring.segment) - header) if seed % 2 else ring.segment[header:]
    loops = server.arbiter.stats()["loops"]
    eventually(lambda: server.arbiter.stats()["loops"] > loops + 20)


def test_random_messages(pair, eventually: Eventually) -> None:
    """Valid frames around every field's range; new clients for those that were detached."""
    server, _, _ = pair
    chance = random.Random(1)
    for _ in range(30):
        client = server.attach()
        ring = SubmitRing(server.segments[client.client_id])
        for _ in range(200):
            ring.send(
                MESSAGE.pack(
                    chance.randrange(3) << 32 | chance.randrange(6),
                    chance.choice([0, 1, KIB, chance.getrandbits(40), chance.getrandbits(64)]),
                    chance.choice([0, 1, 2, chance.getrandbits(64)]),
                    chance.choice([0, 1, 2**63, 2**64 - 1, chance.getrandbits(64)]),
                    chance.choice([0, 2**64 - 1, chance.getrandbits(64)]),
                    chance.choice([NONE_U32, 0, 1, 63]),
                    chance.getrandbits(16),
                    chance.choice([1, 1, 2, 3, 4]),
                    chance.getrandbits(8),
                    0,
                    chance.getrandbits(8),
                    chance.getrandbits(8),
                )
            )
        loops = server.arbiter.stats()["loops"]
        eventually(lambda: server.arbiter.stats()["loops"] > loops + 2)  # noqa: B023
        client.detach()
    eventually(lambda: server.arbiter.stats()["clients"] == 2)
    assert sum(server.arbiter.nic_stats(0)["in_flight_bytes"]) == 0
    assert sum(server.arbiter.nic_stats(0)["held_tasks"]) == 0
