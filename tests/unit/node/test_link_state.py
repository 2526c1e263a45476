"""What the daemon's link tells, and which orders it applies."""

from __future__ import annotations

import math

import pytest

from mfsd.node.link_interface import BatchSummary, Identity, PortDemand, RequestSummary
from mfsd.node.link_state import BUDGET_MAX_NS, LinkState
from mfsd.proto import mfs_pb2 as pb
from mfsd.proto.wire import DEMANDS_PER_REPORT_MAX, PROTOCOL, REQUESTS_PER_BATCH_MAX

S = 1_000_000_000
TTL_NS = 5 * S


def new_state(**ports: int) -> LinkState:
    state = LinkState(Identity("a", "1.0", 7), {f"{n}/in": r for n, r in ports.items()}, TTL_NS)
    state.follow("etcd:1", 3, 0)
    state.start_snapshot()
    return state


def batch(batch_id: int, budget_ns: int | None = S, *demands: PortDemand, compute_ns: int = 0) -> BatchSummary:
    return BatchSummary(batch_id, "u", compute_ns, (RequestSummary(batch_id * 10, budget_ns, demands),))


def reported(state: LinkState, now_ns: int = 0) -> pb.Report:
    message = state.report(now_ns)
    assert message is not None
    assert state.report(now_ns) is None, "everything is reported"
    return message.report


def order(*keys: tuple[int, int], term: int = 3, epoch: int = 1, snapshot: bool = False, **more: object) -> pb.Order:
    return pb.Order(
        term=term,
        epoch=epoch,
        snapshot=snapshot,
        batch_id=[b for b, _ in keys],
        key=[k for _, k in keys],
        **more,  # type: ignore[arg-type]
    )


def with_batches(*numbers: int) -> LinkState:
    state = new_state()
    for number in numbers:
        state.put(batch(number), 0)
    state.report(0)
    return state


# ---- what is reported ---------------------------------------------------------------------------------


def test_hello_names_the_node_its_ports_and_what_it_has_followed() -> None:
    hello = new_state(x=100, y=200).hello().hello
    assert (hello.protocol, hello.node, hello.version, hello.epoch) == (PROTOCOL, "a", "1.0", 7)
    assert [(p.number, p.name, p.rate_bytes_per_s) for p in hello.ports] == [(0, "x/in", 100), (1, "y/in", 200)]
    assert (hello.authority, hello.term) == ("etcd:1", 3)


def test_budgets_are_what_is_left_when_the_report_is_made() -> None:
    state = new_state()
    state.put(batch(1, 5 * S), now_ns=10 * S)
    state.put(batch(2, S), now_ns=10 * S)
    state.put(batch(3, None), now_ns=10 * S)
    report = reported(state, now_ns=12 * S)
    assert [r.requests[0].budget_left_ns for r in report.arrived[:2]] == [3 * S, -1 * S]
    assert not report.arrived[2].requests[0].HasField("budget_left_ns")


def test_ports_get_numbers_once_a_stream() -> None:
    state = new_state(x=100)
    state.put(batch(1, S, PortDemand("x/in", 5), PortDemand("y/out", 6)), 0)
    state.put(batch(2, S, PortDemand("y/out", 7)), 0)
    report = reported(state)
    assert [(p.number, p.name) for p in report.ports] == [(1, "y/out")]
    assert list(report.arrived[0].requests[0].port) == [0, 1]
    assert list(report.arrived[1].requests[0].port) == [1]
    state.start_snapshot()
    assert [(p.number, p.name) for p in reported(state).ports] == [(1, "y/out")], "a new leader knows nothing"


def test_a_batch_that_comes_and_goes_between_reports_is_not_reported() -> None:
    state = new_state()
    state.put(batch(1), 0)
    state.depart(1)
    assert state.report(0) is None


def test_a_batch_that_goes_and_comes_again_is_reported_as_both() -> None:
    state = with_batches(1)
    state.depart(1)
    state.put(batch(1, 9 * S), 0)
    report = reported(state)
    assert list(report.departed) == [1]
    assert [b.batch_id for b in report.arrived] == [1]


def test_many_updates_are_one() -> None:
    state = with_batches(1)
    for budget_ns in range(100):
        state.put(batch(1, budget_ns), 0)
    report = reported(state)
    assert [b.requests[0].budget_left_ns for b in report.updated] == [99]


def test_a_departure_before_the_arrival_is_nothing() -> None:
    state = new_state()
    assert state.depart(5) is None
    assert state.report(0) is None


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (batch(-1), "batch id -1 is not a 64-bit number"),
        (batch(2**64), f"batch id {2**64} is not a 64-bit number"),
        (BatchSummary(1, "u", 0, ()), f"0 requests: give 1 to {REQUESTS_PER_BATCH_MAX}"),
        (BatchSummary(1, "u", 0, (RequestSummary(-5, S),)), "request id -5 is not a 64-bit number"),
    ],
)
def test_what_cannot_be_reported_is_reported(bad: BatchSummary, problem: str) -> None:
    state = new_state()
    assert state.put(bad, 0) == problem
    assert state.report(0) is None


def test_amounts_that_make_no_sense_are_cut_or_left_out() -> None:
    state = new_state()
    demands = (PortDemand("x", -5), PortDemand("x", 0), PortDemand("x", 2**64), PortDemand("x", 7))
    state.put(batch(1, 2**80, *demands, compute_ns=-3), 0)
    state.put(batch(2, -(2**80), compute_ns=2**80), 0)
    first, second = reported(state).arrived
    assert (first.requests[0].budget_left_ns, first.compute_left_ns) == (BUDGET_MAX_NS, 0)
    assert list(first.requests[0].size_bytes) == [7]
    assert (second.requests[0].budget_left_ns, second.compute_left_ns) == (-BUDGET_MAX_NS, BUDGET_MAX_NS)


@pytest.mark.parametrize("rho", [math.nan, math.inf, -1.0])
def test_a_load_that_is_none_is_not_reported(rho: float) -> None:
    state = new_state()
    state.load("x", rho)
    assert state.report(0) is None


def test_a_load_is_reported_once_a_change() -> None:
    state = new_state()
    state.load("x", 0.5)
    assert [load.rho for load in reported(state).loads] == [0.5]
    state.load("x", 0.5)
    assert state.report(0) is None


def test_a_large_state_is_reported_in_pieces() -> None:
    state = new_state()
    demands = tuple(PortDemand(f"p{i}", 1) for i in range(DEMANDS_PER_REPORT_MAX // 4))
    for number in range(1, 11):
        state.put(batch(number, S, *demands), 0)
    reports = []
    while (message := state.report(0)) is not None:
        reports.append(message.report)
    assert sorted(b.batch_id for r in reports for b in r.arrived) == list(range(1, 11))
    assert len(reports) == 3
    assert max(len(r.SerializeToString()) for r in reports) < 1 << 20


# ---- what is applied ------------------------------------------------------------------------------


def test_ranks_follow_the_keys() -> None:
    state = with_batches(1, 2, 3)
    change = state.apply(order((1, 30), (2, 10), (3, 20), snapshot=True), 0)
    assert change is not None
    assert (change.complete, change.ranks) == (True, {2: 0, 3: 1, 1: 2})
    change = state.apply(order((1, 15), epoch=2), 0)
    assert change is not None
    assert (change.complete, change.ranks) == (False, {1: 1, 3: 2}), "only what has changed"


def test_equal_keys_go_by_number() -> None:
    state = with_batches(9, 4)
    change = state.apply(order((9, 1), (4, 1), snapshot=True), 0)
    assert change is not None
    assert change.ranks == {4: 0, 9: 1}


def test_an_order_of_another_term_is_not_applied() -> None:
    state = with_batches(1)
    assert state.apply(order((1, 5), term=2), 0) is None
    assert state.apply(order((1, 5), term=4), 0) is None, "not welcomed"
    assert state.stale == 2


def test_an_older_epoch_is_not_applied() -> None:
    state = with_batches(1)
    assert state.apply(order((1, 5), epoch=9), 0) is not None
    assert state.apply(order((1, 4), epoch=8), 0) is None


def test_a_smaller_term_of_the_same_authority_is_never_followed() -> None:
    state = new_state()
    assert not state.follow("etcd:1", 2, 0)
    assert state.follow("etcd:1", 3, 0), "the same leader again"
    assert state.follow("etcd:1", 9, 0)
    assert not state.follow("etcd:1", 3, 0)
    assert state.follow("alone", 1, 0), "an operator has replaced the authority"


def test_orders_for_batches_that_have_ended_meanwhile_change_nothing() -> None:
    state = with_batches(1)
    state.depart(1)
    why = pb.Pruned(batch_id=1, request_id=10, for_batch=2, port="x")
    change = state.apply(order((1, 5), snapshot=True, pruned=[why]), 0)
    assert change is not None
    assert (change.ranks, change.pruned_added) == ({}, ())


def test_a_request_is_pruned_until_none_of_its_batches_prunes_it() -> None:
    state = new_state()
    for number in (1, 2):
        state.put(BatchSummary(number, "u", 0, (RequestSummary(7, S),)), 0)
    both = [pb.Pruned(batch_id=n, request_id=7, for_batch=2, port="x") for n in (1, 2)]
    change = state.apply(order(pruned=both), 0)
    assert change is not None
    assert change.pruned_added == (7,)
    change = state.apply(order(restored_batch_id=[1], restored_request_id=[7]), 0)
    assert change is not None
    assert change.pruned_removed == ()
    assert state.why_pruned(7) == "batch 2 would have been late by port x"
    change = state.depart(2)
    assert change is not None
    assert (change.pruned_removed, change.infeasible_removed) == ((7,), ())
    assert state.why_pruned(7) is None


def test_a_request_is_infeasible_where_it_is_not_pruned() -> None:
    state = with_batches(1, 2)
    lost = [pb.Infeasible(batch_id=1, request_id=10)]
    change = state.apply(order(infeasible=lost), 0)
    assert change is not None
    assert (change.pruned_added, change.infeasible_added) == ((), (10,))
    assert state.why_pruned(10) == "it would be late with every port to itself"
    change = state.apply(order(pruned=[pb.Pruned(batch_id=1, request_id=10, for_batch=2, port="x")], epoch=2), 0)
    assert change is not None
    assert (change.pruned_added, change.infeasible_removed) == ((10,), (10,))
    change = state.apply(order(infeasible=lost, snapshot=True, epoch=3), 0)
    assert change is not None
    assert (change.complete, change.pruned_removed, change.infeasible_added) == (True, (), (10,))
    change = state.apply(order(restored_batch_id=[1], restored_request_id=[10], epoch=4), 0)
    assert change is not None
    assert change.infeasible_removed == (10,)


def test_the_order_expires_once() -> None:
    state = with_batches(1)
    assert not state.expire(100 * TTL_NS), "there was none"
    assert state.expires_in_ns(0) == TTL_NS, "one that comes in a moment does not expire before"
    state.apply(order((1, 5)), now_ns=0)
    assert state.expires_in_ns(S) == TTL_NS - S + 1
    state.received(3, now_ns=S)
    assert not state.received(2, now_ns=3 * S), "a stale leader's sign of life is none"
    assert not state.expire(S + TTL_NS)
    assert state.expire(S + TTL_NS + 1)
    assert not state.expire(100 * TTL_NS)
