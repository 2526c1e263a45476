"""Batches of a node: summaries, local order, the coordinator's order and pruning, and its loss."""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from mfsd._native import RANK_NONE, BatchSnapshot, DemandSnapshot, RequestSnapshot, Stage
from mfsd.node.addresses import PortNames
from mfsd.node.batches import Batches, Changed, OrderSource, Place
from mfsd.node.collectives import Collectives
from mfsd.node.link_interface import BatchSummary, OrderChange, PortDemand, PortUse
from mfsd.node.loads import SAMPLES, STEP, LoadReports
from mfsd.node.log import Log
from mfsd.policy import Variant

NOW = 10**12
MS = 1_000_000
RATE = 10**9


def gid(last: int) -> bytes:
    return b"\0" * 10 + b"\xff\xff" + bytes([10, 0, 0, last])


def demand(size: int, stage: int = Stage.P2D, peer: bytes = b"\0" * 16, nic: int = 0, incoming: bool = False):
    return DemandSnapshot(size, size, peer, 0, stage, nic, int(incoming))


def request(number: int, due_ms: int = 0, *demands: DemandSnapshot) -> RequestSnapshot:
    return RequestSnapshot(number, 0, NOW + due_ms * MS if due_ms else 0, 0, 0, 0, False, demands, 0, 0)


class Arbiter:
    """Holds contexts as the arbiter does, and keeps what it was given."""

    def __init__(self) -> None:
        self.batches: dict[tuple[int, int], BatchSnapshot] = {}
        self.gone: set[int] = set()
        self.calls = 0
        self.rho: float | None = 0.25
        """None: variant mfs, which measures none."""
        self.carried = [[0] * 8, [0] * 8]
        self.unscheduled = self.passed = 0
        self.moved: dict[str, dict[int, int]] = defaultdict(dict)
        """Of each unit, by NIC, in stage 2."""

    def put(self, client: int, slot: int, batch_id: int, *requests: RequestSnapshot, deadline_ns: int = 0) -> None:
        self.batches[client, slot] = BatchSnapshot(
            client, slot, batch_id, deadline_ns, 5 * MS, 8, 0, RANK_NONE, requests
        )

    def notice_fd(self) -> int:
        raise AssertionError("these tests tell of changes themselves")

    def changed(self) -> list[Changed]:
        raise AssertionError("these tests tell of changes themselves")

    def at(self, *places: Place) -> list[Changed]:
        return [(*place, self.batches.get(place)) for place in places]

    def _of(self, client_id: int) -> list[tuple[int, int]]:
        self.calls += 1
        if client_id in self.gone:
            raise OSError(errno.ENOENT, "no such client")
        return [place for place in self.batches if place[0] == client_id]

    def batch_rank(self, client_id: int, batch_id: int, rank: int) -> None:
        for place in self._of(client_id):
            if self.batches[place].batch_id == batch_id:
                self.batches[place] = self.batches[place]._replace(rank=rank)

    def request_prune(self, client_id: int, request_id: int, pruned: bool) -> None:
        for place in self._of(client_id):
            snapshot = self.batches[place]
            changed = tuple(r._replace(pruned=pruned) if r.request_id == request_id else r for r in snapshot.requests)
            self.batches[place] = snapshot._replace(requests=changed)

    def nic_stats(self, index: int) -> Any:
        return {
            "rate_bytes_per_s": RATE,
            "carried_bytes": self.carried,
            "unscheduled_carried_bytes": self.unscheduled,
            "passed_bytes": self.passed,
            "load": None if self.rho is None else [self.rho, 0.5],
        }

    def ranks(self) -> dict[int, int | None]:
        return {b.batch_id: None if b.rank == RANK_NONE else b.rank for b in self.batches.values()}

    def pruned(self) -> set[int]:
        return {r.request_id for b in self.batches.values() for r in b.requests if r.pruned}


class Link:
    """The test double of the coordinator's link."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, object]] = []
        self.uses: list[tuple[str, PortUse]] = []

    def arrived(self, batch: BatchSummary) -> None:
        self.reports.append(("arrived", batch))

    def updated(self, batch: BatchSummary) -> None:
        self.reports.append(("updated", batch))

    def departed(self, batch_id: int) -> None:
        self.reports.append(("departed", batch_id))

    def port_load(self, port: str, rho: float) -> None:
        self.reports.append((port, rho))

    def port_use(self, port: str, use: PortUse) -> None:
        self.uses.append((port, use))

    def routed(self, unit: str, demands: Sequence[PortDemand]) -> None:
        self.reports.append((f"routed {unit}", set(demands)))

    def summaries(self) -> list[tuple[str, object]]:
        return [(what, reported) for what, reported in self.reports if what in ("arrived", "updated", "departed")]

    def routes(self) -> list[tuple[str, object]]:
        return [(what, reported) for what, reported in self.reports if what.startswith("routed")]


@pytest.fixture
def node():
    return new_node(Variant.MFS)


def new_node(variant: Variant):
    arbiter, link = Arbiter(), Link()
    ports = PortNames("host", {}, {"a": "10.0.0.1"}.get)  # type: ignore[arg-type]
    batches = Batches(
        arbiter,
        ports,
        lambda: {0: "a", 1: "b"},
        lambda c: f"unit{c}",
        Collectives(arbiter.moved.__getitem__),
        variant,
        Log("error"),
        lambda: NOW,
    )
    batches._reports = link
    return arbiter, link, batches


def test_local_order_is_red(node) -> None:
    arbiter, _, batches = node
    arbiter.put(1, 0, 10, request(1, 900))
    arbiter.put(2, 0, 20, request(2, 100), request(3, 900))  # RED 500
    arbiter.put(2, 1, 30, deadline_ns=NOW + 700 * MS)
    arbiter.put(3, 0, 40, request(4))
    batches.refresh(arbiter.at((1, 0), (2, 0), (2, 1), (3, 0)))
    assert arbiter.ranks() == {20: 0, 30: 1, 10: 2, 40: None}
    assert batches.source == OrderSource("local")
    assert batches.red_ns(20) == NOW + 500 * MS
    assert batches.red_ns(40) is None
    calls = arbiter.calls
    batches.refresh(arbiter.at((1, 0)))
    assert arbiter.calls == calls  # nothing moved
    del arbiter.batches[2, 0]
    batches.refresh(arbiter.at((2, 0)))
    assert arbiter.ranks() == {30: 0, 10: 1, 40: None}


def test_processes_share_a_batch(node) -> None:
    arbiter, link, batches = node
    arbiter.put(1, 0, 10, request(1, 500, demand(100, peer=gid(9))))
    arbiter.put(2, 3, 10, request(1, 500, demand(50, nic=1, peer=gid(9))), request(2, 800))
    batches.refresh(arbiter.at((1, 0)))
    batches.refresh(arbiter.at((2, 3)))
    (first, _), (second, summary) = link.summaries()
    assert (first, second) == ("arrived", "updated")
    assert isinstance(summary, BatchSummary)
    by_id = {r.request_id: r for r in summary.requests}
    assert by_id.keys() == {1, 2}
    assert by_id[1].budget_left_ns == 500 * MS
    assert set(by_id[1].demands) == {
        PortDemand("10.0.0.1/out", 100),
        PortDemand("10.0.0.9/in", 150),
        PortDemand("host:b/out", 50),
    }
    batches.client_gone(1)
    assert link.summaries()[-1][0] == "updated"
    batches.client_gone(2)
    assert link.summaries()[-1] == ("departed", 10)


def test_a_summary_says_both_ends_and_what_is_left(node) -> None:
    arbiter, link, batches = node
    reuse = demand(70, Stage.REUSE, gid(5), incoming=True)
    part = demand(100, peer=gid(9))._replace(bytes_left=40)
    done = demand(100, peer=gid(8))._replace(bytes_left=0)
    ring = demand(11, Stage.COLLECTIVE, gid(7))
    arbiter.put(1, 0, 10, request(1, 0, reuse, part, done, ring))
    batches.refresh(arbiter.at((1, 0)))
    ((_, summary),) = link.summaries()
    assert isinstance(summary, BatchSummary)
    assert (summary.unit, summary.compute_left_ns) == ("unit1", 5 * MS)
    (only,) = summary.requests
    assert only.budget_left_ns is None
    assert set(only.demands) == {
        PortDemand("10.0.0.1/in", 70),
        PortDemand("10.0.0.5/out", 70),
        PortDemand("10.0.0.1/out", 40),
        PortDemand("10.0.0.9/in", 40),
    }
    assert set(summary.collectives) == {PortDemand("10.0.0.1/out", 11), PortDemand("10.0.0.7/in", 11)}


def test_what_the_collectives_of_a_batch_moved_is_reported_when_it_ends(node) -> None:
    arbiter, link, batches = node
    arbiter.moved["unit1"] = {0: 10**6}  # before the first batch: no batch's
    arbiter.put(1, 0, 10, request(1, 500))
    batches.refresh(arbiter.at((1, 0)))
    arbiter.moved["unit1"] = {0: 10**6 + 700, 1: 30}
    arbiter.put(1, 1, 11, request(2, 500))  # overlaps
    batches.refresh(arbiter.at((1, 1)))
    del arbiter.batches[1, 0]
    batches.refresh(arbiter.at((1, 0)))
    assert link.routes() == [
        (
            "routed unit1",
            {
                PortDemand("10.0.0.1/out", 700),
                PortDemand("10.0.0.1/in", 700),
                PortDemand("host:b/out", 30),
                PortDemand("host:b/in", 30),
            },
        )
    ]
    assert link.reports[-1] == ("departed", 10), "the history counts before the departure that makes room for the next"
    arbiter.moved["unit1"] = {0: 10**6 + 900, 1: 30}
    del arbiter.batches[1, 1]
    batches.refresh(arbiter.at((1, 1)))
    assert link.routes()[1:] == [("routed unit1", {PortDemand("10.0.0.1/out", 200), PortDemand("10.0.0.1/in", 200)})]


def test_a_batch_that_was_cut_short_is_no_history(node) -> None:
    arbiter, link, batches = node
    arbiter.put(1, 0, 10, request(1, 500))
    batches.refresh(arbiter.at((1, 0)))
    arbiter.moved["unit1"] = {0: 500}
    batches.client_gone(1)
    arbiter.put(2, 0, 20, request(1, 500))
    batches.refresh(arbiter.at((2, 0)))
    del arbiter.batches[2, 0]
    batches.refresh(arbiter.at((2, 0)))  # it moved nothing
    assert link.routes() == []
    assert [what for what, _ in link.summaries()] == ["arrived", "departed", "arrived", "departed"]


def test_loads_are_reported_when_they_have_moved(node) -> None:
    arbiter, link, batches = node
    seconds = iter([0, 0, 0.99, 1, 2, 3, 4])
    loads = LoadReports(arbiter, batches._ports, lambda: {0: "a"}, link, lambda: int(next(seconds) * 1e9))
    loads.sample()
    arbiter.rho += STEP * 2
    loads.sample()  # too soon
    arbiter.rho -= STEP * 1.5
    loads.sample()
    arbiter.rho += STEP
    loads.sample()
    arbiter.rho = 0.0
    loads.sample()
    loads.sample()
    out = [0.25, 0.25 + 1.5 * STEP, 0.0]
    assert [rho for port, rho in link.reports if port == "10.0.0.1/out"] == out
    assert [rho for port, rho in link.reports if port == "10.0.0.1/in"] == [0.5]


def test_variant_mfs_reports_no_load(node) -> None:
    arbiter, link, batches = node
    seconds = iter(range(3))
    loads = LoadReports(arbiter, batches._ports, lambda: {0: "a"}, link, lambda: next(seconds) * 10**9)
    arbiter.rho = None
    loads.sample()
    arbiter.unscheduled += RATE
    loads.sample()
    assert link.reports == [] and link.uses, "uses are reported all the same"


def test_what_bypasses_is_reported_by_direction(node) -> None:
    arbiter, link, batches = node
    seconds = iter(range(3))
    clock = lambda: next(seconds) * 10**9  # noqa: E731
    loads = LoadReports(arbiter, batches._ports, lambda: {0: "a"}, link, clock, lambda name: (RATE // 2, RATE // 4))
    loads.sample()
    assert {port: use.bypass for port, use in link.uses} == {"10.0.0.1/out": 0.5, "10.0.0.1/in": 0.25}


@pytest.mark.parametrize(("variant", "scavenged"), [(Variant.PAPER, {1}), (Variant.MFS, set())])
def test_an_infeasible_request(variant: Variant, scavenged: set[int]) -> None:
    arbiter, _, batches = new_node(variant)
    arbiter.put(1, 0, 10, request(1, 100), request(2, 900))
    batches.refresh(arbiter.at((1, 0)))
    batches.order(OrderChange(3, 7, True, {10: 0}, infeasible_added=(1,)))
    assert arbiter.pruned() == scavenged
    batches.order(OrderChange(3, 8, False, {}, infeasible_removed=(1,), pruned_added=(1,)))
    assert arbiter.pruned() == {1}
    batches.order(OrderChange(3, 9, False, {}, pruned_removed=(1,)))
    assert arbiter.pruned() == set()
    batches.order(OrderChange(3, 10, False, {}, infeasible_added=(1,)))
    batches.order_lost()
    assert arbiter.pruned() == set()


def test_a_batch_without_requests_is_ordered_here_but_not_reported(node) -> None:
    arbiter, link, batches = node
    arbiter.put(1, 0, 10, deadline_ns=NOW + MS)
    batches.refresh(arbiter.at((1, 0)))
    assert link.summaries() == []
    assert arbiter.ranks() == {10: 0}


def test_the_coordinators_order_is_applied_and_lost(node) -> None:
    arbiter, _, batches = node
    arbiter.put(1, 0, 10, request(1, 100), request(2, 100))
    arbiter.put(2, 0, 20, request(3, 900))
    batches.refresh(arbiter.at((1, 0), (2, 0)))
    batches.order(OrderChange(3, 7, True, {20: 0, 10: 5}, pruned_added=(2,)))
    assert arbiter.ranks() == {20: 0, 10: 5}
    assert arbiter.pruned() == {2}
    assert batches.source == OrderSource("coordinator", 3, 7)
    batches.order(OrderChange(3, 8, False, {10: 1}, pruned_added=(3,), pruned_removed=(2,)))
    assert arbiter.ranks() == {20: 0, 10: 1}
    assert arbiter.pruned() == {3}
    arbiter.put(3, 0, 30, request(5, 1))
    batches.refresh(arbiter.at((3, 0)))
    assert arbiter.ranks()[30] is None  # until the coordinator has placed it
    batches.order_lost()
    assert arbiter.ranks() == {30: 0, 10: 1, 20: 2}
    assert arbiter.pruned() == set()


def test_a_complete_order_forgets_what_it_does_not_name(node) -> None:
    arbiter, _, batches = node
    arbiter.put(1, 0, 10, request(1, 100))
    arbiter.put(2, 0, 20, request(3, 900))
    batches.refresh(arbiter.at((1, 0), (2, 0)))
    batches.order(OrderChange(1, 1, True, {20: 0, 10: 1}, pruned_added=(1, 3)))
    batches.order(OrderChange(2, 1, True, {20: 0}, pruned_added=(3,)))
    assert arbiter.ranks() == {20: 0, 10: None}
    assert arbiter.pruned() == {3}


def test_a_pruned_request_stays_so_when_its_batch_is_reported_anew(node) -> None:
    arbiter, _, batches = node
    arbiter.put(1, 0, 10, request(1, 100))
    batches.refresh(arbiter.at((1, 0)))
    batches.order(OrderChange(1, 1, True, {10: 4}, pruned_added=(1,)))
    arbiter.put(1, 0, 10, request(1, 200), request(2, 100))
    batches.refresh(arbiter.at((1, 0)))
    assert arbiter.pruned() == {1}
    assert arbiter.ranks() == {10: 4}


def test_a_slot_that_holds_another_batch_now(node) -> None:
    arbiter, link, batches = node
    arbiter.put(1, 0, 10, request(1, 100))
    batches.refresh(arbiter.at((1, 0)))
    arbiter.put(1, 0, 11, request(1, 100))
    batches.refresh(arbiter.at((1, 0)))
    assert {what for what, _ in link.summaries()} == {"arrived", "departed"}
    assert ("departed", 10) in link.summaries()
    assert batches.red_ns(10) is None


def test_clients_that_end_meanwhile_do_no_harm(node) -> None:
    arbiter, _, batches = node
    arbiter.put(1, 0, 10, request(1, 100))
    arbiter.put(2, 0, 20, request(2, 200))
    arbiter.gone = {1}
    batches.refresh(arbiter.at((1, 0), (2, 0), (9, 9)))
    assert arbiter.batches[2, 0].rank == 1
    batches.order(OrderChange(1, 1, True, {10: 0, 20: 3, 77: 1}, pruned_added=(1, 2, 99)))
    assert arbiter.batches[2, 0].rank == 3
    assert arbiter.pruned() == {2}
    batches.client_gone(1)
    batches.client_gone(1)


def test_uses_are_reported_by_class_when_they_have_moved(node) -> None:
    arbiter, link, batches = node
    seconds = iter(range(20))
    loads = LoadReports(arbiter, batches._ports, lambda: {0: "a"}, link, lambda: next(seconds) * 10**9)
    loads.sample()
    assert link.uses == [], "one snapshot tells nothing"
    arbiter.carried[0][6] += RATE // 4
    arbiter.unscheduled += RATE // 10
    arbiter.passed += RATE // 20
    loads.sample()
    (out_port, out), (in_port, inward) = link.uses
    assert (out_port, out.classes[6], out.unscheduled, out.passed) == ("10.0.0.1/out", 0.25, 0.1, 0.05)
    assert (in_port, inward.classes[6], inward.unscheduled, inward.passed) == ("10.0.0.1/in", 0.0, 0.1, 0.0)
    for _ in range(SAMPLES + 1):
        loads.sample()
    assert all(use.classes[6] == use.unscheduled == 0.0 for _, use in link.uses[-2:]), "it is over, and reported"
    reported = len(link.uses)
    loads.sample()
    assert len(link.uses) == reported
