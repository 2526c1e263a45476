"""Records of the leader's state: what a node reports, what is kept of it, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from mfsd.proto.wire import (
    BATCHES_PER_CLUSTER_MAX,
    BATCHES_PER_NODE_MAX,
    DEMANDS_PER_NODE_MAX,
    REQUESTS_PER_BATCH_MAX,
    REQUESTS_PER_NODE_MAX,
)

RELEGATED = -1
DEADLINE_JITTER_NS = 10_000_000
"""Deadlines are computed from remaining budgets, which messages delay by differing times. A new value this close to the
old one is the same deadline, and the earlier of the two is more exact."""
BUDGET_MAX_NS = 1_000_000_000_000_000
"""Eleven days: longer budgets and compute times are capped, so that no sum in a core overflows."""


class RequestReport(NamedTuple):
    request_id: int
    budget_left_ns: int | None
    demands: Mapping[int, int]
    """Port number -> bytes."""
    relegated: bool = False
    """Whether its engine has put it behind the others."""


class BatchReport(NamedTuple):
    """One node's report of one batch."""

    batch_id: int
    unit: str
    compute_left_ns: int
    requests: Sequence[RequestReport]
    collectives: Mapping[int, int]


class Entry(NamedTuple):
    """One pruned request, and the reason."""

    batch_id: int
    request_id: int
    for_batch: int
    port: int
    """RELEGATED if its engine has put it behind the others, for no batch and no port."""


class Delta(NamedTuple):
    """What one daemon has not been sent yet. `snapshot`: it is complete."""

    epoch: int
    snapshot: bool
    keys: list[tuple[int, int]]
    """(batch, key): ordered by key, smaller first, then by batch."""
    pruned: list[Entry]
    infeasible: list[tuple[int, int]]
    """(batch, request)."""
    restored: list[tuple[int, int]]
    """(batch, request): neither pruned nor infeasible any more."""
    refused: list[tuple[int, str]]


class Node(Struct):
    """A daemon that is connected, or was until a moment ago."""

    name: str
    connected: bool = True
    lost_ns: int = 0
    ports: tuple[int, ...] = ()
    batches: dict[int, None] = {}
    unconfirmed: dict[int, None] = {}
    """Batches reported before the reconnection and not since."""
    synchronised: bool = False
    """Whether its snapshot is complete, so that it can be sent the order."""
    snapshot: bool = False
    keys: dict[int, None] = {}
    verdicts: dict[tuple[int, int], None] = {}
    refused: dict[int, str] = {}
    requests: int = 0
    demands: int = 0
    """Number of demands of all its batches."""


class Reported(NamedTuple):
    unit: str
    compute_ns: int
    requests: dict[int, tuple[int | None, Mapping[int, int]]]
    """Request -> deadline on this coordinator's clock, bytes per port."""
    collectives: Mapping[int, int]
    relegated: frozenset[int] = frozenset()

    def demands(self) -> int:
        return len(self.collectives) + sum(len(demands) for _, demands in self.requests.values())

    def uses(self, ports: set[int]) -> bool:
        return not ports.isdisjoint(self.collectives) or any(
            not ports.isdisjoint(demands) for _, demands in self.requests.values()
        )


class Active(Struct):
    """One batch, and each node's report of it."""

    batch_id: int
    reported: dict[str, Reported] = {}
    numbers: dict[int, int] = {}
    """Request -> its number in the core. A request may be in two batches at once, between two chunks."""
    key_ns: int = 0
    compute_first_ns: int = 0

    @property
    def unit(self) -> str:
        return next((t.unit for t in self.reported.values() if t.unit), "")


def problem(report: BatchReport) -> str | None:
    """Returns why a report cannot be accepted; None if it can."""
    if not report.requests:
        return "it has no requests: report at least one, or let the batch depart"
    if len(report.requests) > REQUESTS_PER_BATCH_MAX:
        return f"it has {len(report.requests)} requests: a batch has at most {REQUESTS_PER_BATCH_MAX}"
    if len({r.request_id for r in report.requests}) != len(report.requests):
        return "it names a request twice"
    return None


def beyond_limits(node: Node, batches: Mapping[int, Active], report: BatchReport) -> str | None:
    """Returns why the report would exceed the daemon's limits in the order; None if it does not."""
    active = batches.get(report.batch_id)
    before = active.reported.get(node.name) if active is not None else None
    had, demanded = (len(before.requests), before.demands()) if before is not None else (0, 0)
    demands = len(report.collectives) + sum(len(r.demands) for r in report.requests)
    for what, count, most in (
        ("batches", len(node.batches) + (before is None), BATCHES_PER_NODE_MAX),
        ("requests", node.requests - had + len(report.requests), REQUESTS_PER_NODE_MAX),
        ("demands", node.demands - demanded + demands, DEMANDS_PER_NODE_MAX),
    ):
        if count > most:
            return f"node {node.name} would have {count} {what} in the order: at most {most}; let some depart first"
    if active is None and len(batches) >= BATCHES_PER_CLUSTER_MAX:
        return f"the cluster has {len(batches)} batches, as many as one coordinator carries"
    return None


def count(node: Node, reported: Reported | None, sign: int) -> None:
    if reported is not None:
        node.requests += sign * len(reported.requests)
        node.demands += sign * reported.demands()


def reported_by(report: BatchReport, before: Reported | None, now_ns: int) -> Reported:
    requests: dict[int, tuple[int | None, Mapping[int, int]]] = {}
    for request in report.requests:
        deadline_ns = None
        if request.budget_left_ns is not None:
            deadline_ns = now_ns + min(max(-BUDGET_MAX_NS, request.budget_left_ns), BUDGET_MAX_NS)
            old = before.requests.get(request.request_id) if before is not None else None
            if old is not None and old[0] is not None and abs(old[0] - deadline_ns) <= DEADLINE_JITTER_NS:
                deadline_ns = min(old[0], deadline_ns)
        requests[request.request_id] = (deadline_ns, request.demands)
    relegated = frozenset(request.request_id for request in report.requests if request.relegated)
    return Reported(report.unit, min(report.compute_left_ns, BUDGET_MAX_NS), requests, report.collectives, relegated)
