"""The leader's state machine prunes, and tells those whom it concerns."""

from __future__ import annotations

from mfsd.coordinator.state import BatchReport, RequestReport
from tests.unit.coordinator.world import MS, RATE, S, World, heavy


def test_a_pruned_request_is_reported_to_its_daemon_with_the_reason_and_comes_back() -> None:
    world = World("a", "b")
    port = world.port("b/in")
    world.arrive("a", heavy(1, 600 * MS, 500_000_000, port))
    assert world.pruned["a"] == set()
    world.arrive("b", heavy(2, 800 * MS, 400_000_000, port))  # together 900 ms of a port: batch 2 would be late
    assert world.pruned["a"] == {(1, 100)}
    (entry,) = world.cluster.pruned()
    assert (entry.request_id, entry.for_batch, entry.port) == (100, 2, port)
    world.depart("b", 2)
    assert world.pruned["a"] == set()


def test_a_rate_that_comes_after_the_load_counts() -> None:
    world = World("a")
    port = world.port("b/in")
    world.arrive("a", heavy(1, 600 * MS, 500_000_000, port))
    world.arrive("a", heavy(2, 800 * MS, 400_000_000, port))  # together 900 ms of a port of the default rate
    assert world.pruned["a"] == {(1, 100)}
    world.cluster.connect("b", {"b/in": 10 * RATE}, 0)
    world.cluster.synchronise("b", 0)
    world.cluster.tick(0)
    world.tell()
    assert world.pruned["a"] == set(), "the port is ten times as fast as was thought"


def test_a_request_may_be_in_two_batches() -> None:
    """Chunked prefill: the next chunk's batch begins before the last one has ended."""
    world = World("a")
    world.arrive("a", BatchReport(1, "u", 0, [RequestReport(7, S, {0: 10})], {}))
    world.arrive("a", BatchReport(2, "u", 0, [RequestReport(7, 2 * S, {0: 10})], {}))
    world.depart("a", 1)
    assert world.order("a") == [2]
    assert world.cluster.requests_active() == 1


def test_a_request_that_leaves_its_batch_is_not_pruned_any_more() -> None:
    world = World("a", "b")
    port = world.port("b/in")
    world.arrive("a", heavy(1, 600 * MS, 500_000_000, port))
    world.arrive("b", heavy(2, 800 * MS, 400_000_000, port))
    world.update("a", BatchReport(1, "u", 0, [RequestReport(101, 600 * MS, {port: 1000})], {}))
    assert world.pruned["a"] == set()
    assert world.cluster.pruned() == []
