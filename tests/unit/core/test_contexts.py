"""Batches and requests in the real arbiter: what is reported, how it orders, and what a hostile table can do."""

from __future__ import annotations

import errno
import itertools
import os
import random
import select
import time
from collections.abc import Callable
from typing import Any

import pytest

from mfsd import _native
from mfsd._native import LAYOUT, Client, DemandInfo, Direction, MessageKind, Policy, RequestInfo, Stage, Tier, Variant
from mfsd.policy import PolicyConfig
from mfsd.policy.urgency import thresholds
from tests.specification.urgency import effective_rate_bytes_per_s, level_at
from tests.unit.core.test_hostile import SubmitRing, message

PAPER = Policy(variant=Variant.PAPER)
WINDOW = 131_072
RATE = 1000
"""So slow that what fills the window is not overdue before minutes have passed."""
S = 10**9
Take = Callable[[Client, int], list[int]]
Eventually = Callable[..., Any]


def filled(serve, **options):
    """A server, a client whose window is full, and its NIC; so what is submitted waits."""
    server = serve(**options)
    client = server.attach()
    nic = client.nic("rdma0", 0, RATE)
    first = client.submit(WINDOW, stage=Stage.BACKGROUND, nic=nic, asked=True)
    assert client.permit_wait(first, 100 * S) is not None
    return server, client, nic


@pytest.fixture
def full(serve):
    return filled(serve)


def held(server, client: Client):
    return [t for t in server.arbiter.tasks(client.client_id) if not t.in_flight]


def the_task(server, client: Client, eventually: Eventually):
    return eventually(lambda: (held(server, client) or [None])[0])


def test_bytes_that_are_to_come_count_in_mlu(serve, eventually: Eventually) -> None:
    server, client, nic = filled(serve, policy=Policy(variant=Variant.PAPER))
    deadline_ns = time.monotonic_ns() + 1000 * S
    ahead = 1000 * RATE // 4  # MLU 0.25: between Q_2 and Q_1
    reported = RequestInfo(7, deadline_ns=deadline_ns, budget_ns=1000 * S, demands=(DemandInfo(ahead, nic=nic),))
    slot = client.request_begin(reported)
    client.submit(1000, stage=Stage.P2D, nic=nic, request_id=7)
    task = the_task(server, client, eventually)
    facts = server.arbiter.facts(nic, Direction.OUT)
    rate = effective_rate_bytes_per_s(facts.rate_bytes_per_s, facts.rho, 0.95)
    config = PolicyConfig()
    assert task.level == level_at(time.monotonic_ns(), ahead, deadline_ns, rate, thresholds(config)) == 2
    assert (task.bytes_left, task.bytes_ahead, task.request_deadline_ns) == (ahead, ahead - 1000, deadline_ns)
    client.request_end(slot)
    eventually(lambda: held(server, client)[0].bytes_left == 1000)


def test_the_last_layers_bytes_are_the_tail(full, eventually: Eventually) -> None:
    server, client, nic = full
    demands = tuple(DemandInfo(100 * (layer + 1), layer=layer, nic=nic) for layer in range(4))
    reported = RequestInfo(7, deadline_ns=time.monotonic_ns() + 1000 * S, demands=demands)
    batch, _ = client.batch_begin_with(1, 4, [reported])
    client.submit(10, stage=Stage.P2D, nic=nic, request_id=7, batch=batch)
    assert the_task(server, client, eventually).bytes_tail == 400


def test_a_request_is_promoted_by_time_though_nothing_happens(serve) -> None:
    """Collectives are under way and stay so: the held task can go only as a critical one, which it becomes by time."""
    server = serve(gate_max_ns=3600 * S)
    client = server.attach()
    nic = client.nic("rdma0", 0, RATE)
    client.count_posted(nic, Stage.COLLECTIVE, 2000 * RATE)  # on the wire for so many seconds
    budget_ns = 10_000 * S
    guard_ns = int(budget_ns * PolicyConfig().critical_laxity_share)
    for attempt in itertools.count():  # critical from the start: the machine was away until then
        due_ns = time.monotonic_ns() + guard_ns + S + (S << attempt) // 2  # of which 1 s for its bytes
        reported = RequestInfo(7 + attempt, deadline_ns=due_ns, budget_ns=budget_ns)
        client.request_begin(reported)
        where = {"nic": nic, "request_id": reported.request_id, "deadline_ns": due_ns}
        task = client.submit(RATE, stage=Stage.P2D, asked=True, **where)
        assert client.permit_wait(task, 600 * S) == 1  # with the shortest loads
        if server.arbiter.nic_stats(nic)["promotions"]:
            break


def test_while_its_batch_computes_it_is_promoted_at_layer_boundaries(serve, eventually: Eventually) -> None:
    for attempt in itertools.count():  # beyond the crossing from the start: the machine was away until then
        server, client, nic = filled(serve, policy=Policy(variant=Variant.PAPER))
        now_ns = time.monotonic_ns()
        crossing_ns = now_ns + (S << attempt) // 4
        deadline_ns = now_ns + 1000 * S
        size = int(0.125 * RATE * (deadline_ns - crossing_ns) / 1e9)  # MLU reaches Q_2 = 0.125 at crossing_ns
        reported = RequestInfo(7, deadline_ns=deadline_ns, budget_ns=1000 * S, demands=(DemandInfo(size, nic=nic),))
        batch, _ = client.batch_begin_with(1, 10, [reported], compute_ns=500 * S)
        client.submit(100, stage=Stage.P2D, nic=nic, request_id=7, batch=batch)
        first = the_task(server, client, eventually)
        assert first.compute_end_ns > now_ns
        if first.level == 3:
            break
        assert first.level == 2
    eventually(lambda: time.monotonic_ns() > crossing_ns + S // 100)
    assert held(server, client)[0].level == 3
    client.batch_layer(batch, 1)
    eventually(lambda: held(server, client)[0].level == 2)


def test_compute_left_is_pro_rata_and_passes_with_time(serve, eventually: Eventually) -> None:
    server = serve()
    client = server.attach()
    batch = client.batch_begin(1, 10, 0, 1000 * S)
    snapshot = eventually(lambda: server.arbiter.batch_snapshot(client.client_id, batch))
    assert 900 * S < snapshot.compute_left_ns <= 1000 * S
    later = eventually(
        lambda: (
            (now := server.arbiter.batch_snapshot(client.client_id, batch)).compute_left_ns < snapshot.compute_left_ns
            and now
        )
    )
    assert later.compute_left_ns > 800 * S
    client.batch_layer(batch, 4)
    eventually(lambda: server.arbiter.batch_snapshot(client.client_id, batch).layer_current == 4)
    assert 500 * S < server.arbiter.batch_snapshot(client.client_id, batch).compute_left_ns <= 600 * S
    client.batch_layer(batch, 12)
    eventually(lambda: server.arbiter.batch_snapshot(client.client_id, batch).compute_left_ns == 0)


def test_load_is_the_moving_average_of_the_policy(serve, eventually: Eventually) -> None:
    """With a time constant that is long beside the interval, a burst of x bytes is x / (rate T) of load."""
    server = serve(policy=PAPER, load_time_constant_ns=1000 * S)
    with server.attach() as client:
        nic = client.nic("rdma0", 0, 10**9)
        client.count_completed(nic, Stage.COLLECTIVE, 10**6)
        for direction in Direction:
            eventually(lambda: server.arbiter.facts(nic, direction).rho > 0)  # noqa: B023
            assert server.arbiter.facts(nic, direction).rho == pytest.approx(1e6 / (1e9 * 1000), rel=0.02)
    short = serve(policy=PAPER, load_time_constant_ns=1_000_000)
    with short.attach() as client:
        nic = client.nic("rdma0", 0, 10**9)

        def loaded() -> bool:  # which soon passes, seen or not
            client.count_completed(nic, Stage.COLLECTIVE, 10**6)
            return short.arbiter.facts(nic, Direction.OUT).rho > 0

        eventually(loaded)
        eventually(lambda: short.arbiter.facts(nic, Direction.OUT).rho < 1e-9)


@pytest.mark.parametrize("direction", list(Direction))
def test_stage_1_is_load_of_the_direction_that_it_takes(serve, eventually: Eventually, direction: Direction) -> None:
    server = serve(policy=PAPER, load_time_constant_ns=1000 * S)
    with server.attach() as client:
        nic = client.nic("rdma0", 0, 10**12)
        for _ in range(100):
            incoming = direction == Direction.IN
            task = client.submit(10**6, stage=Stage.REUSE, nic=nic, asked=True, incoming=incoming)
            assert client.permit_wait(task, 100 * S) is not None
            client.complete(task)
            client.count_completed(nic, Stage.REUSE, 10**6)
        eventually(lambda: sum(server.arbiter.facts(nic, d).rho for d in Direction) > 0.9 * 100e6 / (1e12 * 1000))
        # the counter of a transfer may be read before its completion, which then comes too late to say where it went
        rho = [server.arbiter.facts(nic, d).rho for d in Direction]
        assert rho[direction] > 2 * rho[1 - direction]


def test_the_papers_load_counts_what_promotion_put_first(serve, eventually: Eventually) -> None:
    for variant, counted in ((Variant.PAPER, True), (Variant.MFS, False)):
        server = serve(policy=Policy(variant=variant, levels=2), load_time_constant_ns=1000 * S)
        with server.attach() as client:
            nic = client.nic("rdma0", 0, RATE)
            due_ns = time.monotonic_ns() + 1000 * S  # and 500 s of bytes: over the threshold at once, lost in 500 s
            client.request_begin(RequestInfo(7, deadline_ns=due_ns, budget_ns=1000 * S))
            size = 500 * RATE + 1
            task = client.submit(size, stage=Stage.P2D, nic=nic, request_id=7, deadline_ns=due_ns, asked=True)
            assert client.permit_wait(task, 100 * S) is not None
            client.complete(task)
            eventually(lambda: not server.arbiter.tasks(client.client_id))  # noqa: B023
            if counted:
                eventually(lambda: server.arbiter.facts(nic, Direction.OUT).rho > 0)  # noqa: B023
            else:
                loops = server.arbiter.stats()["loops"]
                eventually(lambda: server.arbiter.stats()["loops"] > loops + 20)  # noqa: B023
                assert server.arbiter.facts(nic, Direction.OUT).rho == 0


def test_a_pruned_request_goes_last_and_comes_back(full, eventually: Eventually) -> None:
    server, client, nic = full
    due_ns = time.monotonic_ns() + 1000 * S
    slot = client.request_begin(RequestInfo(7, deadline_ns=due_ns))
    client.submit(100, stage=Stage.P2D, nic=nic, request_id=7, deadline_ns=due_ns)
    assert the_task(server, client, eventually).tier == Tier.LAST
    server.arbiter.request_prune(client.client_id, 7, True)
    task = held(server, client)[0]
    assert (task.tier, task.pruned) == (Tier.SCAVENGER, True)
    assert client.request_judgement(slot) == _native.Judgement.PRUNED
    server.arbiter.request_prune(client.client_id, 7, False)
    assert held(server, client)[0].tier == Tier.LAST
    assert client.request_judgement(slot) == 0
    with pytest.raises(OSError) as raised:
        server.arbiter.request_prune(client.client_id, 8, True)
    assert raised.value.errno == errno.ENOENT


def test_a_task_has_what_its_request_has(full, eventually: Eventually) -> None:
    server, client, nic = full
    due_ns = time.monotonic_ns() + 1000 * S
    batch, _ = client.batch_begin_with(1, 4, [RequestInfo(7, deadline_ns=due_ns, budget_ns=2000 * S)])
    client.submit(100, stage=Stage.P2D, nic=nic, request_id=7)
    task = the_task(server, client, eventually)
    assert (task.batch_id, task.batch_announced, task.request_deadline_ns, task.budget_ns) == (
        1,
        True,
        due_ns,
        2000 * S,
    )
    client.batch_end(batch)


def test_what_is_pruned_is_so_on_a_nic_that_comes_later(full, eventually: Eventually) -> None:
    server, client, _ = full
    client.request_begin(RequestInfo(7))
    eventually(lambda: server.arbiter.stats()["messages"] >= 2)
    server.arbiter.request_prune(client.client_id, 7, True)
    other = client.nic("rdma1", 0, RATE)
    blocker = client.submit(WINDOW, stage=Stage.P2D, nic=other, asked=True)
    assert client.permit_wait(blocker, 100 * S) is not None
    client.submit(10, stage=Stage.P2D, nic=other, request_id=7)
    assert the_task(server, client, eventually).tier == Tier.SCAVENGER


# ---- notices -----------------------------------------------------------------------------------------------------


def readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def test_changes_are_reported_once_and_ring(serve, eventually: Eventually) -> None:
    server = serve()
    fd = server.arbiter.notice_fd()
    assert not readable(fd)
    assert server.arbiter.changed() == []
    client = server.attach()
    batch = client.batch_begin(1, 4)
    eventually(lambda: readable(fd))
    os.read(fd, 8)
    assert server.arbiter.changed() == [
        (client.client_id, batch, server.arbiter.batch_snapshot(client.client_id, batch))
    ]
    assert server.arbiter.changed() == []
    client.batch_layer(batch, 1)
    others = [client.batch_begin(number, 4) for number in (2, 3)]
    seen: dict[int, tuple[int, int]] = {}

    def so_far() -> dict[int, tuple[int, int]]:
        seen.update(
            {
                slot: (snapshot.batch_id, snapshot.layer_current)
                for _, slot, snapshot in server.arbiter.changed()
                if snapshot
            }
        )
        return seen

    eventually(lambda: so_far() == {batch: (1, 1), others[0]: (2, 0), others[1]: (3, 0)})
    client.batch_end(batch)
    eventually(lambda: readable(fd))
    eventually(lambda: (client.client_id, batch, None) in server.arbiter.changed())
    eventually(lambda: server.arbiter.batch_snapshot(client.client_id, batch) is None)


def test_a_batch_is_known_with_all_its_requests(serve, eventually: Eventually) -> None:
    server = serve()
    fd = server.arbiter.notice_fd()
    client = server.attach()
    for batch_id in range(1, 6):
        requests = [RequestInfo(100 * batch_id + i, demands=(DemandInfo(1),)) for i in range(100)]
        batch, _ = client.batch_begin_with(batch_id, 4, requests)
        assert select.select([fd], [], [], 20)[0]
        os.read(fd, 8)
        snapshot = eventually(
            lambda batch=batch, batch_id=batch_id: (
                (seen := server.arbiter.batch_snapshot(client.client_id, batch)) and seen.batch_id == batch_id and seen
            )
        )
        assert len(snapshot.requests) == 100
        server.arbiter.changed()
        client.batch_end(batch)
        assert select.select([fd], [], [], 20)[0]
        os.read(fd, 8)
        server.arbiter.changed()


@pytest.mark.parametrize("names_it", ["batch", "flow", "request"])
def test_a_batch_comes_whole_whatever_message_comes_first(serve, eventually: Eventually, names_it: str) -> None:
    """Messages of several threads are read in any order: one that names the batch may be ahead of its requests' own."""
    server = serve()
    reported, other = server.attach(), server.attach()
    other.nic("rdma0", 0, RATE)
    requests = [RequestInfo(100 + i, demands=(DemandInfo(1),)) for i in range(40)]
    batch, slots = reported.batch_begin_with(1, 4, requests)
    eventually(lambda: server.arbiter.batch_snapshot(reported.client_id, batch))
    source, target = server.segments[reported.client_id], server.segments[other.client_id]
    for table, size in (
        ("batch", _native.BATCHES_MAX * _native.BATCH_BYTES),
        ("request", _native.REQUESTS_MAX * _native.REQUEST_BYTES),
        ("demand", _native.DEMANDS_MAX * _native.DEMAND_BYTES),
    ):
        target[LAYOUT[table] : LAYOUT[table] + size] = source[LAYOUT[table] : LAYOUT[table] + size]
    lane = SubmitRing(target)
    if names_it == "request":  # the batch is not there before it is reported: its own message may still be written
        sent = server.arbiter.stats()["messages"]
        lane.send(request_message(slots[0]))
        drained(server, eventually, sent + 1)
        assert server.arbiter.batch_snapshot(other.client_id, batch) is None
        lane.send(message(kind=MessageKind.BATCH, batch=batch))
    elif names_it == "batch":
        lane.send(message(kind=MessageKind.BATCH, batch=batch))
    else:
        lane.send(message(batch=batch))
    snapshot = eventually(lambda: server.arbiter.batch_snapshot(other.client_id, batch))
    assert {r.request_id for r in snapshot.requests} == {r.request_id for r in requests}
    assert all(len(r.demands) == 1 for r in snapshot.requests)


def replace(client: Client, batch: int, slots: list[int]) -> None:
    """The batch, with its first two requests, ends; another begins in its slot, with requests in these."""
    client.batch_end(batch)
    for request_id in range(100, 100 + _native.REQUESTS_MAX - 2):
        client.request_end(client.request_begin(RequestInfo(request_id)))
    reported = [RequestInfo(50 + i, demands=(DemandInfo(1),)) for i in range(len(slots))]
    assert client.batch_begin_with(2, 4, reported) == (batch, slots)


def test_requests_that_were_replaced_while_the_arbiter_was_away_are_there_once(serve, eventually: Eventually) -> None:
    """The message about the old request is the first that is read: by then its slot and its batch are others."""
    server = serve(start=False)
    client = server.attach()
    batch, slots = client.batch_begin_with(1, 4, [RequestInfo(1), RequestInfo(2)])
    server.arbiter.batch_rank(client.client_id, 1, 0)  # reads what there is
    replace(client, batch, slots)
    server.arbiter.start()
    snapshot = eventually(
        lambda: (seen := server.arbiter.batch_snapshot(client.client_id, batch)) and seen.batch_id == 2 and seen
    )
    assert sorted(r.request_id for r in snapshot.requests) == [50, 51]


def test_what_a_client_has_reported_is_read_no_more_when_it_leaves(serve) -> None:
    server = serve(start=False)
    client = server.attach()
    passing = client.request_begin(RequestInfo(3))
    batch, (slot,) = client.batch_begin_with(1, 4, [RequestInfo(1)])
    assert slot > passing
    server.arbiter.batch_rank(client.client_id, 1, 0)
    client.request_end(passing)
    replace(client, batch, [passing])  # which is passed by when the known one is forgotten
    server.arbiter.client_remove(client.client_id)
    assert server.arbiter.accounts(1)
    assert not server.arbiter.accounts(50)


# ---- limits ------------------------------------------------------------------------------------------------------


def fails(expected: int, call: Callable[[], object]) -> None:
    with pytest.raises(OSError) as raised:
        call()
    assert raised.value.errno == expected


def test_tables_run_out_and_come_back(serve) -> None:
    client = serve().attach()
    many = [RequestInfo(i + 1) for i in range(_native.REQUESTS_MAX)]
    batch, slots = client.batch_begin_with(1, 2, many)
    assert sorted(slots) == list(range(_native.REQUESTS_MAX))
    fails(errno.ENOSPC, lambda: client.request_begin(RequestInfo(5000)))
    fails(errno.ENOSPC, lambda: client.batch_begin_with(2, 2, [RequestInfo(5000)]))
    client.batch_end(batch)
    fails(errno.ENOENT, lambda: client.batch_end(batch))
    fails(errno.ENOENT, lambda: client.request_end(slots[0]))
    wide = [
        RequestInfo(i + 1, demands=(DemandInfo(1),) * _native.REQUEST_DEMANDS_MAX)
        for i in range(_native.DEMANDS_MAX // _native.REQUEST_DEMANDS_MAX)
    ]
    batch, _ = client.batch_begin_with(1, 2, wide)
    fails(errno.ENOSPC, lambda: client.request_begin(RequestInfo(5000, demands=(DemandInfo(1),))))
    client.request_begin(RequestInfo(5000))
    client.batch_end(batch)
    for _ in range(3):
        batch, _ = client.batch_begin_with(1, 2, wide)
        client.batch_end(batch)


def test_what_cannot_be_reported_is_refused(serve) -> None:
    client = serve().attach()
    too_many = (DemandInfo(1),) * (_native.REQUEST_DEMANDS_MAX + 1)
    fails(errno.EINVAL, lambda: client.request_begin(RequestInfo(1, demands=too_many)))
    for bad in (0, 2**64 - 1):
        fails(errno.EINVAL, lambda bad=bad: client.request_begin(RequestInfo(bad)))
        fails(errno.EINVAL, lambda bad=bad: client.batch_begin(bad, 1))
        fails(errno.EINVAL, lambda bad=bad: client.batch_begin_with(1, 1, [RequestInfo(1), RequestInfo(bad)]))
    fails(errno.EINVAL, lambda: client.request_begin(RequestInfo(1), _native.BATCHES_MAX))
    fails(errno.EINVAL, lambda: client.request_end(_native.REQUESTS_MAX))
    fails(errno.EINVAL, lambda: client.batch_layer(_native.BATCHES_MAX, 1))
    with pytest.raises(ValueError, match=r"demand\.peer: 3 bytes"):
        client.request_begin(RequestInfo(1, demands=(DemandInfo(1, peer=b"abc"),)))
    assert [client.batch_begin(i + 1, 1) for i in range(_native.BATCHES_MAX)] == list(range(_native.BATCHES_MAX))


# ---- hostile tables ----------------------------------------------------------------------------------------------


def request_message(slot: int) -> bytes:
    return message(kind=MessageKind.REQUEST, slot=slot, generation=0)


@pytest.fixture
def hostile(serve, take: Take):
    server = serve()
    bad, honest = server.attach(), server.attach()
    nic = honest.nic("rdma0", 0, RATE)
    yield server, bad, server.segments[bad.client_id]
    task = honest.submit(10, stage=Stage.P2D, nic=nic)
    assert take(honest, 1) == [task]
    server.arbiter.client_remove(bad.client_id)
    assert server.arbiter.client_stats(honest.client_id)["state"] == 1


def drained(server, eventually: Eventually, messages: int) -> None:
    eventually(lambda: server.arbiter.stats()["messages"] >= messages)


def test_a_request_beyond_the_table_detaches(hostile, eventually: Eventually) -> None:
    server, client, segment = hostile
    SubmitRing(segment).send(request_message(_native.REQUESTS_MAX))
    eventually(lambda: server.arbiter.client_stats(client.client_id)["state"] == 2)


@pytest.mark.parametrize("filling", ["ones", "random", "small"])
def test_garbage_in_every_table(hostile, eventually: Eventually, filling: str) -> None:
    server, client, segment = hostile
    noise = random.Random(filling)
    lane = SubmitRing(segment)
    sent = server.arbiter.stats()["messages"]
    for _ in range(20):
        for table, size in (
            ("batch", _native.BATCHES_MAX * _native.BATCH_BYTES),
            ("request", _native.REQUESTS_MAX * _native.REQUEST_BYTES),
            ("demand", _native.DEMANDS_MAX * _native.DEMAND_BYTES),
        ):
            data = {
                "ones": lambda n: b"\xff" * n,
                "random": noise.randbytes,
                "small": lambda n: bytes(noise.choices((0, 0, 0, 1, 2, 3), k=n)),
            }[filling](size)
            segment[LAYOUT[table] : LAYOUT[table] + size] = data
        for _ in range(60):
            if noise.random() < 0.5:
                lane.send(request_message(noise.randrange(64)))
            else:
                lane.send(message(kind=MessageKind.BATCH, batch=noise.randrange(_native.BATCHES_MAX)))
        sent += 60
        drained(server, eventually, sent)
        for slot in range(_native.BATCHES_MAX):
            snapshot = server.arbiter.batch_snapshot(client.client_id, slot)
            if snapshot is not None:
                assert snapshot.layers <= 2**16
                assert snapshot.compute_left_ns <= 2**60
                for request in snapshot.requests:
                    assert request.deadline_ns <= 2**60
                    assert all(0 <= d.bytes_left <= d.bytes <= 2**40 for d in request.demands)
        server.arbiter.changed()
    assert server.arbiter.client_stats(client.client_id)["state"] == 1


def test_a_chain_that_bites_its_tail_ends(hostile, eventually: Eventually) -> None:
    server, client, segment = hostile
    batch, (first, second) = client.batch_begin_with(
        1, 2, [RequestInfo(1, demands=(DemandInfo(5), DemandInfo(6))), RequestInfo(2, demands=(DemandInfo(7),))]
    )
    eventually(lambda: server.arbiter.batch_snapshot(client.client_id, batch))

    def store(table: str, size: int, slot: int, field: str, value: int) -> None:
        at = LAYOUT[f"{table}.{field}"] + slot * size
        segment[at : at + 4] = value.to_bytes(4, "little")

    # demands of both requests form one ring, and each request has begun anew
    store("demand", _native.DEMAND_BYTES, 1, "next", 3)
    store("demand", _native.DEMAND_BYTES, 2, "next", 1)
    store("demand", _native.DEMAND_BYTES, 2, "request", 1)
    sent = server.arbiter.stats()["messages"]
    for slot in (first, second):
        store("request", _native.REQUEST_BYTES, slot, "version", 99)
        SubmitRing(segment).send(request_message(slot))
    drained(server, eventually, sent + 2)
    snapshot = server.arbiter.batch_snapshot(client.client_id, batch)
    assert sum(len(r.demands) for r in snapshot.requests) <= 3
