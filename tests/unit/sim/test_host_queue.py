"""The production host queue before the simulated fabric, and what stands in for it under other policies."""

from __future__ import annotations

from typing import Any

import pytest

from bench.sim.cluster import Cluster, Config, ConfigError, Request
from bench.sim.hold import Hold
from bench.sim.host_queue import NS, RmlqNetwork
from bench.sim.network import HostQueuedNetwork
from bench.sim.states import QUEUED, Batch, Chunk, Flow, State
from mfsd.policy import PolicyConfig

CLUSTER = Cluster(Config(model="dbrx", gpus=128))
SIZE = 25e6  # a millisecond of one NIC, for the whole message over two


def state(number: int, deadline_s: float, unit: int = 0) -> State:
    request = Request(number, 0.0, 1000, 0, unit, 0, 0, ((40, 0.5), (41, 0.5)), 100, 0.1, deadline_s)
    return State(request, CLUSTER)


def flows(one: State, serial: int) -> tuple[Flow, Flow]:
    """A request's stage 3, and a stage 1 that leaves from the same NIC for another unit."""
    batch = Batch(serial, 0, [Chunk(one, 1000, SIZE)], CLUSTER)
    one.batch = batch
    one.p2d = Flow(3, CLUSTER.p2d_path(one.request), batch, one, SIZE, serial * 10)
    away = Request(90 + serial, 0.0, 1000, 0, 1, 0, 0, ((0, 0.5), (1, 0.5)), 100, 0.1, 1.0)
    other = State(away, CLUSTER)
    other.batch = Batch(serial + 50, 1, [Chunk(other, 1000, SIZE)], CLUSTER)
    other.batch.layers = 1
    return one.p2d, Flow(1, CLUSTER.reuse_path(away), other.batch, other, SIZE, serial * 10 + 1)


def finish_order(network: RmlqNetwork | HostQueuedNetwork) -> list[Flow]:
    order: list[Flow] = []
    while network.next() < float("inf"):
        order += network.advance(network.next())
    return order


def test_the_native_queue_sends_reuse_before_p2d_and_p2d_by_deadline() -> None:
    network = RmlqNetwork(CLUSTER.topology, PolicyConfig(), window_messages=0.001)
    late, _ = flows(state(1, 9.0), 1)
    soon, reuse = flows(state(2, 5.0), 2)
    blocker, _ = flows(state(3, 1.0), 3)
    for flow in (blocker, late, soon, reuse):
        network.send(flow, SIZE)
    assert finish_order(network) == [blocker, reuse, soon, late]
    assert network.fluid.now == pytest.approx(4 * SIZE / 2 / 25e9), "the NIC was never idle"


def test_as_many_messages_wait_as_a_slow_nic_has() -> None:
    """At 12.5 Gbit/s the KV of long prompts is more than 65,536 messages of a millisecond."""
    network = RmlqNetwork(CLUSTER.topology, PolicyConfig())
    flow, _ = flows(state(1, 9.0), 1)
    network.send(flow, 70_000 * network.message_bytes)
    assert network.messages[flow] == 70_000


def test_reuse_waits_with_all_its_layers_and_they_count_in_order() -> None:
    network = RmlqNetwork(CLUSTER.topology, PolicyConfig(), window_messages=0.001)
    _, many = flows(state(1, 9.0), 1)
    _, few = flows(state(2, 5.0), 2)
    blocker, _ = flows(state(3, 1.0), 3)
    many.batch.layers, few.batch.layers = 4, 2
    for flow in (many, few):
        flow.batch.policy = 0
        assert flow.state is not None
        flow.state.reuse = flow
        network.announce_batch(flow.batch, rank=0, deadline_ns=NS, compute_left_ns=0, layers=flow.batch.layers)
    network.send(blocker, SIZE)
    for flow in (many, few):
        network.send(flow, SIZE)
        network.send(flow, SIZE)  # the engine's word for the next layer: it waits already
    assert finish_order(network) == [blocker, few, many, few, many, many, many], "by layer, then by all that waits"


def test_a_load_that_comes_too_late_lets_a_larger_one_pass() -> None:
    needed = {1: 1, 2: 0}
    network = RmlqNetwork(
        CLUSTER.topology, PolicyConfig(), window_messages=0.001, needed_ns=lambda flow: needed[flow.batch.serial - 50]
    )
    _, late = flows(state(1, 9.0), 1)
    _, other = flows(state(2, 9.0), 2)
    blocker, _ = flows(state(3, 1.0), 3)
    late.batch.step = other.batch.step = QUEUED
    for flow, size in ((blocker, SIZE), (late, SIZE), (other, 2 * SIZE)):
        network.send(flow, size)
    assert finish_order(network) == [blocker, other, late]


def test_what_is_large_is_cut_and_lets_others_pass() -> None:
    network = RmlqNetwork(CLUSTER.topology, PolicyConfig(), window_messages=0.001)
    late, _ = flows(state(1, 9.0), 1)
    soon, reuse = flows(state(2, 5.0), 2)
    network.send(late, 3 * SIZE)
    for flow in (soon, reuse):
        network.send(flow, 2 * SIZE)
    assert network.remaining(late) == pytest.approx(3 * SIZE)
    assert finish_order(network) == [reuse, soon, late]
    assert network.fluid.now == pytest.approx(7 * SIZE / 2 / 25e9), "the NIC was never idle"


def test_a_request_that_runs_out_of_slack_passes_reuse() -> None:
    config = PolicyConfig(critical_laxity_share=0.5, promotion_interval_ns=10_000)
    network = RmlqNetwork(CLUSTER.topology, config, window_messages=0.001)
    urgent = state(1, 1.8e-3)
    p2d, reuse = flows(urgent, 1)
    blocker, _ = flows(state(3, 1.0), 3)
    network.send(blocker, SIZE)
    network.announce_request(urgent, SIZE, SIZE)
    network.send(reuse, SIZE)
    network.send(p2d, SIZE)
    assert finish_order(network) == [blocker, p2d, reuse]


def test_pruned_requests_go_last() -> None:
    network = RmlqNetwork(CLUSTER.topology, PolicyConfig(), window_messages=0.001)
    first, second, blocker = state(1, 5.0), state(2, 9.0), state(3, 1.0)
    one, two, three = flows(first, 1)[0], flows(second, 2)[0], flows(blocker, 3)[0]
    first.pruned = True
    network.prune(first)
    for flow in (three, one, two):
        network.send(flow, SIZE)
    assert finish_order(network) == [three, two, one]


def test_messages_of_a_stream_are_reported_once_when_all_have_arrived() -> None:
    network = RmlqNetwork(CLUSTER.topology, PolicyConfig(), window_messages=2)
    stream, _ = flows(state(1, 9.0), 1)
    for _ in range(5):
        network.send(stream, SIZE)
    assert network.remaining(stream) == pytest.approx(5 * SIZE)
    assert finish_order(network) == [stream]
    assert network.remaining(stream) == 0


def test_other_policies_wait_at_the_sender_in_exact_order() -> None:
    network = HostQueuedNetwork(CLUSTER.topology)
    streams = [flows(state(n, 9.0), n)[0] for n in (1, 2, 3)]
    for flow, order in zip(streams, (30, 20, 10), strict=True):
        flow.order = order
        network.send(flow, SIZE)
    # The later, better ones took the place of the first at once; it keeps what it had sent.
    assert finish_order(network) == [streams[2], streams[1], streams[0]]
    assert network.fluid.now == pytest.approx(3 * SIZE / 2 / 25e9)
    assert int(NS * network.fluid.now) > 0


def test_what_has_stood_still_for_its_budget_goes_without_permits_behind_what_is_scheduled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A NIC's window is full of one flow's messages for two milliseconds; the other may wait for half of one."""
    network = RmlqNetwork(CLUSTER.topology, PolicyConfig(), hold=Hold(0.0005))
    post, classes = network._post, set()

    def seen(cookie: int, wire_class: int, passage: Any) -> None:
        if passage is None:
            classes.add(wire_class)
        post(cookie, wire_class, passage)

    monkeypatch.setattr(network, "_post", seen)
    soon, _ = flows(state(1, 1.0), 1)
    late, _ = flows(state(2, 9.0), 2)
    network.send(soon, 4 * SIZE)
    network.send(late, 2 * SIZE)
    waiting = [what[0] for what in network.waiting.values()]
    assert late in waiting
    while network.fluid.now < 0.0005 - 1e-9:
        network.advance(min(network.next(), 0.0005))
    assert late not in [what[0] for what in network.waiting.values()], "all of it goes"
    assert classes == {6}
    network.send(late, SIZE)
    assert late not in [what[0] for what in network.waiting.values()], "its budget is spent"
    done = finish_order(network)
    assert set(done) == {soon, late} and not network.posted and not network.messages


def test_a_flow_that_is_served_now_and_then_spends_no_budget_while_it_is_under_way() -> None:
    network = RmlqNetwork(CLUSTER.topology, PolicyConfig(), hold=Hold(0.0005))
    alone, _ = flows(state(1, 1.0), 1)
    network.send(alone, 40 * SIZE)
    assert finish_order(network) == [alone] and network.fluid.now > 0.01
    assert network.hold is not None and not network.hold.spent(alone)


@pytest.mark.parametrize("reads", [False, True])
def test_reuse_waits_at_its_owner_or_with_reads_where_it_goes(reads: bool) -> None:
    """Both loads leave NIC 40 for NICs of their own; the window is full with one message."""
    network = RmlqNetwork(CLUSTER.topology, PolicyConfig(), window_messages=0.001, reads=reads)
    loads = []
    for unit in (0, 1):
        request = Request(90 + unit, 0.0, 1000, 0, unit, 0, 0, ((40, 0.5), (41, 0.5)), 100, 0.1, 1.0 + unit)
        batch = Batch(unit, unit, [Chunk(State(request, CLUSTER), 1000, SIZE)], CLUSTER)
        batch.layers = 1
        loads.append(Flow(1, CLUSTER.reuse_path(request), batch, batch.chunks[0].state, SIZE, unit))
        network.send(loads[-1], SIZE)
    entries = {network.entry_link(load) for load in loads}
    assert {network.queue_link(load) for load in loads} == (entries if reads else {40})
    assert len(network.queues) == (2 if reads else 1)
    assert [what[0] for what in network.waiting.values()] == ([] if reads else loads[1:]), "each reader has a window"
    assert network.target(loads[0]) == (40 if reads else network.entry_link(loads[0]))
    assert set(finish_order(network)) == set(loads) and not network.posted and not network.messages


def test_reads_need_a_queue() -> None:
    with pytest.raises(ConfigError, match="--reads"):
        Config(model="dbrx", gpus=128, reads=True)


@pytest.mark.parametrize("given", [{"max_hold_s": 0.0, "fabric_classes": 8}, {"max_hold_s": 0.25}])
def test_a_hold_that_cannot_be_is_named(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--max-hold"):
        Config(model="dbrx", gpus=128, **given)
