"""The leader's state machine: orders, pruning, who is told what, and an answer to every bad input."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfsd.coordinator.cluster import LATE_TICK_NS, NO_DEADLINE_NS, REFUSALS_MAX, RESOURCES_MIN, Cluster
from mfsd.coordinator.planner import ReferencePlanner
from mfsd.coordinator.state import BUDGET_MAX_NS, DEADLINE_JITTER_NS, BatchReport, Delta, RequestReport
from mfsd.policy.config import PolicyConfig
from mfsd.policy.red import robust_effective_deadline
from mfsd.proto.wire import (
    BATCHES_PER_NODE_MAX,
    DEMANDS_PER_NODE_MAX,
    REQUESTS_PER_BATCH_MAX,
    REQUESTS_PER_NODE_MAX,
)

MS = 1_000_000
S = 1_000_000_000
RATE = 1_000_000_000
GRACE_NS = 5 * S


class World:
    """A cluster whose daemons remember what they were told."""

    def __init__(self, *nodes: str, policy: PolicyConfig | None = None) -> None:
        self.cluster = Cluster(policy or PolicyConfig(drop_budget=0.5), RATE, GRACE_NS)
        self.keys: dict[str, dict[int, int]] = {}
        self.pruned: dict[str, set[tuple[int, int]]] = {}
        self.infeasible: dict[str, set[tuple[int, int]]] = {}
        self.refused: dict[str, dict[int, str]] = {}
        for name in nodes:
            self.join(name)

    def join(self, name: str, now_ns: int = 0) -> None:
        self.cluster.connect(name, {f"{name}/in": RATE, f"{name}/out": RATE}, now_ns)
        self.cluster.synchronise(name, now_ns)
        self.tell()

    def port(self, name: str) -> int:
        return self.cluster.ports.number(name)

    def arrive(self, node: str, report: BatchReport, now_ns: int = 0) -> None:
        self.cluster.arrive(node, report, now_ns)
        self.tell()

    def update(self, node: str, report: BatchReport, now_ns: int = 0) -> None:
        self.cluster.update(node, report, now_ns)
        self.tell()

    def depart(self, node: str, batch_id: int, now_ns: int = 0) -> None:
        self.cluster.depart(node, batch_id, now_ns)
        self.keys[node].pop(batch_id, None)
        self.tell()

    def tell(self) -> dict[str, Delta]:
        """Gives every daemon what it has not heard."""
        told = {}
        for name in sorted(self.cluster.dirty):
            delta = self.cluster.take(name)
            if delta is None:
                continue
            told[name] = delta
            keys, pruned = self.keys.setdefault(name, {}), self.pruned.setdefault(name, set())
            infeasible = self.infeasible.setdefault(name, set())
            if delta.snapshot:
                keys.clear()
                pruned.clear()
                infeasible.clear()
            keys.update(delta.keys)
            pruned.update((e.batch_id, e.request_id) for e in delta.pruned)
            pruned.difference_update(delta.restored, delta.infeasible)
            infeasible.update(delta.infeasible)
            infeasible.difference_update(delta.restored, ((e.batch_id, e.request_id) for e in delta.pruned))
            self.refused.setdefault(name, {}).update(delta.refused)
        return told

    def order(self, node: str) -> list[int]:
        keys = self.keys[node]
        return sorted(keys, key=lambda b: (keys[b], b))


def batch(
    batch_id: int, *budgets_ns: int | None, port: int = 0, size: int = 1000, compute_ns: int = 0, unit: str = "u"
) -> BatchReport:
    requests = [RequestReport(batch_id * 100 + i, b, {port: size}) for i, b in enumerate(budgets_ns)]
    return BatchReport(batch_id, unit, compute_ns, requests, {})


def test_a_daemon_hears_the_order_of_its_own_batches_and_of_no_others() -> None:
    world = World("a", "b")
    world.arrive("a", batch(1, 3 * S))
    world.arrive("a", batch(2, 1 * S))
    world.arrive("b", batch(3, 2 * S))
    assert world.order("a") == [2, 1]
    assert world.order("b") == [3]
    assert [active.batch_id for active in world.cluster.order()] == [2, 3, 1]


def test_an_arrival_tells_one_key_to_one_daemon() -> None:
    world = World("a", "b")
    for number in range(1, 50):
        world.arrive("a", batch(number, number * S))
    world.cluster.arrive("b", batch(99, 1), 0)  # before all others
    told = world.tell()
    assert set(told) == {"b"}
    assert told["b"].keys == [(99, 1)]


def test_the_key_is_the_robust_effective_deadline() -> None:
    world = World("a")
    budgets = (5 * S, 1 * S, 7 * S)
    world.arrive("a", batch(1, *budgets), now_ns=10 * S)
    assert world.keys["a"][1] == robust_effective_deadline(10 * S + b for b in budgets).red_ns


def test_a_late_request_keeps_its_place_among_the_late() -> None:
    world = World("a")
    world.arrive("a", batch(1, -1 * S), now_ns=10 * S)
    world.arrive("a", batch(2, -2 * S), now_ns=10 * S)
    assert world.order("a") == [2, 1]
    assert world.keys["a"] == {1: 9 * S, 2: 8 * S}


def test_budgets_beyond_reason_are_cut() -> None:
    world = World("a")
    world.arrive("a", batch(1, 2**62))
    world.arrive("a", batch(2, -(2**62)))
    assert world.keys["a"] == {1: BUDGET_MAX_NS, 2: -BUDGET_MAX_NS}


def test_no_deadline_at_all_is_an_hour_and_stays_where_it_was() -> None:
    world = World("a")
    world.arrive("a", batch(1, None), now_ns=5)
    world.update("a", batch(1, None), now_ns=10 * S)
    assert world.keys["a"] == {1: NO_DEADLINE_NS + 5}


def test_a_request_without_a_deadline_counts_as_the_last_of_its_batch() -> None:
    world = World("a")
    world.arrive("a", batch(1, S, None, 3 * S))
    assert world.keys["a"][1] == robust_effective_deadline([S, 3 * S, 3 * S]).red_ns


def test_message_delay_does_not_move_a_batch() -> None:
    world = World("a")
    world.arrive("a", batch(1, S), now_ns=2 * MS)  # 2 ms on its way
    world.update("a", batch(1, S - 100 * MS), now_ns=101 * MS)  # 1 ms on its way
    world.update("a", batch(1, S - 200 * MS), now_ns=209 * MS)  # 9 ms on its way
    assert world.keys["a"][1] == S + 1 * MS


def test_a_new_deadline_moves_a_batch() -> None:
    world = World("a")
    world.arrive("a", batch(1, S))
    world.update("a", batch(1, S + DEADLINE_JITTER_NS + 1))
    assert world.keys["a"][1] == S + DEADLINE_JITTER_NS + 1


# ---- bad input: each has one answer -----------------------------------------------------------------


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


def test_a_departure_of_somebody_elses_batch_is_ignored() -> None:
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


def test_a_batch_of_100_000_requests_is_refused_and_its_daemon_told() -> None:
    world = World("a")
    world.arrive("a", batch(1, *[S] * 100_000))
    assert not world.cluster.batches
    assert world.refused["a"][1] == f"it has 100000 requests: a batch has at most {REQUESTS_PER_BATCH_MAX}"


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (BatchReport(1, "u", 0, [], {}), "it has no requests: report at least one, or let the batch depart"),
        (BatchReport(1, "u", 0, [RequestReport(5, S, {}), RequestReport(5, S, {})], {}), "it names a request twice"),
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
    assert set(world.cluster.batches[last].told) == {nodes[last // 3]}
    for number in range(1, 20):
        world.depart(nodes[number // 3], number)
    assert not world.cluster.batches
    assert world.cluster.requests_active() == 0


def test_a_daemon_that_floods_is_refused_and_harms_nobody() -> None:
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
        f"node wild would have {BATCHES_PER_NODE_MAX + 1} batches in the order: at most {BATCHES_PER_NODE_MAX}; "
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
    assert f"{what} in the order: at most {most}" in world.refused["wild"][fit + 1]
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
    assert world.refused["b"] == {3: "the cluster has 2 batches, as many as one coordinator carries"}
    world.arrive("b", batch(2, S))  # a node's part of a batch that is there
    assert set(world.cluster.batches[2].told) == {"a", "b"}


def test_refusals_that_nobody_reads_are_bounded() -> None:
    world = World("a")
    for number in range(REFUSALS_MAX + 5):
        world.cluster.arrive("a", BatchReport(number, "u", 0, [], {}), 0)
    world.tell()
    assert set(world.refused["a"]) == set(range(5, REFUSALS_MAX + 5))


def test_what_is_held_is_judged_together() -> None:
    """Before the release nobody hears a judgement; after it all is as if told one after the other."""
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


# ---- pruning ----------------------------------------------------------------------------------------


def heavy(batch_id: int, budget_ns: int, size: int, port: int) -> BatchReport:
    return BatchReport(
        batch_id,
        "u",
        0,
        [
            RequestReport(batch_id * 100, budget_ns, {port: size}),
            RequestReport(batch_id * 100 + 1, budget_ns, {port: 1000}),
        ],
        {},
    )


def test_a_pruned_request_is_told_to_its_daemon_with_the_reason_and_comes_back() -> None:
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


# ---- several nodes, one batch -------------------------------------------------------------------------


def test_reports_of_one_batch_add_up() -> None:
    world = World("a", "b")
    port = world.port("b/in")
    world.arrive("a", BatchReport(1, "", 5 * MS, [RequestReport(7, 2 * S, {port: 600_000_000})], {}))
    world.arrive("b", BatchReport(1, "u", 9 * MS, [RequestReport(7, 1 * S, {port: 600_000_000})], {}))
    assert world.keys == {"a": {1: S}, "b": {1: S}}
    (active,) = world.cluster.order()
    assert active.unit == "u"
    merged = world.cluster._merged(active, 0)[0]
    assert merged.compute_ns == 9 * MS
    assert merged.requests[0].loads == {port: 1_200_000_000}  # ns at 1 GB/s


def test_a_batch_ends_when_the_last_node_has_let_it_go() -> None:
    world = World("a", "b")
    world.arrive("a", batch(1, 2 * S))
    world.arrive("b", batch(1, 1 * S))
    world.depart("b", 1)
    assert world.keys["a"] == {1: 2 * S}
    world.depart("a", 1)
    assert not world.cluster.batches


def test_a_node_that_joins_a_batch_hears_what_is_pruned_in_it() -> None:
    world = World("a", "b")
    port = world.port("b/in")
    world.arrive("a", heavy(1, 600 * MS, 500_000_000, port))
    world.arrive("b", heavy(2, 800 * MS, 400_000_000, port))
    world.join("c")
    world.arrive("c", BatchReport(1, "u", 0, [RequestReport(100, 600 * MS, {})], {}))
    assert (1, 100) in world.pruned["c"]
    assert world.order("c") == [1]


# ---- coming and going --------------------------------------------------------------------------------


def test_batches_of_a_lost_daemon_stay_for_the_grace() -> None:
    world = World("a", "b")
    world.arrive("a", batch(1, S))
    world.arrive("b", batch(1, S))
    world.arrive("a", batch(2, S))
    world.cluster.tick(0)
    world.cluster.disconnect("a", 1 * S)
    for at_s in (2, 3, 4, 5):
        world.cluster.tick(at_s * S)
    assert set(world.cluster.batches) == {1, 2}
    world.cluster.tick(6 * S)
    assert set(world.cluster.batches) == {1}, "the other node still has it"
    assert set(world.cluster.nodes) == {"b"}


def test_a_daemon_that_comes_back_is_told_everything_and_what_it_does_not_name_is_gone() -> None:
    world = World("a")
    world.arrive("a", batch(1, 1 * S))
    world.arrive("a", batch(2, 2 * S))
    world.cluster.disconnect("a", 1 * S)
    world.cluster.connect("a", {}, 2 * S)
    world.cluster.arrive("a", batch(2, 0), 2 * S)
    world.cluster.arrive("a", batch(3, 3 * S), 2 * S)
    assert world.cluster.take("a") is None, "the snapshot is not complete"
    world.cluster.synchronise("a", 2 * S)
    delta = world.cluster.take("a")
    assert delta is not None
    assert delta.snapshot
    assert sorted(delta.keys) == [(2, 2 * S), (3, 5 * S)]
    assert set(world.cluster.batches) == {2, 3}
    assert not world.cluster.oddities


def test_what_cannot_be_in_time_is_infeasible_and_told_once() -> None:
    world = World("a", "b")
    port = world.port("b/in")
    world.arrive("a", heavy(1, 600 * MS, 700_000_000, port))
    assert world.infeasible["a"] == {(1, 100)}
    assert world.pruned["a"] == set()
    world.arrive("b", heavy(2, 800 * MS, 700_000_000, port))
    assert (world.infeasible["b"], world.pruned["b"]) == (set(), set()), "it stands in nobody's way"
    world.cluster.update("a", heavy(1, 600 * MS, 690_000_000, port), 0)
    assert all(not delta.infeasible for delta in world.tell().values())
    world.update("a", heavy(1, 600 * MS, 500_000_000, port))
    assert world.infeasible["a"] == set()
    world.cluster.replace_policy(PolicyConfig(drop_budget=0.0), 0)
    world.update("a", heavy(1, 600 * MS, 700_000_000, port))
    world.join("a")
    world.update("a", heavy(1, 600 * MS, 700_000_000, port))
    assert world.infeasible["a"] == {(1, 100)}, "a snapshot has it, too"


def test_a_policy_can_be_replaced() -> None:
    world = World("a", "b")
    port = world.port("b/in")
    world.arrive("a", heavy(1, 600 * MS, 500_000_000, port))
    world.arrive("b", heavy(2, 800 * MS, 400_000_000, port))
    epoch = world.cluster.epoch
    world.cluster.replace_policy(PolicyConfig(drop_budget=0.0), 0)
    world.tell()
    assert world.pruned["a"] == set()
    assert world.cluster.epoch > epoch
    assert world.order("a") == [1]


# ---- collectives ------------------------------------------------------------------------------------


def test_collectives_of_a_batch_that_declares_none_come_from_its_units_history() -> None:
    world = World("a")
    port = world.port("a/out")
    world.cluster.history.observe("u", "a", {port: 60_000_000})
    world.cluster.history.observe("u", "b", {port: 40_000_000})  # another node of the unit: they add up
    world.arrive("a", batch(1, S, compute_ns=10 * MS))
    (active,) = world.cluster.order()
    assert world.cluster._merged(active, 0)[0].fixed_loads == {port: 100 * MS}
    world.update("a", batch(1, S, compute_ns=5 * MS))
    assert world.cluster._merged(active, 0)[0].fixed_loads == {port: 50 * MS}, "half of its layers are done"
    world.update("a", BatchReport(1, "u", 0, [RequestReport(7, S, {})], {port: 3_000_000}))
    assert world.cluster._merged(active, 0)[0].fixed_loads == {port: 3 * MS}, "declared"


def test_history_follows_what_moves_and_forgets_what_does_not() -> None:
    world = World("a")
    history = world.cluster.history
    history.observe("u", "a", {0: 1000})
    history.observe("u", "a", {1: 1000})
    assert history.estimate("u") == {0: 750, 1: 250}
    for _ in range(40):
        history.observe("u", "a", {1: 1000})
    assert set(history.estimate("u")) == {1}
    history.observe("u", "b", {1: 500, 2: 7})
    history.forget("a")
    assert history.estimate("u") == {1: 500, 2: 7}
    assert history.estimate("unheard of") == {}


# ---- any sequence of events: what daemons know equals what the reference plans afresh ------------------


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
                told = world.cluster.batches[batch_id].told[name]
                requests = [RequestReport(r, d and d - at_ns, p) for r, (d, p) in told.requests.items()]
                world.cluster.arrive(name, BatchReport(batch_id, "u", told.compute_ns, requests, {}), at_ns)
            world.cluster.synchronise(name, at_ns)
            world.tell()
    for name in names:
        own = {b: a for b, a in world.cluster.batches.items() if name in a.told}
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
            [RequestReport(i, draw.randrange(900) * MS, {p: draw.randrange(300_000_000)}) for i, p in enumerate(ports)],
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
    assert any(world.cluster.pruned() for world in worlds)
