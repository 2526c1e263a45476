"""When the leader evaluates its state without any event: only where time alone changes something."""

from __future__ import annotations

import asyncio

from mfsd.coordinator.cluster import TICK_NS
from mfsd.coordinator.election import Alone
from mfsd.coordinator.service import Service
from mfsd.coordinator.settings import Settings
from tests.support.cluster import Lines, in_loop, until
from tests.unit.coordinator.world import GRACE_NS, MS, RATE, S, World, batch, heavy


def run_ticks(world: World, until_ns: int) -> int:
    """Ticks that are due by then, each at its time; how many they were."""
    count = 0
    while (due_ns := world.cluster.due_ns()) is not None and due_ns <= until_ns:
        world.cluster.tick(due_ns)
        world.tell()
        count += 1
    return count


def test_a_cluster_without_batches_needs_none() -> None:
    world = World("a", "b")
    assert world.cluster.due_ns() is None
    world.arrive("a", batch(1, S))
    assert world.cluster.due_ns() is not None
    world.depart("a", 1)
    assert world.cluster.due_ns() is None


def test_time_alone_makes_a_request_late() -> None:
    world = World("a")
    world.arrive("a", heavy(1, 600 * MS, 500_000_000, world.port("b/in")))  # 500 ms of the port
    assert not world.infeasible["a"] and not world.pruned["a"]
    run_ticks(world, S)
    assert (1, 100) in world.infeasible["a"]


def test_events_make_ticks_needless() -> None:
    world = World("a")
    world.arrive("a", batch(1, S))
    for at_ns in range(0, 10 * S, TICK_NS // 2):
        assert run_ticks(world, at_ns) == 0
        world.cluster.hold()
        world.cluster.update("a", batch(1, S), at_ns)
        world.cluster.release(at_ns)


def test_a_grace_that_begins_after_a_long_rest_is_not_prolonged() -> None:
    """The time without ticks is none in which the coordinator was stopped."""
    world = World("a")
    world.cluster.tick(0)
    world.cluster.disconnect("a", 3600 * S)
    run_ticks(world, 3600 * S + GRACE_NS - 1)
    assert set(world.cluster.nodes) == {"a"}
    run_ticks(world, 3600 * S + GRACE_NS)
    assert not world.cluster.nodes
    assert world.cluster.due_ns() is None


def test_a_grace_ends_when_its_daemon_is_back() -> None:
    world = World("a")
    world.cluster.disconnect("a", 0)
    world.join("a", S)
    assert world.cluster.due_ns() is None
    assert set(world.cluster.nodes) == {"a"}


def test_a_grace_goes_on_after_a_stop_no_longer_than_it_is() -> None:
    """One daemon was lost before the coordinator was stopped, the other is found lost when it goes on."""
    world = World("a", "b")
    world.cluster.disconnect("a", 0)
    world.cluster.disconnect("b", 3600 * S)
    run_ticks(world, 3600 * S + GRACE_NS + TICK_NS)
    assert not world.cluster.nodes


def test_a_rate_that_comes_later_is_due_at_once() -> None:
    world = World("a")
    port = world.port("b/in")
    world.arrive("a", heavy(1, 600 * MS, 500_000_000, port))
    world.arrive("a", heavy(2, 800 * MS, 400_000_000, port))
    assert world.pruned["a"] == {(1, 100)}
    world.cluster.connect("b", {"b/in": 10 * RATE}, 0)
    assert run_ticks(world, TICK_NS) > 0
    assert world.pruned["a"] == set()


@in_loop
async def test_the_service_ticks_only_while_it_is_due() -> None:
    settings = Settings(listen="127.0.0.1:0", advertise="127.0.0.1:1", version="test", grace_ns=2 * TICK_NS)
    now_ns = S
    service = Service(settings, Alone("127.0.0.1:1"), Lines(), clock_ns=lambda: now_ns)
    tasks = [asyncio.create_task(service.tick()), asyncio.create_task(Alone("x:1").run(service.role_changed))]
    await until(lambda: service.cluster is not None, "the lead")
    cluster = service.cluster
    assert cluster is not None
    cluster.connect("a", {}, now_ns)
    service._ticks_wanted.set()
    await until(lambda: not service._ticks_wanted.is_set(), "it checks whether a tick is due")
    now_ns += 3600 * S
    assert service.seen(0).uptime_ns == 3600 * S
    assert cluster.now_ns == now_ns, "a query is answered as of now"
    cluster.disconnect("a", now_ns)
    service._ticks_wanted.set()

    def passes() -> bool:
        nonlocal now_ns
        now_ns += TICK_NS // 100
        return not cluster.nodes

    await until(passes, "the grace ends")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
