"""What MFS is held against does what it is said to do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bench.sim import policies
from bench.sim.altered_queue import AlteredNetwork
from bench.sim.cluster import Cluster, Config, Request
from bench.sim.engine import Simulation
from bench.sim.host_queue import RmlqNetwork
from bench.sim.network import SharedNetwork
from bench.sim.point import Point, prepare
from bench.sim.policies.dcoflow import DCoflow
from bench.sim.policies.dscp import edges
from bench.sim.states import QUEUED, Batch, Chunk, Flow, State

SMALL = Config(model="dbrx", gpus=128, hot_fraction=0.5, kv_scale=8.0, cache="first-owner")
POINT = Point(config=SMALL, rate=0.2, requests=40, warmup=10)


def simulation(policy: str, **knobs: Any) -> Simulation:
    config = msgspec.structs.replace(SMALL, **knobs)
    return Simulation(*prepare(msgspec.structs.replace(POINT, config=config)), policies.find(policy))


def watched(one: Simulation) -> list[Flow]:
    """Every flow that is posted, once the run has ended."""
    seen: list[Flow] = []
    send = one.network.send
    one.network.send = lambda flow, size: (seen.append(flow), send(flow, size))[1]  # type: ignore[method-assign]
    one.run()
    return seen


@pytest.mark.parametrize(
    ("policy", "used"), [("dscp", {1: {1}, 2: {0}, 3: {2}}), ("dscp-size", {1: {1, 2, 3, 4}, 2: {0}, 3: {5, 6, 7}})]
)
def test_senders_mark_once_and_nothing_waits(policy: str, used: dict[int, set[int]]) -> None:
    one = simulation(policy, fabric_classes=8)
    assert type(one.network) is SharedNetwork, "no host queue, whatever classes there are"
    marks: dict[Flow, set[int]] = {}
    for flow in watched(one):
        marks.setdefault(flow, set()).add(flow.wire_class)
    assert all(len(of_flow) == 1 for of_flow in marks.values())
    assert {stage: {f.wire_class for f in marks if f.stage == stage} for stage in (1, 2, 3)} == used


@pytest.mark.parametrize("policy", ["static", "paper", "mfs"])
def test_all_that_wait_in_the_production_queue_are_held_as_long(policy: str) -> None:
    for most_s in (None, 0.25):
        network = simulation(policy, fabric_classes=8, max_hold_s=most_s).network
        assert isinstance(network, RmlqNetwork)
        assert (None if network.hold is None else network.hold.most_s) == most_s


def test_smaller_transfers_have_the_higher_classes() -> None:
    marked = {}
    for flow in watched(simulation("dscp-size")):
        if flow.stage == 3 and flow.state is not None:
            marked[flow.state.p2d_total] = flow.wire_class
    classes = [marked[size] for size in sorted(marked)]
    assert classes == sorted(classes)
    assert edges([5.0, 1.0, 3.0, 7.0, 0.0], 2) == [5.0] and edges([], 4) == []


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("policy", ["dscp", "dscp-size"])
def test_few_classes_are_not_exceeded(policy: str, classes: int) -> None:
    used = {flow.wire_class for flow in watched(simulation(policy, fabric_classes=classes))}
    assert used == set(range(min(classes, 3) if policy == "dscp" else classes))


def test_dcoflow_never_rejects_a_collective() -> None:
    rejected: list[Flow] = []

    class Watched(DCoflow):
        def tick(self) -> None:
            super().tick()
            rejected.extend(self.rejected)

    cluster, requests = prepare(msgspec.structs.replace(POINT, config=msgspec.structs.replace(SMALL, slo_factor=1.1)))
    Simulation(cluster, requests, Watched).run()
    assert rejected and all(flow.stage != 2 for flow in rejected)


def test_varys_goes_by_what_is_left_of_the_whole_coflow() -> None:
    one = simulation("varys")
    places: dict[Flow, list[int]] = {}
    order = one.policy.order

    def note(flow: Flow) -> int:
        place = order(flow)
        if flow.stage == 3:
            places.setdefault(flow, []).append(place)
        return place

    one.policy.order = note  # type: ignore[method-assign]
    one.run()
    assert places and all(of_flow[-1] < of_flow[0] for of_flow in places.values())


def test_karuna_counts_the_layer_that_is_posted() -> None:
    """The rate that it gets then brings all that is left of the request in time."""
    one = simulation("karuna")
    posted: dict[Flow, float] = {}
    short: list[float] = []
    send = one.network.send

    def note(flow: Flow, size: float) -> None:
        send(flow, size)
        posted[flow] = posted.get(flow, 0.0) + size
        if flow.stage == 3 and flow.state is not None and flow.rate_limit < flow.path.isolated_rate:
            left = flow.state.p2d_total - posted[flow] + one.network.remaining(flow)
            short.append(left - flow.rate_limit * (flow.state.request.deadline_s - one.now))

    one.network.send = note  # type: ignore[method-assign]
    one.run()
    assert short and max(short) < 0


CLUSTER = Cluster(Config(model="dbrx", gpus=128))


def load(number: int, deadline_s: float, size: float) -> Flow:
    """Of a request that queues."""
    request = Request(number, 0.0, 1000, 0, 1, 0, 0, ((0, 0.5), (1, 0.5)), 100, 0.1, deadline_s)
    state = State(request, CLUSTER)
    state.batch = Batch(number + 1, 1, [Chunk(state, 1000, size)], CLUSTER)
    state.batch.step, state.batch.layers = QUEUED, 1
    return Flow(1, CLUSTER.reuse_path(request), state.batch, state, size, number)


def ship(number: int, deadline_s: float, size: float) -> Flow:
    request = Request(number, 0.0, 1000, 0, 0, 0, 0, (), 0, 0.1, deadline_s)
    state = State(request, CLUSTER)
    state.batch = Batch(number + 1, 0, [Chunk(state, 1000, size)], CLUSTER)
    state.p2d = Flow(3, CLUSTER.p2d_path(request), state.batch, state, size, number)
    return state.p2d


def ended(network: AlteredNetwork, flows: list[Flow]) -> list[int]:
    for flow in flows:
        network.send(flow, flow.message_bytes)
    order: list[int] = []
    while network.next() < float("inf"):
        order += [flow.state.request.number for flow in network.advance(network.next()) if flow.state is not None]
    return order


def queue_of(policy: str, flows: list[Flow]) -> AlteredNetwork:
    config = msgspec.structs.replace(CLUSTER.config, fabric_classes=8)
    cluster = Cluster(config)
    requests = [flow.state.request for flow in flows if flow.state is not None]
    network = Simulation(cluster, sorted(requests, key=lambda r: r.number), policies.find(policy)).network
    assert isinstance(network, AlteredNetwork)
    return network


def test_static_in_the_production_queue_knows_no_sizes_and_loses_no_transfer() -> None:
    loads = [load(0, 9.0, 3e7), load(1, 8.0, 3e8), load(2, 7.0, 1e8)]
    assert ended(queue_of("static", loads), loads) == [0, 1, 2], "in the order in which they were asked for"
    ships = [ship(0, 9.0, 1e8), ship(1, 2.0, 1e8), ship(2, 1.0, 6e10)]
    assert ended(queue_of("static", ships), ships) == [2, 1, 0], "the one that cannot make it is still the first due"


def test_paper_ranks_queued_loads_by_deadline_as_batches_of_one() -> None:
    loads = [load(0, 9.0, 3e7), load(1, 8.0, 9e7), load(2, 7.0, 2e8)]
    assert ended(queue_of("paper", loads), loads) == [0, 2, 1]
    exact = simulation("paper")
    waiting = [f for f in watched(exact) if f.stage == 1 and f.state is not None]
    assert waiting
    for flow in waiting:
        flow.batch.step = QUEUED
    by_place = sorted(waiting, key=exact.policy.order)
    deadlines = [flow.state.request.deadline_s for flow in by_place if flow.state is not None]
    assert deadlines == sorted(deadlines)


def test_static_exact_has_exact_order_on_any_fabric() -> None:
    few, exact = simulation("static-exact", fabric_classes=2), simulation("static")
    few.run()
    exact.run()
    assert [s.finish_s for s in few.states] == [s.finish_s for s in exact.states]
