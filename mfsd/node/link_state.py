"""The link's state: this node's batches, what is still to be reported of them, and the leader's order.

Pure: no I/O, no clock of its own. Times are in nanoseconds on this host's monotonic clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mfsd.node.link_interface import BatchSummary, Identity, OrderChange, PortDemand, PortUse, WaitingSummary
from mfsd.node.outlook import Promise
from mfsd.policy.request_tiers import NUMBERS, NodeTiers
from mfsd.proto import mfs_pb2 as pb
from mfsd.proto.wire import (
    DEMANDS_PER_REPORT_MAX,
    NAME_LENGTH_MAX,
    PROTOCOL,
    PROTOCOL_OLDEST,
    REQUESTS_PER_BATCH_MAX,
    WAITING_PER_NODE_MAX,
)
from mfsd.text import one_line

U64_MAX = 2**64 - 1
BUDGET_MAX_NS = 2**62
"""Beyond any real budget (146 years). Larger ones are cut to fit on the wire."""


SAID_MAX = 1_024
ANSWERS_MAX = 16
"""Answers that may wait to be sent. If they come faster than the stream sends, the oldest are lost."""
USE_MAX = 60.0
"""Sixty times a port's rate. More means that the rate is wrong, and the number only has to fit."""
OUTCOMES_MAX = 4_096
"""Ends of requests, the latest, that are kept while no coordinator is in reach."""


class _Held(NamedTuple):
    batch: BatchSummary
    reported_ns: int
    """The time to which its relative times refer."""


class _Waiting(NamedTuple):
    request: WaitingSummary
    reported_ns: int


class _Verdict(NamedTuple):
    """The verdict on a request in one batch."""

    for_batch: int
    port: str
    infeasible: bool = False
    relegated: bool = False
    """Its engine has put it behind the others."""


def _permille(share: float) -> int:
    return round(1000 * min(max(0.0, share), USE_MAX))


def _encode_tiers(found: NodeTiers, to: pb.Tiers) -> None:
    to.SetInParent()  # even if no tier is left
    to.engines, to.unreadable = found.engines, found.unreadable
    for name, tier in found.tiers.items():
        numbers = {field: getattr(tier, field) for field in NUMBERS}
        to.tiers.add(name=name, policies=tier.policies, **numbers)


def _sentence(why: _Verdict) -> str:
    if why.relegated:
        return "its engine has put it behind the others"
    if why.infeasible:
        return "it would be late with every port to itself"
    return f"batch {why.for_batch} would have been late by port {why.port or 'unknown'}"


class LinkState:
    def __init__(self, identity: Identity, ports: Mapping[str, int], ttl_ns: int) -> None:
        self._identity = identity
        self._ports = dict(ports)
        self._ttl_configured_ns = self.ttl_ns = ttl_ns
        self._batches: dict[int, _Held] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._waiting_changed: dict[int, None] = {}
        self._waits_no_more: dict[int, None] = {}
        self._loads: dict[str, float] = {}
        # what has not been reported to the coordinator
        self._arrived: dict[int, None] = {}
        self._updated: dict[int, None] = {}
        self._departed: dict[int, None] = {}
        self._loads_changed: set[str] = set()
        self._uses: dict[str, PortUse] = {}
        self._tiers: NodeTiers | None = None
        self._tiers_changed = False
        self._answers: deque[pb.Answer] = deque(maxlen=ANSWERS_MAX)
        self._routed: list[tuple[str, Sequence[PortDemand]]] = []
        self._outcomes: deque[tuple[int, bool]] = deque(maxlen=OUTCOMES_MAX)
        self._numbers: dict[str, int] = {}
        """Numbers of the ports named on this stream since the last welcome. The node's own ports come first."""
        # what the leader has decided
        self.authority = ""
        self.term = 0
        self.epoch = 0
        self.received_ns: int | None = None
        self.stale = 0
        self._has_order = False
        self._keys: dict[int, int] = {}
        self._ranks: dict[int, int] = {}
        self._verdicts: dict[int, dict[int, _Verdict]] = {}
        """Request -> batch -> verdict."""
        self._said: dict[int, str] = {}
        """Why the latest pruned or infeasible requests were so, even if they are no longer."""

    # ---- from the daemon -------------------------------------------------------------------------

    def put(self, batch: BatchSummary, now_ns: int) -> str | None:
        """Takes a batch over. If it cannot be reported, returns why."""
        if not 0 <= batch.batch_id <= U64_MAX:
            return f"batch id {batch.batch_id} is not a 64-bit number"
        if not 1 <= len(batch.requests) <= REQUESTS_PER_BATCH_MAX:
            return f"{len(batch.requests)} requests: give 1 to {REQUESTS_PER_BATCH_MAX}"
        for request in batch.requests:
            if not 0 <= request.request_id <= U64_MAX:
                return f"request id {request.request_id} is not a 64-bit number"
        known = batch.batch_id in self._batches
        self._batches[batch.batch_id] = _Held(batch, now_ns)
        if known:
            self._updated[batch.batch_id] = None
        else:
            self._arrived[batch.batch_id] = None
        return None

    def depart(self, batch_id: int) -> OrderChange | None:
        """Forgets a batch. Returns the change for requests that were pruned or infeasible only in it, if any."""
        if self._batches.pop(batch_id, None) is None:
            return None
        self._updated.pop(batch_id, None)
        if batch_id in self._arrived:
            del self._arrived[batch_id]
        else:
            self._departed[batch_id] = None
        self._keys.pop(batch_id, None)
        self._ranks.pop(batch_id, None)
        before = self._verdicts_now()
        for request_id in list(self._verdicts):
            self._acquit(batch_id, request_id)
        change = self._change({}, before)
        return change if change.pruned_removed or change.infeasible_removed else None

    def waiting(self, request: WaitingSummary, now_ns: int) -> None:
        """Takes over a request that queues, or what has changed about it. There is room for the full tables of some
        engines; further requests are not reported."""
        if request.request_id in self._waiting or len(self._waiting) < WAITING_PER_NODE_MAX:
            self._waiting[request.request_id] = _Waiting(request, now_ns)
            self._waiting_changed[request.request_id] = None
            self._waits_no_more.pop(request.request_id, None)

    def waits_no_more(self, request_id: int) -> None:
        if self._waiting.pop(request_id, None) is not None:
            self._waiting_changed.pop(request_id, None)
            self._waits_no_more[request_id] = None

    def load(self, port: str, rho: float) -> None:
        if math.isfinite(rho) and rho >= 0.0 and self._loads.get(port) != rho:
            self._loads[port] = rho
            self._loads_changed.add(port)

    def use(self, port: str, use: PortUse) -> None:
        self._uses[port] = use
        self._loads_changed.add(port)

    def tiers(self, found: NodeTiers) -> None:
        self._tiers, self._tiers_changed = found, True

    def answer(self, question_id: int, reply: bytes, last: bool) -> None:
        self._answers.append(pb.Answer(id=question_id, reply=reply, last=last))

    def next_answer(self) -> pb.FromNode | None:
        """The next unsent answer."""
        return pb.FromNode(answer=self._answers.popleft()) if self._answers else None

    def request_ended(self, request_id: int, met: bool) -> None:
        self._outcomes.append((request_id, met))

    def routed(self, unit: str, demands: Sequence[PortDemand]) -> None:
        self._routed.append((unit, demands))
        del self._routed[:-64]  # cut off from the coordinator, only the latest history is worth keeping

    # ---- to the coordinator ----------------------------------------------------------------------

    def hello(self) -> pb.FromNode:
        """The first message of a new stream."""
        hello = pb.Hello(
            protocol=PROTOCOL,
            protocol_oldest=PROTOCOL_OLDEST,
            node=self._identity.node,
            version=self._identity.version,
            epoch=self._identity.epoch,
            authority=self.authority,
            term=self.term,
            answers=True,
            outlook=True,
        )
        for number, (name, rate) in enumerate(self._ports.items()):
            hello.ports.add(number=number, name=name, rate_bytes_per_s=rate)
        return pb.FromNode(hello=hello)

    def start_snapshot(self) -> None:
        """Makes `report` report everything again. Call `end_snapshot` when it has."""
        self._numbers = {port: number for number, port in enumerate(self._ports)}
        self._arrived = dict.fromkeys(self._batches)
        self._updated.clear()
        self._departed.clear()
        self._waiting_changed = dict.fromkeys(self._waiting)
        self._waits_no_more.clear()
        self._loads_changed = {*self._loads, *self._uses}
        self._tiers_changed = self._tiers is not None
        self._answers.clear()  # the callers asked another leader

    def report(self, now_ns: int) -> pb.FromNode | None:
        """The next report of what is new, or None if nothing is left. Large reports are cut."""
        changed = (self._arrived, self._updated, self._departed, self._loads_changed, self._routed, self._outcomes)
        if not any(changed) and not self._waiting_changed and not self._waits_no_more and not self._tiers_changed:
            return None
        message = pb.FromNode()
        report = message.report
        report.term = self.term
        report.departed.extend(self._departed)
        self._departed.clear()
        room = DEMANDS_PER_REPORT_MAX
        for pending, rows in ((self._arrived, report.arrived), (self._updated, report.updated)):
            while pending and room > 0:
                batch_id = next(iter(pending))
                del pending[batch_id]
                if rows is report.arrived:
                    self._updated.pop(batch_id, None)
                room -= self._encode(self._batches[batch_id], rows.add(), report, now_ns)
        report.waits_no_more.extend(self._waits_no_more)
        self._waits_no_more.clear()
        while self._waiting_changed and room > 0:
            request_id = next(iter(self._waiting_changed))
            del self._waiting_changed[request_id]
            room -= self._encode_waiting(self._waiting[request_id], report, now_ns)
        for port in sorted(self._loads_changed):
            row = report.loads.add(port=self._number(port, report), rho=self._loads.get(port, 0.0))
            if (use := self._uses.get(port)) is not None:
                row.used.permille.extend(map(_permille, use.classes))
                row.used.unscheduled_permille = _permille(use.unscheduled)
                row.used.passed_permille = _permille(use.passed)
                row.used.bypass_permille = _permille(use.bypass)
        self._loads_changed.clear()
        for unit, demands in self._routed:
            self._encode_demands(demands, report.routed.add(unit=unit), report)
        self._routed.clear()
        for request_id, met in self._outcomes:
            report.outcomes.add(request_id=request_id, met=met)
        self._outcomes.clear()
        if self._tiers_changed and self._tiers is not None:
            _encode_tiers(self._tiers, report.tiers)
            self._tiers_changed = False
        return message

    def end_snapshot(self) -> pb.FromNode:
        """The report after which the coordinator forgets what was not named."""
        return pb.FromNode(report=pb.Report(term=self.term, snapshot_end=True))

    def _encode(self, held: _Held, to: pb.Batch, report: pb.Report, now_ns: int) -> int:
        """Fills `to`. Returns how much of the report's room that takes."""
        batch, passed_ns = held.batch, now_ns - held.reported_ns
        to.batch_id = batch.batch_id
        to.unit = batch.unit
        to.compute_left_ns = min(max(0, batch.compute_left_ns), BUDGET_MAX_NS)
        used = 1 + self._encode_demands(batch.collectives, to, report)
        for request in batch.requests:
            row = to.requests.add(request_id=request.request_id)
            if request.budget_left_ns is not None:
                left_ns = request.budget_left_ns - passed_ns
                row.budget_left_ns = min(max(-BUDGET_MAX_NS, left_ns), BUDGET_MAX_NS)
            row.relegated = request.relegated
            used += 1 + self._encode_demands(request.demands, row, report)
        return used

    def _encode_waiting(self, held: _Waiting, report: pb.Report, now_ns: int) -> int:
        request = held.request
        row = report.waiting.add(
            request_id=request.request_id,
            rank=request.rank,
            tokens_left=request.tokens_left,
            relegated=request.relegated,
            engine=request.engine,
        )
        if request.budget_left_ns is not None:
            left_ns = request.budget_left_ns - (now_ns - held.reported_ns)
            row.budget_left_ns = min(max(-BUDGET_MAX_NS, left_ns), BUDGET_MAX_NS)
        return 1 + self._encode_demands(request.demands, row, report)

    def _encode_demands(
        self, demands: Iterable[PortDemand], to: pb.Batch | pb.Request | pb.Routing | pb.Waiting, report: pb.Report
    ) -> int:
        """Leaves out demands of 0 bytes or less."""
        used = 0
        for demand in demands:
            if 0 < demand.size_bytes <= U64_MAX:
                to.port.append(self._number(demand.port, report))
                to.size_bytes.append(demand.size_bytes)
                used += 1
        return used

    def _number(self, port: str, report: pb.Report) -> int:
        number = self._numbers.get(port)
        if number is None:
            number = self._numbers[port] = len(self._numbers)
            report.ports.add(number=number, name=port)
        return number

    # ---- from the coordinator --------------------------------------------------------------------

    def follow(self, authority: str, term: int, now_ns: int) -> bool:
        """Follows the leader of that term. False if a newer leader of the same authority is known."""
        if authority == self.authority and term < self.term:
            self.stale += 1
            return False
        self.authority, self.term, self.epoch, self.received_ns = authority, term, 0, now_ns
        return True

    def received(self, term: int, now_ns: int) -> bool:
        """Records a sign of life from the leader of that term. False if another leader is followed."""
        if term != self.term:
            self.stale += 1
            return False
        self.received_ns = now_ns
        return True

    def apply(self, order: pb.Order, now_ns: int) -> OrderChange | None:
        """Takes an order over. None if it is stale and must not be applied."""
        if not self.received(order.term, now_ns):
            return None
        if order.epoch < self.epoch:
            self.stale += 1
            return None
        self.epoch = order.epoch
        before = dict(self._ranks)
        verdicts = self._verdicts_now()
        if order.snapshot:
            self._keys.clear()
            self._verdicts.clear()
            verdicts = (set(), set())
        self._has_order = True
        for batch_id, key in zip(order.batch_id, order.key, strict=False):
            if batch_id in self._batches:  # the batch may have departed meanwhile
                self._keys[batch_id] = key
        for refused in order.refused:
            self._keys.pop(refused.batch_id, None)
        for batch_id, request_id in zip(order.restored_batch_id, order.restored_request_id, strict=False):
            self._acquit(batch_id, request_id)
        for row in order.pruned:
            port = one_line(row.port, NAME_LENGTH_MAX)
            self._judge(row.batch_id, row.request_id, _Verdict(row.for_batch, port, relegated=row.relegated))
        for lost in order.infeasible:
            self._judge(lost.batch_id, lost.request_id, _Verdict(lost.batch_id, "", infeasible=True))
        self._ranks = {b: i for i, b in enumerate(sorted(self._keys, key=lambda b: (self._keys[b], b)))}
        changed = self._ranks if order.snapshot else {b: r for b, r in self._ranks.items() if before.get(b) != r}
        return self._change(changed, verdicts, complete=order.snapshot)

    def promises(self, message: pb.Promises, now_ns: int) -> dict[str, Promise] | None:
        """What is promised, by port. None if the message is from another leader."""
        if not self.received(message.term, now_ns):
            return None
        names = list(self._numbers)  # in the order of their numbers
        rows = zip(message.port, message.owed_ns, message.rate_bytes_per_s, strict=False)
        return {
            names[port]: Promise(min(owed_ns, BUDGET_MAX_NS), rate) for port, owed_ns, rate in rows if port < len(names)
        }

    def hold_for(self, least_ns: int) -> bool:
        """Extends the order's time to live to at least this. True if that is more than the configured time."""
        self.ttl_ns = max(self._ttl_configured_ns, least_ns)
        return self.ttl_ns > self._ttl_configured_ns

    def expires_in_ns(self, now_ns: int) -> int:
        """No order expires within this time."""
        if not self._has_order or self.received_ns is None:
            return self._ttl_configured_ns
        return max(1, self.received_ns + self.ttl_ns + 1 - now_ns)

    def expire(self, now_ns: int) -> bool:
        """True once, when the order's time to live has passed. From then on there is no order."""
        if not self._has_order or self.received_ns is None or now_ns - self.received_ns <= self.ttl_ns:
            return False
        self._has_order = False
        self._keys.clear()
        self._ranks.clear()
        self._verdicts.clear()
        return True

    def why_pruned(self, request_id: int) -> str | None:
        for why in sorted(self._verdicts.get(request_id, {}).values(), key=lambda why: why.infeasible):
            return _sentence(why)
        return None

    def last_verdict(self, request_id: int) -> str | None:
        """Why the request is or was pruned or infeasible. Known only for the latest such requests."""
        return self.why_pruned(request_id) or self._said.get(request_id)

    def _judge(self, batch_id: int, request_id: int, verdict: _Verdict) -> None:
        if batch_id in self._batches:  # the batch may have departed meanwhile
            self._verdicts.setdefault(request_id, {})[batch_id] = verdict
            self._said.pop(request_id, None)
            self._said[request_id] = _sentence(verdict)
            while len(self._said) > SAID_MAX:
                del self._said[next(iter(self._said))]

    def _acquit(self, batch_id: int, request_id: int) -> None:
        batches = self._verdicts.get(request_id, {})
        if batches.pop(batch_id, None) is not None and not batches:
            del self._verdicts[request_id]

    def _verdicts_now(self) -> tuple[set[int], set[int]]:
        """Requests that are pruned in any batch, and those that are infeasible in any."""
        verdicts = [(request, why) for request, batches in self._verdicts.items() for why in batches.values()]
        return {r for r, why in verdicts if not why.infeasible}, {r for r, why in verdicts if why.infeasible}

    def _change(
        self, ranks: Mapping[int, int], before: tuple[set[int], set[int]], *, complete: bool = False
    ) -> OrderChange:
        pruned, infeasible = self._verdicts_now()
        return OrderChange(
            term=self.term,
            epoch=self.epoch,
            complete=complete,
            ranks=dict(ranks),
            pruned_added=tuple(sorted(pruned - before[0])),
            pruned_removed=tuple(sorted(before[0] - pruned)),
            infeasible_added=tuple(sorted(infeasible - before[1])),
            infeasible_removed=tuple(sorted(before[1] - infeasible)),
        )
