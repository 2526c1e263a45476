"""Requests that still queue at engines: what is owed for them, who is told, and what relegated ones spend."""

from __future__ import annotations

import random

from mfsd.coordinator.promises import PromisesOf
from mfsd.coordinator.state import RELEGATED, BatchReport, RequestReport
from mfsd.coordinator.waiting import WaitingReport, WaitingRequests
from mfsd.policy.config import PolicyConfig
from mfsd.proto.wire import WAITING_PER_NODE_MAX
from tests.unit.coordinator.world import RATE, World

S = 10**9


def waiting(
    request: int, size: int, port: int = 0, *, due_ns: int | None = None, rank: int = 0, **more: bool
) -> WaitingReport:
    return WaitingReport(request, due_ns, rank, 1, more.get("relegated", False), {port: size})


def test_the_sum_is_of_what_is_there_whatever_came_and_went() -> None:
    draw, found = random.Random(2), WaitingRequests()
    there: dict[tuple[str, int], dict[int, int]] = {}
    for _ in range(2000):
        node, request = draw.choice("ab"), draw.randrange(10)
        kind = draw.random()
        if kind < 0.6:
            demands = {draw.randrange(3): draw.randrange(1, 100) for _ in range(draw.randrange(3))}
            assert found.put(node, WaitingReport(request, None, 0, 1, False, demands), 0)
            there[node, request] = demands
        elif kind < 0.9:
            found.remove(node, request)
            there.pop((node, request), None)
        elif kind < 0.95:
            found.forget(node)
            there = {key: demands for key, demands in there.items() if key[0] != node}
        else:  # a reconnection that names only some
            found.connect(node)
            kept = {key: demands for key, demands in there.items() if key[0] == node and draw.random() < 0.5}
            for (_, named), demands in kept.items():
                found.put(node, WaitingReport(named, None, 0, 1, False, demands), 0)
            found.synchronise(node)
            there = {key: demands for key, demands in there.items() if key[0] != node} | kept
        assert len(found) == len(there)
        for port in range(3):
            assert found.size_bytes(port) == sum(demands.get(port, 0) for demands in there.values())


def test_a_node_that_has_gone_wild_fills_its_own_part() -> None:
    found = WaitingRequests()
    for request in range(WAITING_PER_NODE_MAX):
        assert found.put("a", waiting(request, 1), 0)
    assert not found.put("a", waiting(WAITING_PER_NODE_MAX, 1), 0)
    assert found.put("a", waiting(5, 2), 0) and found.put("b", waiting(5, 1), 0)
    assert found.size_bytes(0) == WAITING_PER_NODE_MAX + 2


def test_promises_are_told_when_they_have_moved_by_much() -> None:
    world = World("a", "b")
    port, stream = world.port("b/out"), PromisesOf()
    stream.name(port, 7)

    def reported() -> list[tuple[int, int, int]]:
        cluster = world.cluster
        touched, cluster.touched = cluster.touched | cluster.waiting.touched, set()
        cluster.waiting.touched = set()
        message = stream.take(cluster, touched, 4)
        rows = message.promises if message is not None else None
        return list(zip(rows.port, rows.owed_ns, rows.rate_bytes_per_s, strict=True)) if rows is not None else []

    assert reported() == [(7, 0, RATE)]
    assert reported() == []
    world.cluster.waits("a", waiting(1, RATE, port), 0)
    assert reported() == [(7, S, RATE)]
    world.cluster.waits("a", waiting(2, RATE // 10, port), 0)
    assert reported() == []  # by a tenth
    world.cluster.waits("b", waiting(3, RATE // 10, port), 0)
    assert reported() == [(7, S + S // 5, RATE)]
    world.arrive("a", BatchReport(1, "u", 0, [RequestReport(9, 60 * S, {port: RATE})], {}))
    assert reported() == [(7, 2 * S + S // 5, RATE)]
    world.depart("a", 1)
    world.cluster.waiting.forget("a")
    world.cluster.waiting.forget("b")
    assert reported() == [(7, 0, RATE)]


def test_relegated_requests_are_pruned_and_spend_the_drop_budget() -> None:
    world = World("a", policy=PolicyConfig(drop_budget=0.5))
    port = world.port("a/out")
    requests = [
        RequestReport(1, 60 * S, {port: RATE}, relegated=True),
        RequestReport(2, 60 * S, {port: RATE}),
        RequestReport(3, 60 * S, {port: RATE}),
        RequestReport(4, 60 * S, {port: RATE}),
    ]
    world.arrive("a", BatchReport(1, "u", 0, requests, {}))
    world.update("a", BatchReport(1, "u", 0, requests, {}))  # from the next event on
    assert world.pruned["a"] == {(1, 1)} and [e.port for e in world.cluster.pruned()] == [RELEGATED]
    assert world.cluster.planner.drop_budget() == 1  # of two
    assert world.cluster.owed_ns(port) == 3 * S
    world.cluster.waits("a", waiting(5, RATE, port, relegated=True), 0)
    world.update("a", BatchReport(1, "u", 0, requests, {}))
    assert world.cluster.planner.drop_budget() == 0
    assert world.cluster.owed_ns(port) == 3 * S  # it delays no other
    world.cluster.waits_no_more("a", 5)
    world.update("a", BatchReport(1, "u", 0, [r._replace(relegated=False) for r in requests], {}))
    assert world.pruned["a"] == set() and world.cluster.owed_ns(port) == 4 * S
    world.depart("a", 1)
    assert world.cluster.pruned() == []


def test_a_relegated_request_that_leaves_its_batch_is_told_to_be_pruned_no_more() -> None:
    world = World("a")
    requests = [RequestReport(1, 60 * S, {}, relegated=True), RequestReport(2, 60 * S, {})]
    world.arrive("a", BatchReport(1, "u", 0, requests, {}))
    assert world.pruned["a"] == {(1, 1)}
    world.update("a", BatchReport(1, "u", 0, requests[1:], {}))
    assert world.cluster.pruned() == [] and world.pruned["a"] == set()


def test_who_joins_a_batch_later_is_told_which_requests_are_relegated() -> None:
    world = World("a", "b")
    world.arrive("a", BatchReport(1, "u", 0, [RequestReport(1, 60 * S, {}, relegated=True)], {}))
    world.arrive("b", BatchReport(1, "u", 0, [RequestReport(1, 60 * S, {})], {}))
    assert world.pruned["a"] == world.pruned["b"] == {(1, 1)}


def test_what_is_owed_has_changed_when_time_alone_makes_a_request_infeasible() -> None:
    world = World("a")
    port = world.port("a/out")
    world.arrive("a", BatchReport(1, "u", 0, [RequestReport(1, 2 * S, {port: RATE})], {}))
    assert world.cluster.owed_ns(port) == S
    world.cluster.touched.clear()
    world.cluster.tick(3 * S)
    assert world.cluster.infeasible() == [(1, 1)]
    assert world.cluster.owed_ns(port) == 0 and world.cluster.touched == {port}
