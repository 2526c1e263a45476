"""After any sequence of events daemons know what the reference plans afresh."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from mfsd.coordinator.cluster import RESOURCES_MIN
from mfsd.coordinator.state import BatchReport, RequestReport
from mfsd.policy.config import PolicyConfig
from tests.support.reference_core import ReferencePlanner
from tests.unit.coordinator.world import MS, World


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_deltas_add_up_to_the_state(seed: int) -> None:
    draw = random.Random(seed)
    names = ("a", "b", "c")
    world = World(*names)
    ports = [world.port(f"{n}/{d}") for n in names for d in ("in", "out")]
    at_ns = 0
    for _ in range(60):
        at_ns += draw.randrange(50 * MS)
        node = draw.choice(names)
        if not world.cluster.nodes[node].connected:
            world.cluster.connect(node, {}, at_ns)
            world.cluster.synchronise(node, at_ns)
            world.tell()
        number = draw.randrange(1, 9)
        kind = draw.random()
        if kind < 0.6:
            requests = [
                RequestReport(i, draw.randrange(-50, 900) * MS, {draw.choice(ports): draw.randrange(300_000_000)})
                for i in draw.sample(range(6), draw.randint(1, 4))
            ]
            world.arrive(node, BatchReport(number, "u", draw.randrange(20 * MS), requests, {}), at_ns)
        elif kind < 0.9:
            world.cluster.depart(node, number, at_ns)
            world.keys[node].pop(number, None)
            world.pruned[node] = {p for p in world.pruned[node] if p[0] != number}
            world.infeasible[node] = {p for p in world.infeasible[node] if p[0] != number}
            world.tell()
        else:
            world.cluster.disconnect(node, at_ns)
    for name in names:
        if not world.cluster.nodes[name].connected:
            world.cluster.connect(name, {}, at_ns)
            for batch_id in list(world.cluster.nodes[name].batches):
                reported = world.cluster.batches[batch_id].reported[name]
                requests = [RequestReport(r, d and d - at_ns, p) for r, (d, p) in reported.requests.items()]
                world.cluster.arrive(name, BatchReport(batch_id, "u", reported.compute_ns, requests, {}), at_ns)
            world.cluster.synchronise(name, at_ns)
            world.tell()
    for name in names:
        own = {b: a for b, a in world.cluster.batches.items() if name in a.reported}
        assert world.keys[name] == {b: a.key_ns for b, a in own.items()}
        pruned = {(e.batch_id, e.request_id) for e in world.cluster.pruned() if e.batch_id in own}
        assert world.pruned[name] == pruned
        assert world.infeasible[name] == {entry for entry in world.cluster.infeasible() if entry[0] in own}


def test_the_native_core_and_the_reference_change_the_same() -> None:
    draw = random.Random(3)
    config = PolicyConfig(drop_budget=0.3)
    worlds = []
    for native in (True, False):
        world = World("a", policy=config)
        if not native:
            world.cluster.planner = ReferencePlanner(config, RESOURCES_MIN)
        worlds.append(world)
    for step in range(400):
        number = draw.randrange(1, 20)
        ports = [draw.randrange(2) for _ in range(3)]
        report = BatchReport(
            number,
            "u",
            draw.randrange(20 * MS),
            [
                RequestReport(i, draw.randrange(900) * MS, {p: draw.randrange(300_000_000)}, draw.random() < 0.1)
                for i, p in enumerate(ports)
            ],
            {},
        )
        arrives = draw.random() < 0.6
        for world in worlds:
            if arrives:
                world.arrive("a", report, step * MS)
            else:
                world.depart("a", number, step * MS)
        assert worlds[0].cluster.pruned() == worlds[1].cluster.pruned()
        assert worlds[0].cluster.infeasible() == worlds[1].cluster.infeasible()
        assert worlds[0].keys == worlds[1].keys
        due_ns = draw.randrange(900 + step) * MS
        for port in range(2):
            assert worlds[0].cluster.owed_ns(port) == worlds[1].cluster.owed_ns(port)
            assert worlds[0].cluster.owed_before_ns(port, due_ns) == worlds[1].cluster.owed_before_ns(port, due_ns)
    assert any(world.cluster.pruned() for world in worlds)
