"""The leader's state machine has one answer to every bad input."""

from __future__ import annotations

import math

import pytest

from mfsd.coordinator import messages
from mfsd.coordinator.cluster import LATE_TICK_NS, REFUSALS_MAX, RESOURCES_MIN
from mfsd.coordinator.ports import MOVED_MAX, Use
from mfsd.coordinator.state import BatchReport, RequestReport
from mfsd.policy.config import PolicyConfig
from mfsd.proto import mfs_pb2 as pb
from mfsd.proto.wire import (
    BATCHES_PER_NODE_MAX,
    DEMANDS_PER_NODE_MAX,
    REQUESTS_PER_BATCH_MAX,
    REQUESTS_PER_NODE_MAX,
)
from tests.unit.coordinator.world import GRACE_NS, S, World, batch, heavy


def test_a_duplicate_arrival_is_an_update() -> None:
    world = World("a")
    world.arrive("a", batch(1, 5 * S))
    world.arrive("a", batch(1, 1 * S))
    assert world.keys["a"] == {1: S}
    assert world.cluster.oddities["duplicate arrival: taken as update"] == 1


def test_an_update_of_an_unknown_batch_is_an_arrival() -> None:
    world = World("a")
    world.update("a", batch(1, S))
    assert world.order("a") == [1]
    assert world.cluster.oddities["update of an unknown batch: taken as arrival"] == 1


def test_a_departure_before_the_arrival_is_ignored() -> None:
    world = World("a")
    world.depart("a", 1)
    world.arrive("a", batch(1, S))
    assert world.order("a") == [1]
    assert world.cluster.oddities["departure of an unknown batch: ignored"] == 1


def test_a_departure_of_another_nodes_batch_is_ignored() -> None:
    world = World("a", "b")
    world.arrive("a", batch(1, S))
    world.depart("b", 1)
    assert list(world.cluster.batches) == [1]


@pytest.mark.parametrize("rho", [math.nan, math.inf, -math.inf, -0.1])
def test_a_load_that_is_none_changes_nothing(rho: float) -> None:
    world = World("a")
    port = world.port("a/in")
    world.cluster.load(port, 0.5)
    world.cluster.load(port, rho)
    assert world.cluster.ports.ports[port].rho == 0.5
    assert sum(world.cluster.oddities.values()) == 1


def test_a_batch_of_100_000_requests_is_refused_and_its_daemon_reported() -> None:
    world = World("a")
    world.arrive("a", batch(1, *[S] * 100_000))
    assert not world.cluster.batches
    assert world.refused["a"][1] == f"the batch has 100000 requests, the limit is {REQUESTS_PER_BATCH_MAX}"


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (
            BatchReport(1, "u", 0, [], {}),
            "the batch has no requests: report at least one, or report that the batch has departed",
        ),
        (
            BatchReport(1, "u", 0, [RequestReport(5, S, {}), RequestReport(5, S, {})], {}),
            "the batch has the same request twice",
        ),
    ],
)
def test_a_refused_update_leaves_the_batch_as_it_was(report: BatchReport, reason: str) -> None:
    world = World("a")
    world.arrive("a", batch(1, S))
    world.update("a", report)
    assert world.keys["a"] == {1: S}
    assert world.refused["a"] == {1: reason}
    world.depart("a", 1)
    assert not world.cluster.batches


def test_the_clock_may_jump_back() -> None:
    world = World("a")
    world.arrive("a", batch(1, 2 * S), now_ns=100 * S)
    world.arrive("a", batch(2, 1 * S), now_ns=5 * S)
    assert world.keys["a"] == {1: 102 * S, 2: 101 * S}


def test_a_clock_that_jumps_ahead_takes_no_batch_away() -> None:
    """The coordinator was stopped: daemons could not come back meanwhile."""
    world = World("a")
    world.arrive("a", batch(1, S))
    world.cluster.tick(0)
    world.cluster.disconnect("a", 0)
    world.cluster.tick(3600 * S)
    assert list(world.cluster.batches) == [1]
    at_ns = 3600 * S
    while world.cluster.batches:
        at_ns += LATE_TICK_NS // 2
        world.cluster.tick(at_ns)
    assert 3600 * S + GRACE_NS <= at_ns <= 3600 * S + GRACE_NS + LATE_TICK_NS


def test_amounts_beyond_reason_overflow_nothing() -> None:
    world = World("a")
    port = world.port("a/out")
    for number in range(1, 40):
        requests = [RequestReport(i, 2**62, {port: 2**64 - 1}) for i in range(64)]
        world.arrive("a", BatchReport(number, "u", 2**64 - 1, requests, {port: 2**64 - 1}))
    assert len(world.cluster.batches) == 39


def test_more_than_a_core_can_count_is_refused_and_changes_nothing() -> None:
    """Ten thousand seconds on one port for each of very many requests."""
    nodes = [f"a{i}" for i in range(7)]
    world = World(*nodes, "b")
    port = world.port("a0/out")
    requests = [RequestReport(i, S, {port: 2**64 - 1}) for i in range(REQUESTS_PER_BATCH_MAX)]
    for number in range(1, 20):
        world.arrive(nodes[number // 3], BatchReport(number, "u", 0, requests, {}))
    assert 1 < len(world.cluster.batches) < 19
    refused = {number: reason for node in nodes for number, reason in world.refused.get(node, {}).items()}
    assert set(refused) == set(range(1, 20)) - set(world.cluster.batches)
    assert all("would be promised on one resource" in reason for reason in refused.values())
    last = max(world.cluster.batches)
    world.arrive("b", BatchReport(last, "u", 0, requests, {}))
    assert set(world.cluster.batches[last].reported) == {nodes[last // 3]}
    for number in range(1, 20):
        world.depart(nodes[number // 3], number)
    assert not world.cluster.batches
    assert world.cluster.requests_active() == 0


def test_a_daemon_that_floods_is_refused_and_harms_no_other() -> None:
    world = World("wild", "b")
    world.arrive("b", batch(1, S))
    world.cluster.hold()
    for number in range(2, BATCHES_PER_NODE_MAX + 4):
        world.cluster.arrive("wild", batch(number, S), 0)
    world.cluster.release(0)
    world.tell()
    assert len(world.cluster.nodes["wild"].batches) == BATCHES_PER_NODE_MAX
    assert set(world.refused["wild"]) == {BATCHES_PER_NODE_MAX + 2, BATCHES_PER_NODE_MAX + 3}
    assert world.refused["wild"][BATCHES_PER_NODE_MAX + 2] == (
        f"node wild would have {BATCHES_PER_NODE_MAX + 1} batches in the order, the limit is {BATCHES_PER_NODE_MAX}: "
        "let some depart first"
    )
    world.update("wild", batch(2, 2 * S))  # what it has, it may still tell of
    assert world.cluster.batches[2].key_ns == 2 * S
    world.arrive("b", batch(2**40, S))
    assert world.order("b") == [1, 2**40]
    world.depart("wild", 2)
    world.update("wild", batch(BATCHES_PER_NODE_MAX + 2, S))
    assert BATCHES_PER_NODE_MAX + 2 in world.cluster.batches


@pytest.mark.parametrize(("requests", "demands", "what"), [(8192, 0, "requests"), (64, 8192, "demands")])
def test_what_a_daemon_may_have_in_the_order_is_bounded(requests: int, demands: int, what: str) -> None:
    world = World("wild")
    ports = {world.port(f"x{i}"): 1 for i in range(demands)}
    most = {"requests": REQUESTS_PER_NODE_MAX, "demands": DEMANDS_PER_NODE_MAX}[what]
    fit = most // (requests * max(1, demands))
    world.cluster.hold()
    for number in range(1, fit + 2):
        rows = [RequestReport(i, S, ports) for i in range(requests)]
        world.cluster.arrive("wild", BatchReport(number, "u", 0, rows, {}), 0)
    world.cluster.release(0)
    world.tell()
    assert len(world.cluster.batches) == fit
    assert f"{what} in the order, the limit is {most}" in world.refused["wild"][fit + 1]
    world.depart("wild", 1)
    world.update("wild", BatchReport(fit + 1, "u", 0, rows, {}))
    assert fit + 1 in world.cluster.batches
    for number in range(2, fit + 2):
        world.depart("wild", number)
    node = world.cluster.nodes["wild"]
    assert (node.requests, node.demands) == (0, 0)


def test_the_cluster_has_room_for_so_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mfsd.coordinator.state.BATCHES_PER_CLUSTER_MAX", 2)
    world = World("a", "b")
    for number in (1, 2):
        world.arrive("a", batch(number, S))
    world.arrive("b", batch(3, S))
    assert world.refused["b"] == {3: "the cluster has 2 batches, which is the limit of one coordinator"}
    world.arrive("b", batch(2, S))  # a node's part of a batch that is there
    assert set(world.cluster.batches[2].reported) == {"a", "b"}


def test_refusals_that_are_not_read_are_bounded() -> None:
    world = World("a")
    for number in range(REFUSALS_MAX + 5):
        world.cluster.arrive("a", BatchReport(number, "u", 0, [], {}), 0)
    world.tell()
    assert set(world.refused["a"]) == set(range(5, REFUSALS_MAX + 5))


def test_what_is_held_is_planned_together() -> None:
    """Before the release no node is sent a decision; after it all is as if reported one after the other."""
    held, one_by_one = (
        World("a", policy=PolicyConfig(drop_budget=0.5)),
        World("a", policy=PolicyConfig(drop_budget=0.5)),
    )
    port = held.port("a/in")
    assert port == one_by_one.port("a/in")
    held.cluster.hold()
    for world in (held, one_by_one):
        for number in range(1, 6):
            world.arrive("a", heavy(number, number * S, S, port))
        world.update("a", heavy(2, 3 * S, 2 * S, port))
        world.depart("a", 4)
    assert held.order("a") == one_by_one.order("a")
    assert not held.pruned["a"]
    held.cluster.release(0)
    held.tell()
    assert held.pruned["a"]
    assert held.cluster.requests_active() == one_by_one.cluster.requests_active()
    held.depart("a", 1)
    for number in (2, 3, 5):
        held.depart("a", number)
    assert not held.cluster.pruned()
    assert held.cluster.requests_active() == 0


def test_more_ports_than_expected_get_room() -> None:
    world = World("a")
    for number in range(1, 40):
        world.arrive("a", batch(number, number * S))
    ports = {world.port(f"x{i}/in"): 1000 for i in range(3 * RESOURCES_MIN)}
    world.arrive("a", BatchReport(99, "u", 0, [RequestReport(1, 5, ports)], {}))
    assert world.order("a") == [99, *range(1, 40)]


def test_absurd_sizes_and_rates_are_shown_cut() -> None:
    world, reply = World("a"), pb.StatusReply()
    world.cluster.connect("a", {"a/in": 2**64 - 1, "a/out": 2**64 - 1}, 0)
    sizes = {world.port("a/in"): 2**64 - 1, world.port("a/out"): 2**64 - 1}
    world.arrive("a", BatchReport(1, "u", 0, [RequestReport(1, S, sizes)], {}))
    world.cluster.used(world.port("a/out"), Use((messages.PERMILLE_MAX,), messages.PERMILLE_MAX, messages.PERMILLE_MAX))
    world.cluster.remember(0)
    messages.fill_requests(reply, world.cluster, 1)
    messages.fill_history(reply, world.cluster.past, 1, 0)
    assert reply.requests[0].size_bytes == messages.SIZE_MAX
    assert reply.history.intervals[0].bytes_per_s[0] == MOVED_MAX
