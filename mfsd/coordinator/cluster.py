"""The leader's state: who reports which batches, their order, and what each daemon has still to be sent.

Pure, without I/O and clock: events come in with their times, and `take` returns what one daemon must be sent. Every bad
input has one answer, counted in `oddities` (docs/internals/coordinator.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice

from mfsd.coordinator.history import History
from mfsd.coordinator.planner import Change, Planner, new_planner
from mfsd.coordinator.ports import IDLE, PortTable, RoutingHistory, Use, moved
from mfsd.coordinator.state import (
    RELEGATED,
    Active,
    BatchReport,
    Delta,
    Entry,
    Node,
    Reported,
    beyond_limits,
    count,
    problem,
    reported_by,
)
from mfsd.coordinator.tiers import TierTable
from mfsd.coordinator.waiting import WaitingReport, WaitingRequests
from mfsd.policy.attainment import Attainment
from mfsd.policy.config import PolicyConfig
from mfsd.policy.red import robust_effective_deadline
from mfsd.policy.request_tiers import NodeTiers
from mfsd.policy.result import Batch, Pruned, Request

RESOURCES_MIN = 1_024
NO_DEADLINE_NS = 3_600_000_000_000
"""A batch without any deadline is ordered as if due in an hour."""
REFUSALS_MAX = 1_024
"""Limit of the refused batches kept for a daemon's report. More would only pile up if the daemon does not read."""
RECKONED_PER_TICK = 1_000
"""Batches recomputed in one tick: some ten microseconds each."""
TICK_NS = 250_000_000
"""Interval of ticks while there is work for them."""
LATE_TICK_NS = 2_000_000_000
"""A tick this late means that this process was stopped, so daemons had no chance to reconnect meanwhile."""


class Cluster:
    def __init__(
        self, policy: PolicyConfig, rate_default_bytes_per_s: int, grace_ns: int, past: History | None = None
    ) -> None:
        """grace_ns: how long the batches of a lost daemon stay. past: the history taken over from former leaders."""
        self.past = past or History()
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
        self.waiting = WaitingRequests()
        self.tiers = TierTable()
        self.touched: set[int] = set()
        """Ports at which what is owed may have changed; the caller clears it."""
        self.dirty: set[str] = set()
        """Nodes for which `take` has something new."""
        self._resources = RESOURCES_MIN
        self.planner: Planner = new_planner(policy, self._resources)
        self._numbers_given = 0
        self._owner: dict[int, tuple[int, int]] = {}
        self._pruned: dict[int, Pruned] = {}
        self._infeasible: set[int] = set()
        self._relegated: set[int] = set()
        self._spent = 0
        self._now_ns = 0
        self._lost: dict[str, None] = {}
        """Nodes whose grace period is running."""
        self._tick_ns = 0
        self._planned_ns = 0
        """When the core last evaluated everything."""
        self._held = False
        self._rates_changed: set[int] = set()
        self._reckoned_for: set[int] = set()
        self._to_reckon: dict[int, None] = {}

    # ---- daemons come and go ---------------------------------------------------------------------

    def connect(self, name: str, ports: Mapping[str, int], now_ns: int) -> None:
        """A daemon says hello; its snapshot follows. Raises PortsExhausted."""
        self._time(now_ns)
        numbers = tuple(self.ports.declare(port, rate) for port, rate in ports.items())
        node = self.nodes.setdefault(name, Node(name))
        self._lost.pop(name, None)
        node.ports = numbers
        node.connected, node.synchronised, node.unconfirmed = True, False, dict(node.batches)
        self.waiting.connect(name)
        self.tiers.forget(name)

    def synchronise(self, name: str, now_ns: int) -> None:
        """The daemon's snapshot is complete. Batches that it did not contain are removed, and everything is sent to the
        daemon."""
        now_ns = self._time(now_ns)
        node = self.nodes[name]
        node.verdicts.clear()  # all of them are sent anyway
        for batch_id in list(node.unconfirmed):
            self._withdraw(node, batch_id, now_ns)
        node.unconfirmed.clear()
        self.waiting.synchronise(name)
        self._spend()
        node.synchronised = node.snapshot = True
        self.dirty.add(name)

    def disconnect(self, name: str, now_ns: int) -> None:
        """The daemon's stream has ended. Its batches stay for the grace period."""
        node = self.nodes.get(name)
        if node is not None:
            node.connected, node.synchronised, node.lost_ns = False, False, self._time(now_ns)
            self.dirty.discard(name)
            self._lost[name] = None
            self.tiers.forget(name)
            for number in node.ports:
                self.ports.ports[number].use = IDLE  # its daemon no longer reports it

    def due_ns(self) -> int | None:
        """Returns when `tick` next has something to do; None: not before a report or the loss of a daemon.

        Grace periods and recomputation go on from tick to tick. Batches alone need a tick only if no event has
        evaluated them for that long, because requests become late as time passes.
        """
        if self._lost or self._to_reckon or self._rates_changed or self.ports.changed:
            return self._tick_ns + TICK_NS
        return max(self._tick_ns, self._planned_ns) + TICK_NS if self.batches else None

    def tick(self, now_ns: int) -> None:
        """Ends grace periods, recomputes batches whose rates came later than their loads, and finds what is late by
        now. To be called when it is due."""
        now_ns = self._time(now_ns)
        held = self._held
        self.hold()
        self._reckon(now_ns)
        self._end_graces(now_ns)
        self._tick_ns = now_ns
        if not held:
            self.release(now_ns)

    def _end_graces(self, now_ns: int) -> None:
        gap_ns = now_ns - self._tick_ns
        for node in [self.nodes[name] for name in self._lost]:
            if gap_ns > LATE_TICK_NS:
                node.lost_ns = min(node.lost_ns + gap_ns, now_ns)  # a node lost just now waits no longer than usual
            if now_ns - node.lost_ns >= self.grace_ns:
                node.verdicts.clear()  # otherwise each batch that ends would search them all
                for batch_id in list(node.batches):
                    self._withdraw(node, batch_id, now_ns)
                self.history.forget(node.name)
                self.waiting.forget(node.name)
                self._spend()
                del self.nodes[node.name], self._lost[node.name]

    def hold(self) -> None:
        """From now on reports are recorded without planning, until `release` plans once for all of them. Under many
        reports batches then wait for one evaluation instead of one each."""
        if not self._held:
            self._held = True
            self.planner.hold()

    def release(self, now_ns: int) -> None:
        if self._held:
            self._held = False
            self._planned_ns = self._time(now_ns)
            self._apply(self.planner.release(self._planned_ns))

    # ---- what daemons report ---------------------------------------------------------------------

    def arrive(self, name: str, report: BatchReport, now_ns: int) -> None:
        """A batch begins at this node. A batch that has already begun is updated."""
        node = self.nodes[name]
        if report.batch_id in node.batches and report.batch_id not in node.unconfirmed:
            self.oddities["duplicate arrival: taken as update"] += 1
        self._put(node, report, self._time(now_ns))

    def update(self, name: str, report: BatchReport, now_ns: int) -> None:
        """Updates what is left of a batch. A batch that has not begun, begins."""
        node = self.nodes[name]
        if report.batch_id not in node.batches:
            self.oddities["update of an unknown batch: taken as arrival"] += 1
        self._put(node, report, self._time(now_ns))

    def depart(self, name: str, batch_id: int, now_ns: int) -> None:
        """A batch has ended at this node. An unknown batch is ignored."""
        now_ns = self._time(now_ns)
        node = self.nodes[name]
        if batch_id not in node.batches:
            self.oddities["departure of an unknown batch: ignored"] += 1
            return
        self.events += 1
        self._withdraw(node, batch_id, now_ns)

    def waits(self, name: str, report: WaitingReport, now_ns: int) -> None:
        """A request waits at an engine of this node, or something about it has changed."""
        if not self.waiting.put(name, report, self._time(now_ns)):
            self.oddities["more waiting requests of one node than are counted: ignored"] += 1
        self._spend()

    def waits_no_more(self, name: str, request_id: int) -> None:
        self.waiting.remove(name, request_id)
        self._spend()

    def load(self, port: int, rho: float) -> None:
        if not self.ports.load(port, rho):
            self.oddities["load that is negative or not a number: ignored"] += 1

    def used(self, port: int, use: Use) -> None:
        self.ports.ports[port].use = use if use.total() or use.bypass else IDLE

    def has_tiers(self, name: str, found: NodeTiers, sent: bytes) -> None:
        """Replaces what the engines of this node publish about their tiers. Planning does not use it."""
        if self.tiers.put(name, found, sent):
            self.oddities["more tiers of requests than are counted: ignored"] += 1

    def ended(self, name: str, request_id: int, met: bool, now_ns: int) -> None:
        """A request has ended at a node."""
        counted = self.attainment.judge(request_id, met, self._time(now_ns))
        if counted is not None:
            self.past.ended(request_id, met, counted, name)

    def remember(self, now_ns: int) -> None:
        """Records the current state in the history. To be called a few times in each of its intervals."""
        interval = self.past.at(self._time(now_ns))
        through = moved(self.ports.ports)
        interval.batches, interval.requests = len(self.batches), len(self._owner)
        interval.nodes = sum(node.connected for node in self.nodes.values())
        interval.bytes_per_s = through.classes
        interval.unscheduled_bytes_per_s, interval.passed_bytes_per_s = through.unscheduled, through.passed
        interval.busiest_permille = through.busiest_permille
        self.past.given_up(len(self._pruned), len(self._infeasible), self._now_ns)

    def odd(self, name: str, batch_id: int, reason: str) -> None:
        """A report could not be read: nothing changes, and the daemon is sent the reason."""
        self.oddities["batch refused"] += 1
        node = self.nodes[name]
        node.refused[batch_id] = reason
        if len(node.refused) > REFUSALS_MAX:
            del node.refused[next(iter(node.refused))]
        self._mark(node)

    # ---- what daemons are sent -------------------------------------------------------------------

    def take(self, name: str) -> Delta | None:
        """Returns what has not been sent to this daemon yet; None if there is nothing or its snapshot is not
        complete."""
        node = self.nodes.get(name)
        if node is None or not node.synchronised:
            return None
        keys: Iterable[int] = node.batches if node.snapshot else node.keys
        verdicts: Iterable[tuple[int, int]] = node.verdicts
        if node.snapshot:
            verdicts = [(b, r) for b in node.batches for r in self.batches[b].numbers]
        elif not (node.keys or node.verdicts or node.refused):
            return None
        delta = Delta(self.epoch, node.snapshot, [], [], [], [], list(node.refused.items()))
        delta.keys.extend((b, self.batches[b].key_ns) for b in keys if b in node.batches)
        for batch_id, request_id in verdicts:
            active = self.batches.get(batch_id)
            number = active.numbers.get(request_id) if active is not None else None
            pruned = self._pruned.get(number) if number is not None else None
            if pruned is not None:
                delta.pruned.append(self._entry(pruned))
            elif number in self._relegated:
                delta.pruned.append(Entry(batch_id, request_id, batch_id, RELEGATED))
            elif number in self._infeasible:
                delta.infeasible.append((batch_id, request_id))
            elif not node.snapshot:
                delta.restored.append((batch_id, request_id))
        node.snapshot = False
        node.keys, node.verdicts, node.refused = {}, {}, {}
        self.dirty.discard(name)
        return delta

    def order(self) -> list[Active]:
        """All batches, the first to be served first."""
        return sorted(self.batches.values(), key=lambda active: (active.key_ns, active.batch_id))

    def pruned(self) -> list[Entry]:
        """Requests pruned by the order or by their engines."""
        relegated = (self._owner[number] for number in self._relegated)
        return sorted([*map(self._entry, self._pruned.values()), *(Entry(b, r, b, RELEGATED) for b, r in relegated)])

    def owed_ns(self, port: int) -> int:
        """Returns the time that the port needs for all that is promised there and that waiting requests will fetch."""
        return self.planner.promised_ns(port) + self.ports.time_ns(port, self.waiting.size_bytes(port))

    def owed_before_ns(self, port: int, deadline_ns: int) -> int:
        """The part of `owed_ns` that goes before something with this deadline."""
        waiting = self.waiting.size_bytes_before(port, deadline_ns)
        return self.planner.promised_ns(port, deadline_ns) + self.ports.time_ns(port, waiting)

    def infeasible(self) -> list[tuple[int, int]]:
        """Returns (batch, request) of each infeasible request."""
        return sorted(self._owner[number] for number in self._infeasible)

    def requests_of(self, batch_id: int) -> list[tuple[int, int | None, int, int, int]]:
        """Returns the requests of one batch by deadline: request, deadline, bytes still to move, the port on which they
        take longest, and the time there."""
        active = self.batches.get(batch_id)
        merged: dict[int, tuple[int | None, dict[int, int]]] = {}
        for reported in active.reported.values() if active is not None else ():
            for request_id, (deadline_ns, demands) in reported.requests.items():
                before_ns, sizes = merged.get(request_id, (None, {}))
                for port, size in demands.items():
                    sizes[port] = sizes.get(port, 0) + size
                known = [d for d in (before_ns, deadline_ns) if d is not None]
                merged[request_id] = (min(known) if known else None, sizes)
        found = []
        for request_id, (deadline_ns, sizes) in merged.items():
            longest = max(((self.ports.time_ns(p, size), p) for p, size in sizes.items()), default=(0, -1))
            found.append((request_id, deadline_ns, sum(sizes.values()), longest[1], longest[0]))
        return sorted(found, key=lambda row: (row[1] is None, row[1] or 0, row[0]))

    def requests_active(self) -> int:
        return len(self._owner)

    def advance(self, now_ns: int) -> None:
        """Sets the time as of which the following questions are answered."""
        self._time(now_ns)

    @property
    def now_ns(self) -> int:
        """Time of the latest event, tick or advance."""
        return self._now_ns

    def red_left_ns(self, active: Active) -> int:
        return active.key_ns - self._now_ns

    def replace_policy(self, policy: PolicyConfig, now_ns: int) -> None:
        """Orders everything anew under another policy, in an epoch of its own."""
        self.policy = policy
        self._rebuild(self._time(now_ns))

    # ---- inside ----------------------------------------------------------------------------------

    def _time(self, now_ns: int) -> int:
        """Advances the time, which never goes back here, whatever the caller's clock does."""
        self._now_ns = max(self._now_ns, now_ns)
        return self._now_ns

    def _mark(self, node: Node) -> None:
        if node.synchronised:
            self.dirty.add(node.name)

    def _put(self, node: Node, report: BatchReport, now_ns: int) -> None:
        self.events += 1
        node.unconfirmed.pop(report.batch_id, None)
        refusal = problem(report) or beyond_limits(node, self.batches, report)
        if refusal is not None:
            self.odd(node.name, report.batch_id, refusal)
            return
        self._make_room(now_ns)
        known = self.batches.get(report.batch_id)
        active = known or Active(report.batch_id)
        before = active.reported.get(node.name)
        active.reported[node.name] = reported_by(report, before, now_ns)
        active.compute_first_ns = max(active.compute_first_ns, active.reported[node.name].compute_ns)
        batch, key_ns, numbers = self._merged(active, now_ns)
        try:
            change = (self.planner.update if known else self.planner.arrive)(batch, now_ns)
        except ValueError as error:  # more is promised on a port than the core can count
            if before is not None:
                active.reported[node.name] = before
            else:
                del active.reported[node.name]
            self.odd(node.name, report.batch_id, str(error))
            return
        self.batches[active.batch_id] = active
        self._touch(before)
        self._touch(active.reported[node.name])
        count(node, before, -1)
        count(node, active.reported[node.name], 1)
        if active.batch_id not in node.batches:
            node.batches[active.batch_id] = node.keys[active.batch_id] = None
            for request_id, number in active.numbers.items():  # other nodes may have reported it before
                if number in self._pruned or number in self._infeasible or number in self._relegated:
                    node.verdicts[active.batch_id, request_id] = None
            self._mark(node)
        node.refused.pop(active.batch_id, None)
        self._settle(active, key_ns, numbers, change)

    def _reckon(self, now_ns: int) -> None:
        """Recomputes batches after rates of ports have changed: batches are often reported before the daemons at the
        other ends of their flows, and to a new leader all are. Limited for each tick, because the lease of the leader
        waits meanwhile."""
        changed = self.ports.take_changed()
        self._rates_changed |= changed
        self.touched |= changed
        if not self._to_reckon:
            if not self._rates_changed:
                return
            self._to_reckon = dict.fromkeys(self.batches)
            self._reckoned_for, self._rates_changed = self._rates_changed, set()
        for batch_id in list(islice(self._to_reckon, RECKONED_PER_TICK)):
            del self._to_reckon[batch_id]
            active = self.batches.get(batch_id)
            if active is None or not any(reported.uses(self._reckoned_for) for reported in active.reported.values()):
                continue
            batch, key_ns, numbers = self._merged(active, now_ns)
            try:
                change = self.planner.update(batch, now_ns)
            except ValueError:  # more than the core can count: the batch stays as it was
                self.oddities["slower port: the batch is kept as it was"] += 1
                continue
            self.touched |= self._reckoned_for
            self._settle(active, key_ns, numbers, change)

    def _withdraw(self, node: Node, batch_id: int, now_ns: int) -> None:
        """Removes the batch from this node. It ends with the last node that leaves it."""
        for pending in (node.batches, node.unconfirmed, node.keys):
            pending.pop(batch_id, None)
        for verdicts in [j for j in node.verdicts if j[0] == batch_id]:
            del node.verdicts[verdicts]
        active = self.batches[batch_id]
        self._touch(active.reported[node.name])
        count(node, active.reported.pop(node.name), -1)
        if active.reported:
            batch, key_ns, numbers = self._merged(active, now_ns)
            self._settle(active, key_ns, numbers, self.planner.update(batch, now_ns))
            return
        del self.batches[batch_id]
        for number in active.numbers.values():
            del self._owner[number]
            self._relegated.discard(number)
            self._acquit(number)
        self._spend()
        self.epoch += 1
        self._apply(self.planner.depart(batch_id, now_ns))

    def _touch(self, reported: Reported | None) -> None:
        if reported is not None:
            self.touched.update(reported.collectives, *(demands for _, demands in reported.requests.values()))

    def _spend(self) -> None:
        """Passes on how much of the drop budget the engines have spent: they share it with the order."""
        spent = len(self._relegated) + self.waiting.relegated
        if spent != self._spent:
            self._spent = spent
            self.planner.spend(spent)

    def _settle(self, active: Active, key_ns: int, numbers: dict[int, int], change: Change) -> None:
        """Records, for each daemon, what follows from the core's acceptance of the batch as it is now."""
        self.epoch += 1
        for request_id, number in active.numbers.items():
            if request_id not in numbers:
                del self._owner[number]
                relegated = number in self._relegated
                self._relegated.discard(number)
                if self._acquit(number) or relegated:
                    self._verdict_changed(active.batch_id, request_id)
        for request_id, number in numbers.items():
            self._owner[number] = (active.batch_id, request_id)
        active.numbers = numbers
        self._settle_relegated(active)
        if key_ns != active.key_ns:
            active.key_ns = key_ns
            for name in active.reported:
                self.nodes[name].keys[active.batch_id] = None
                self._mark(self.nodes[name])
        self._apply(change)

    def _settle_relegated(self, active: Active) -> None:
        relegated = frozenset[int]().union(*(reported.relegated for reported in active.reported.values()))
        for request_id, number in active.numbers.items():
            if (request_id in relegated) != (number in self._relegated):
                (self._relegated.add if request_id in relegated else self._relegated.discard)(number)
                self._verdict_changed(active.batch_id, request_id)
        self._spend()

    def _merged(self, active: Active, now_ns: int) -> tuple[Batch, int, dict[int, int]]:
        """Returns the batch as the core takes it, its RED, and the numbers of its requests in the core, which remaining
        requests keep. Demands add up; the earliest deadline and the longest compute time count. A request without a
        deadline has the latest one of its batch."""
        deadlines: dict[int, int | None] = {}
        loads: dict[int, dict[int, int]] = {}
        time_ns = self.ports.time_ns
        for reported in active.reported.values():
            for request_id, (deadline_ns, demands) in reported.requests.items():
                known = deadlines.get(request_id)
                if known is None or (deadline_ns is not None and deadline_ns < known):
                    deadlines[request_id] = deadline_ns
                amounts = loads.setdefault(request_id, {})
                for port, size in demands.items():
                    amounts[port] = amounts.get(port, 0) + time_ns(port, size)
        for reported in active.reported.values():
            for request_id in reported.relegated:
                loads[request_id] = {}  # already pruned
        given = [d for d in deadlines.values() if d is not None]
        latest_ns = max(given) if given else now_ns + NO_DEADLINE_NS
        numbers = {r: active.numbers.get(r) or self._new_number() for r in deadlines}
        requests = tuple(
            Request(numbers[request_id], latest_ns if deadline_ns is None else deadline_ns, loads[request_id])
            for request_id, deadline_ns in deadlines.items()
        )
        compute_ns = max(t.compute_ns for t in active.reported.values())
        batch = Batch(active.batch_id, requests, compute_ns, self._collectives(active, compute_ns))
        key_ns = robust_effective_deadline(r.deadline_ns for r in requests).red_ns
        return batch, active.key_ns if not given and active.key_ns else key_ns, numbers

    def _new_number(self) -> int:
        self._numbers_given += 1
        return self._numbers_given

    def _collectives(self, active: Active, compute_ns: int) -> dict[int, int]:
        """Returns the time on each port of traffic that pruning cannot remove: as declared, else as the unit's history
        predicts for the part that is still to compute."""
        total: dict[int, int] = {}
        for reported in active.reported.values():
            for port, size in reported.collectives.items():
                total[port] = total.get(port, 0) + self.ports.time_ns(port, size)
        if total or not (history := self.history.estimate(active.unit)):
            return total
        share = compute_ns / active.compute_first_ns if active.compute_first_ns else 1.0
        return {port: self.ports.time_ns(port, int(size * share)) for port, size in history.items()}

    def _apply(self, change: Change) -> None:
        for pruned in change.pruned:
            if self._pruned.get(pruned.request_id) != pruned:
                self._pruned[pruned.request_id] = pruned
                self._verdict_changed(*self._owner[pruned.request_id])
            self._infeasible.discard(pruned.request_id)
        for number in change.infeasible:
            if number not in self._infeasible:
                self._infeasible.add(number)
                self._verdict_changed(*self._owner[number])
            self._pruned.pop(number, None)
        for number in change.restored:
            if self._acquit(number):
                self._verdict_changed(*self._owner[number])
        if change.pruned or change.infeasible:
            self.past.given_up(len(self._pruned), len(self._infeasible), self._now_ns)

    def _acquit(self, number: int) -> bool:
        """Clears the verdict of a request; returns whether it was pruned or infeasible."""
        infeasible = number in self._infeasible
        self._infeasible.discard(number)
        return self._pruned.pop(number, None) is not None or infeasible

    def _verdict_changed(self, batch_id: int, request_id: int) -> None:
        """Marks the request's verdict as to be sent to the nodes of this batch."""
        for name, reported in self.batches[batch_id].reported.items():
            self.nodes[name].verdicts[batch_id, request_id] = None
            self._mark(self.nodes[name])
            if request_id in reported.requests:  # its demands are promised now, or no longer
                self.touched.update(reported.requests[request_id][1])

    def _entry(self, pruned: Pruned) -> Entry:
        batch_id, request_id = self._owner[pruned.request_id]
        return Entry(batch_id, request_id, pruned.for_batch, pruned.resource)

    def _make_room(self, now_ns: int) -> None:
        """Makes a larger core if ports were named since the core was made."""
        if len(self.ports) > self._resources:
            while self._resources < len(self.ports):
                self._resources *= 2
            self._rebuild(now_ns)

    def _rebuild(self, now_ns: int) -> None:
        """Makes a new core from what the nodes have reported, for more ports or another policy."""
        had_verdicts = [self._owner[number] for number in (*self._pruned, *self._infeasible)]
        self.planner = new_planner(self.policy, self._resources)
        self.planner.spend(self._spent)
        self.planner.hold()
        self._pruned.clear()
        self._infeasible.clear()
        for active in self.order():
            batch, key_ns, numbers = self._merged(active, now_ns)
            self._settle(active, key_ns, numbers, self.planner.arrive(batch, now_ns))
        if not self._held:
            self._apply(self.planner.release(now_ns))
        for batch_id, request_id in had_verdicts:
            self._verdict_changed(batch_id, request_id)
        self.epoch += 1
