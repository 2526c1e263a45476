"""The leader's state: who reports which batches, their order, and what each daemon has still to be told.

Pure: events go in, each with the time; `take` gives what one daemon must hear. No I/O and no clock. Every bad input
has one answer, counted in `oddities` (docs/internals/coordinator.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from mfsd.coordinator.planner import Change, Planner, new_planner
from mfsd.coordinator.ports import PortTable, RoutingHistory
from mfsd.policy.attainment import Attainment
from mfsd.policy.config import PolicyConfig
from mfsd.policy.red import robust_effective_deadline
from mfsd.policy.result import Batch, Pruned, Request
from mfsd.proto.wire import REQUESTS_PER_BATCH_MAX

RESOURCES_MIN = 1_024
NO_DEADLINE_NS = 3_600_000_000_000
"""A batch in which nobody has a deadline is ordered as if due in an hour."""
DEADLINE_JITTER_NS = 10_000_000
"""Deadlines are reckoned from remaining budgets, which messages delay by differing times. A new value this close to
the old one is the same deadline, and the earlier of the two is nearer to the truth."""
BUDGET_MAX_NS = 1_000_000_000_000_000
"""Eleven days: longer budgets and computes are cut, so that no sum of a core overflows."""
LATE_TICK_NS = 2_000_000_000
"""A tick that is this late means that this process was stopped: daemons had no chance to come back meanwhile."""


class RequestReport(NamedTuple):
    request_id: int
    budget_left_ns: int | None
    demands: Mapping[int, int]
    """Port number -> bytes."""


class BatchReport(NamedTuple):
    """What one node says of one batch."""

    batch_id: int
    unit: str
    compute_left_ns: int
    requests: Sequence[RequestReport]
    collectives: Mapping[int, int]


class Entry(NamedTuple):
    """One pruned request, and why."""

    batch_id: int
    request_id: int
    for_batch: int
    port: int


class Delta(NamedTuple):
    """What one daemon has not heard yet. `snapshot`: it is everything."""

    epoch: int
    snapshot: bool
    keys: list[tuple[int, int]]
    """Batch, key: smaller first, then by batch."""
    pruned: list[Entry]
    infeasible: list[tuple[int, int]]
    """Batch, request."""
    restored: list[tuple[int, int]]
    """Batch, request: neither pruned nor infeasible any more."""
    refused: list[tuple[int, str]]


class Node(Struct):
    """A daemon that is connected, or was until a moment ago."""

    name: str
    connected: bool = True
    lost_ns: int = 0
    ports: tuple[int, ...] = ()
    batches: dict[int, None] = {}
    unconfirmed: dict[int, None] = {}
    """Reported before the reconnection and not since."""
    synchronised: bool = False
    """Its snapshot is complete, so it can be told the order."""
    snapshot: bool = False
    keys: dict[int, None] = {}
    judged: dict[tuple[int, int], None] = {}
    refused: dict[int, str] = {}


class _Told(NamedTuple):
    unit: str
    compute_ns: int
    requests: dict[int, tuple[int | None, Mapping[int, int]]]
    """Request -> deadline on this coordinator's clock, bytes per port."""
    collectives: Mapping[int, int]

    def uses(self, ports: set[int]) -> bool:
        return not ports.isdisjoint(self.collectives) or any(
            not ports.isdisjoint(demands) for _, demands in self.requests.values()
        )


class Active(Struct):
    """One batch, and what each node says of it."""

    batch_id: int
    told: dict[str, _Told] = {}
    numbers: dict[int, int] = {}
    """Request -> its number in the core: a request may be in two batches at once, between two chunks."""
    key_ns: int = 0
    compute_first_ns: int = 0

    @property
    def unit(self) -> str:
        return next((t.unit for t in self.told.values() if t.unit), "")


class Cluster:
    def __init__(self, policy: PolicyConfig, rate_default_bytes_per_s: int, grace_ns: int) -> None:
        """grace_ns: how long the batches of a lost daemon stay."""
        self.policy = policy
        self.grace_ns = grace_ns
        self.ports = PortTable(rate_default_bytes_per_s)
        self.history = RoutingHistory()
        self.epoch = 0
        self.events = 0
        self.oddities: Counter[str] = Counter()
        self.attainment = Attainment()
        self.nodes: dict[str, Node] = {}
        self.batches: dict[int, Active] = {}
        self.dirty: set[str] = set()
        """Nodes for which `take` has something new."""
        self._resources = RESOURCES_MIN
        self.planner: Planner = new_planner(policy, self._resources)
        self._numbers_given = 0
        self._owner: dict[int, tuple[int, int]] = {}
        self._pruned: dict[int, Pruned] = {}
        self._infeasible: set[int] = set()
        self._now_ns = 0
        self._tick_ns: int | None = None

    # ---- daemons come and go ---------------------------------------------------------------------

    def connect(self, name: str, ports: Mapping[str, int], now_ns: int) -> None:
        """A daemon says hello; its snapshot follows. PortsExhausted."""
        self._time(now_ns)
        numbers = tuple(self.ports.declare(port, rate) for port, rate in ports.items())
        node = self.nodes.setdefault(name, Node(name))
        node.ports = numbers
        node.connected, node.synchronised, node.unconfirmed = True, False, dict(node.batches)

    def synchronise(self, name: str, now_ns: int) -> None:
        """The daemon's snapshot is complete: what it did not name is gone, and it is told everything."""
        now_ns = self._time(now_ns)
        node = self.nodes[name]
        for batch_id in list(node.unconfirmed):
            self._withdraw(node, batch_id, now_ns)
        node.unconfirmed.clear()
        node.synchronised = node.snapshot = True
        self.dirty.add(name)

    def disconnect(self, name: str, now_ns: int) -> None:
        """The daemon's stream has ended. Its batches stay for the grace."""
        node = self.nodes.get(name)
        if node is not None:
            node.connected, node.synchronised, node.lost_ns = False, False, self._time(now_ns)
            self.dirty.discard(name)

    def tick(self, now_ns: int) -> None:
        """Ends graces, reckons anew with rates that came later than loads. To be called a few times a second."""
        now_ns = self._time(now_ns)
        if changed := self.ports.take_changed():
            self._reckon(changed, now_ns)
        gap_ns = 0 if self._tick_ns is None else now_ns - self._tick_ns
        self._tick_ns = now_ns
        for node in [n for n in self.nodes.values() if not n.connected]:
            if gap_ns > LATE_TICK_NS:
                node.lost_ns += gap_ns
            if now_ns - node.lost_ns >= self.grace_ns:
                for batch_id in list(node.batches):
                    self._withdraw(node, batch_id, now_ns)
                self.history.forget(node.name)
                del self.nodes[node.name]

    # ---- what daemons report ---------------------------------------------------------------------

    def arrive(self, name: str, report: BatchReport, now_ns: int) -> None:
        """A batch begins at this node. One that has begun already is updated."""
        node = self.nodes[name]
        if report.batch_id in node.batches and report.batch_id not in node.unconfirmed:
            self.oddities["duplicate arrival: taken as update"] += 1
        self._put(node, report, self._time(now_ns))

    def update(self, name: str, report: BatchReport, now_ns: int) -> None:
        """What is left of a batch. One that has not begun, begins."""
        node = self.nodes[name]
        if report.batch_id not in node.batches:
            self.oddities["update of an unknown batch: taken as arrival"] += 1
        self._put(node, report, self._time(now_ns))

    def depart(self, name: str, batch_id: int, now_ns: int) -> None:
        """A batch has ended at this node. One that is unknown is ignored."""
        now_ns = self._time(now_ns)
        node = self.nodes[name]
        if batch_id not in node.batches:
            self.oddities["departure of an unknown batch: ignored"] += 1
            return
        self.events += 1
        self._withdraw(node, batch_id, now_ns)

    def load(self, port: int, rho: float) -> None:
        if not self.ports.load(port, rho):
            self.oddities["load that is negative or not a number: ignored"] += 1

    def judged(self, request_id: int, met: bool, now_ns: int) -> None:
        """A request has ended at a node."""
        self.attainment.judge(request_id, met, self._time(now_ns))

    def odd(self, name: str, batch_id: int, reason: str) -> None:
        """A report that cannot be read: nothing changes, and the daemon is told."""
        self.oddities["batch refused"] += 1
        self.nodes[name].refused[batch_id] = reason
        self._mark(self.nodes[name])

    # ---- what daemons are told -------------------------------------------------------------------

    def take(self, name: str) -> Delta | None:
        """What this daemon has not been told; None when there is nothing, or its snapshot is not complete."""
        node = self.nodes.get(name)
        if node is None or not node.synchronised:
            return None
        keys: Iterable[int] = node.batches if node.snapshot else node.keys
        judged: Iterable[tuple[int, int]] = node.judged
        if node.snapshot:
            judged = [(b, r) for b in node.batches for r in self.batches[b].numbers]
        elif not (node.keys or node.judged or node.refused):
            return None
        delta = Delta(self.epoch, node.snapshot, [], [], [], [], list(node.refused.items()))
        delta.keys.extend((b, self.batches[b].key_ns) for b in keys if b in node.batches)
        for batch_id, request_id in judged:
            active = self.batches.get(batch_id)
            number = active.numbers.get(request_id) if active is not None else None
            pruned = self._pruned.get(number) if number is not None else None
            if pruned is not None:
                delta.pruned.append(self._entry(pruned))
            elif number in self._infeasible:
                delta.infeasible.append((batch_id, request_id))
            elif not node.snapshot:
                delta.restored.append((batch_id, request_id))
        node.snapshot = False
        node.keys, node.judged, node.refused = {}, {}, {}
        self.dirty.discard(name)
        return delta

    def order(self) -> list[Active]:
        """All batches, first served first."""
        return sorted(self.batches.values(), key=lambda active: (active.key_ns, active.batch_id))

    def pruned(self) -> list[Entry]:
        return sorted(map(self._entry, self._pruned.values()))

    def infeasible(self) -> list[tuple[int, int]]:
        """Batch, request."""
        return sorted(self._owner[number] for number in self._infeasible)

    def requests_active(self) -> int:
        return len(self._owner)

    @property
    def now_ns(self) -> int:
        """Of the latest event or tick."""
        return self._now_ns

    def red_left_ns(self, active: Active) -> int:
        return active.key_ns - self._now_ns

    def replace_policy(self, policy: PolicyConfig, now_ns: int) -> None:
        """Orders everything afresh under another policy; an epoch of its own."""
        self.policy = policy
        self._rebuild(self._time(now_ns))

    # ---- inside ----------------------------------------------------------------------------------

    def _time(self, now_ns: int) -> int:
        """Time never runs back here, whatever the caller's clock does."""
        self._now_ns = max(self._now_ns, now_ns)
        return self._now_ns

    def _mark(self, node: Node) -> None:
        if node.synchronised:
            self.dirty.add(node.name)

    def _put(self, node: Node, report: BatchReport, now_ns: int) -> None:
        self.events += 1
        node.unconfirmed.pop(report.batch_id, None)
        problem = _problem(report)
        if problem is not None:
            self.odd(node.name, report.batch_id, problem)
            return
        self._make_room(now_ns)
        known = self.batches.get(report.batch_id)
        active = known or Active(report.batch_id)
        before = active.told.get(node.name)
        active.told[node.name] = _told(report, before, now_ns)
        active.compute_first_ns = max(active.compute_first_ns, active.told[node.name].compute_ns)
        batch, key_ns, numbers = self._merged(active, now_ns)
        try:
            change = (self.planner.update if known else self.planner.arrive)(batch, now_ns)
        except ValueError as error:  # more is promised on a port than the core can count
            if before is not None:
                active.told[node.name] = before
            else:
                del active.told[node.name]
            self.odd(node.name, report.batch_id, str(error))
            return
        self.batches[active.batch_id] = active
        if active.batch_id not in node.batches:
            node.batches[active.batch_id] = node.keys[active.batch_id] = None
            for request_id, number in active.numbers.items():  # others may have reported it before
                if number in self._pruned or number in self._infeasible:
                    node.judged[active.batch_id, request_id] = None
            self._mark(node)
        node.refused.pop(active.batch_id, None)
        self._settle(active, key_ns, numbers, change)

    def _reckon(self, changed: set[int], now_ns: int) -> None:
        """Batches are often told before the daemons at the other ends of their flows: all of them are, to a new
        leader. Done together, since it looks at every batch."""
        for active in list(self.batches.values()):
            if not any(told.uses(changed) for told in active.told.values()):
                continue
            batch, key_ns, numbers = self._merged(active, now_ns)
            try:
                change = self.planner.update(batch, now_ns)
            except ValueError:  # more than the core can count: it stays as it was taken
                self.oddities["slower port: the batch is kept as it was"] += 1
                continue
            self._settle(active, key_ns, numbers, change)

    def _withdraw(self, node: Node, batch_id: int, now_ns: int) -> None:
        """This node has nothing of the batch any more. The last one to leave ends it."""
        for pending in (node.batches, node.unconfirmed, node.keys):
            pending.pop(batch_id, None)
        for judged in [j for j in node.judged if j[0] == batch_id]:
            del node.judged[judged]
        active = self.batches[batch_id]
        del active.told[node.name]
        if active.told:
            batch, key_ns, numbers = self._merged(active, now_ns)
            self._settle(active, key_ns, numbers, self.planner.update(batch, now_ns))
            return
        del self.batches[batch_id]
        for number in active.numbers.values():
            del self._owner[number]
            self._acquit(number)
        self.epoch += 1
        self._apply(self.planner.depart(batch_id, now_ns))

    def _settle(self, active: Active, key_ns: int, numbers: dict[int, int], change: Change) -> None:
        """The core has taken the batch as it is now: notes what that means, for each daemon."""
        self.epoch += 1
        for request_id, number in active.numbers.items():
            if request_id not in numbers:
                del self._owner[number]
                if self._acquit(number):
                    self._judged(active.batch_id, request_id)
        for request_id, number in numbers.items():
            self._owner[number] = (active.batch_id, request_id)
        active.numbers = numbers
        if key_ns != active.key_ns:
            active.key_ns = key_ns
            for name in active.told:
                self.nodes[name].keys[active.batch_id] = None
                self._mark(self.nodes[name])
        self._apply(change)

    def _merged(self, active: Active, now_ns: int) -> tuple[Batch, int, dict[int, int]]:
        """The batch as the core takes it, its RED, and its requests' numbers there, which those that stay keep.
        Demands add up; the earliest deadline and the longest compute hold. A request without a deadline counts as
        its batch's last."""
        deadlines: dict[int, int | None] = {}
        loads: dict[int, dict[int, int]] = {}
        time_ns = self.ports.time_ns
        for told in active.told.values():
            for request_id, (deadline_ns, demands) in told.requests.items():
                known = deadlines.get(request_id)
                if known is None or (deadline_ns is not None and deadline_ns < known):
                    deadlines[request_id] = deadline_ns
                amounts = loads.setdefault(request_id, {})
                for port, size in demands.items():
                    amounts[port] = amounts.get(port, 0) + time_ns(port, size)
        given = [d for d in deadlines.values() if d is not None]
        latest_ns = max(given) if given else now_ns + NO_DEADLINE_NS
        numbers = {r: active.numbers.get(r) or self._new_number() for r in deadlines}
        requests = tuple(
            Request(numbers[request_id], latest_ns if deadline_ns is None else deadline_ns, loads[request_id])
            for request_id, deadline_ns in deadlines.items()
        )
        compute_ns = max(t.compute_ns for t in active.told.values())
        batch = Batch(active.batch_id, requests, compute_ns, self._collectives(active, compute_ns))
        key_ns = robust_effective_deadline(r.deadline_ns for r in requests).red_ns
        return batch, active.key_ns if not given and active.key_ns else key_ns, numbers

    def _new_number(self) -> int:
        self._numbers_given += 1
        return self._numbers_given

    def _collectives(self, active: Active, compute_ns: int) -> dict[int, int]:
        """Time on each port of what pruning cannot take away: as declared, else as the unit's history says of the
        part that is still to compute."""
        total: dict[int, int] = {}
        for told in active.told.values():
            for port, size in told.collectives.items():
                total[port] = total.get(port, 0) + self.ports.time_ns(port, size)
        if total or not (history := self.history.estimate(active.unit)):
            return total
        share = compute_ns / active.compute_first_ns if active.compute_first_ns else 1.0
        return {port: self.ports.time_ns(port, int(size * share)) for port, size in history.items()}

    def _apply(self, change: Change) -> None:
        for pruned in change.pruned:
            if self._pruned.get(pruned.request_id) != pruned:
                self._pruned[pruned.request_id] = pruned
                self._judged(*self._owner[pruned.request_id])
            self._infeasible.discard(pruned.request_id)
        for number in change.infeasible:
            if number not in self._infeasible:
                self._infeasible.add(number)
                self._judged(*self._owner[number])
            self._pruned.pop(number, None)
        for number in change.restored:
            if self._acquit(number):
                self._judged(*self._owner[number])

    def _acquit(self, number: int) -> bool:
        """The request is no longer pruned or infeasible, if it was."""
        infeasible = number in self._infeasible
        self._infeasible.discard(number)
        return self._pruned.pop(number, None) is not None or infeasible

    def _judged(self, batch_id: int, request_id: int) -> None:
        """The nodes of this batch must hear whether the request is pruned."""
        for name in self.batches[batch_id].told:
            self.nodes[name].judged[batch_id, request_id] = None
            self._mark(self.nodes[name])

    def _entry(self, pruned: Pruned) -> Entry:
        batch_id, request_id = self._owner[pruned.request_id]
        return Entry(batch_id, request_id, pruned.for_batch, pruned.resource)

    def _make_room(self, now_ns: int) -> None:
        """For ports that were spoken of since the core was made."""
        if len(self.ports) > self._resources:
            while self._resources < len(self.ports):
                self._resources *= 2
            self._rebuild(now_ns)

    def _rebuild(self, now_ns: int) -> None:
        """A new core from what the nodes have told: for more ports, or another policy."""
        was_judged = [self._owner[number] for number in (*self._pruned, *self._infeasible)]
        self.planner = new_planner(self.policy, self._resources)
        self._pruned.clear()
        self._infeasible.clear()
        for active in self.order():
            batch, key_ns, numbers = self._merged(active, now_ns)
            self._settle(active, key_ns, numbers, self.planner.arrive(batch, now_ns))
        for batch_id, request_id in was_judged:
            self._judged(batch_id, request_id)
        self.epoch += 1


def _problem(report: BatchReport) -> str | None:
    """Why a report cannot be taken."""
    if not report.requests:
        return "it has no requests: report at least one, or let the batch depart"
    if len(report.requests) > REQUESTS_PER_BATCH_MAX:
        return f"it has {len(report.requests)} requests: a batch has at most {REQUESTS_PER_BATCH_MAX}"
    if len({r.request_id for r in report.requests}) != len(report.requests):
        return "it names a request twice"
    return None


def _told(report: BatchReport, before: _Told | None, now_ns: int) -> _Told:
    requests: dict[int, tuple[int | None, Mapping[int, int]]] = {}
    for request in report.requests:
        deadline_ns = None
        if request.budget_left_ns is not None:
            deadline_ns = now_ns + min(max(-BUDGET_MAX_NS, request.budget_left_ns), BUDGET_MAX_NS)
            old = before.requests.get(request.request_id) if before is not None else None
            if old is not None and old[0] is not None and abs(old[0] - deadline_ns) <= DEADLINE_JITTER_NS:
                deadline_ns = min(old[0], deadline_ns)
        requests[request.request_id] = (deadline_ns, request.demands)
    return _Told(report.unit, min(report.compute_left_ns, BUDGET_MAX_NS), requests, report.collectives)
