"""The leader's state machine: orders, who is sent what, nodes that share a batch, come and go."""

from __future__ import annotations

from collections.abc import Iterator

from mfsd.coordinator.cluster import NO_DEADLINE_NS
from mfsd.coordinator.state import BUDGET_MAX_NS, DEADLINE_JITTER_NS, BatchReport, RequestReport
from mfsd.policy.config import PolicyConfig
from mfsd.policy.red import robust_effective_deadline
from tests.unit.coordinator.world import GRACE_NS, MS, S, World, batch, heavy


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
    reported = world.tell()
    assert set(reported) == {"b"}
    assert reported["b"].keys == [(99, 1)]


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


def test_a_daemon_that_comes_back_is_reported_everything_and_what_it_does_not_name_is_gone() -> None:
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


def test_what_cannot_be_in_time_is_infeasible_and_reported_once() -> None:
    world = World("a", "b")
    port = world.port("b/in")
    world.arrive("a", heavy(1, 600 * MS, 700_000_000, port))
    assert world.infeasible["a"] == {(1, 100)}
    assert world.pruned["a"] == set()
    world.arrive("b", heavy(2, 800 * MS, 700_000_000, port))
    assert (world.infeasible["b"], world.pruned["b"]) == (set(), set()), "it stands in no other's way"
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


def test_the_end_of_a_grace_looks_through_no_verdicts() -> None:
    class Seen(dict[tuple[int, int], None]):
        times = 0

        def __iter__(self) -> Iterator[tuple[int, int]]:
            for key in super().__iter__():
                Seen.times += 1
                yield key

    world = World("a")
    for number in range(1, 6):
        world.arrive("a", batch(number, S))
    world.cluster.disconnect("a", 0)
    node = world.cluster.nodes["a"]
    node.verdicts = Seen({(number, number * 100): None for number in range(1, 6)})
    world.cluster.tick(S)
    for at_ns in range(2 * S, 2 * GRACE_NS, S):
        world.cluster.tick(at_ns)
    assert "a" not in world.cluster.nodes and Seen.times == 0
