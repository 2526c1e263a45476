"""The native queue decides as `mfsd.policy` does: same flow, same place, same time of the next evaluation.

The model keeps facts in dictionaries, asks the policy for every key and takes the smallest. It knows nothing of
heaps, groups or chains; what it shares with the queue is only when a request is evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from mfsd.policy import (
    NO_DEADLINE,
    NO_RANK,
    EarlyOrder,
    Flow,
    PolicyConfig,
    Stage,
    Tier,
    Variant,
)
from mfsd.policy.types import known_stage
from mfsd.policy.urgency import thresholds
from tests.specification import (
    Decision,
    due_step,
    evaluate,
    initial,
    load_step,
    next_evaluation_ns,
    order_key,
    tier_of,
    wire_class,
)
from tests.specification.order import rli_of
from tests.specification.urgency import crossing_ns, effective_rate_bytes_per_s

if TYPE_CHECKING:
    from tests.unit.rmlq.conftest import Native

RLI_UNKNOWN = 2**16
NEVER = 2**64 - 1
FLOWS_MAX = 64
EXAMPLES = 100
EARLY_ORDERS = [EarlyOrder.RANK, EarlyOrder.COLLECTIVE_FIRST, EarlyOrder.SHORTEST]


@dataclass
class Waiting:
    """A flow, waiting or in flight."""

    stage: Stage
    size: int
    request: object
    batch: int
    layer: int
    deadline_ns: int
    sequence: int
    destination: int
    in_flight: bool = False
    granted: tuple[int, int, int] = (0, 0, 0)


@dataclass
class Request:
    decision: Decision
    deadline_ns: int = NO_DEADLINE
    budget_ns: int = 0
    ahead: int = 0
    tail: int = 0
    batch: int = 0
    reported: bool = False
    pruned: bool = False
    evaluated: bool = False
    timer: int | None = None


@dataclass
class Batch:
    layer_current: int
    rank: int
    pruned: bool
    deadline_ns: int
    compute_end_ns: int


def without_batch(flow: Waiting) -> bool:
    """Reuse of a request that still queues."""
    return flow.stage is Stage.REUSE and not flow.batch


@dataclass
class Model:
    config: PolicyConfig
    rate: int
    incoming: bool = False
    rho: float = 0.0
    now: int = 0
    sequence: int = 0
    promotions: int = 0
    evaluations: int = 0
    flows: dict[int, Waiting] = field(default_factory=dict)
    requests: dict[object, Request] = field(default_factory=dict)
    batches: dict[int, Batch] = field(default_factory=dict)
    needed: dict[object, int] = field(default_factory=dict)
    """By request that loads without a batch: when that must be there, as reported last; while any of it waits."""
    behind: dict[object, int] = field(default_factory=dict)
    """The same: what its sender has behind what it has submitted."""
    whole: dict[object, int] = field(default_factory=dict)
    """The same: all that was submitted, or that its sender has had left."""
    between: dict[object, int] = field(default_factory=dict)
    """The same of a request of which nothing waits though its sender has more."""
    closed: set[int] = field(default_factory=set)
    """Destinations."""

    # facts and order

    def flows_of(self, key: object, waiting: bool = False) -> list[Waiting]:
        return [
            f
            for f in self.flows.values()
            if f.request == key and f.stage is Stage.P2D and not (waiting and f.in_flight)
        ]

    def request_facts(self, key: object) -> Flow:
        request = self.requests[key]
        batch = self.batches.get(request.batch)
        return Flow(
            stage=Stage.P2D,
            sequence=0,
            remaining_bytes=sum(f.size for f in self.flows_of(key)) + request.ahead,
            rate_bytes_per_s=self.rate,
            deadline_ns=request.deadline_ns,
            budget_ns=request.budget_ns,
            computing=batch is not None and batch.compute_end_ns > self.now,
            compute_end_ns=batch.compute_end_ns if batch else 0,
            tail_bytes=request.tail,
            pruned=request.pruned or (batch is not None and batch.pruned),
        )

    def stall(self, flow: Waiting) -> int:
        """Early bytes that the flow's batch (or request without one) has waiting, of all layers, and behind them."""
        return (self.behind.get(flow.request, 0) if without_batch(flow) else 0) + sum(
            f.size
            for f in self.flows.values()
            if not f.in_flight
            and f.stage in (Stage.CONTROL, Stage.COLLECTIVE, Stage.REUSE)
            and f.batch == flow.batch
            and (f.request == flow.request and f.stage is Stage.REUSE if without_batch(flow) else True)
        )

    def place(self, flow: Waiting) -> tuple[Flow, Decision, int]:
        """Facts, decision and L_curr of a waiting flow."""
        batch = self.batches.get(flow.batch)
        if flow.stage is Stage.P2D:
            facts, decision = self.request_facts(flow.request), self.requests[flow.request].decision
            return replace(facts, sequence=flow.sequence), decision, 0
        request = self.requests.get(flow.request)
        facts = Flow(
            stage=flow.stage,
            sequence=flow.sequence,
            remaining_bytes=self.stall(flow),
            whole_bytes=self.whole[flow.request] if self.incoming and without_batch(flow) else None,
            rate_bytes_per_s=self.rate,
            layer_target=flow.layer if batch else RLI_UNKNOWN + flow.layer,
            rank=batch.rank if batch else NO_RANK,
            deadline_ns=self.due(flow),
            without_batch=without_batch(flow),
            request_known=not isinstance(flow.request, tuple),
            batch_running=batch is not None,
            pruned=request is not None and request.pruned,
        )
        decision = evaluate(self.config, facts, initial(self.config), self.now)
        return facts, decision, batch.layer_current if batch else 0

    def due(self, flow: Waiting) -> int:
        """Of what is not a last stage."""
        if without_batch(flow):
            return self.needed.get(flow.request, NO_DEADLINE)
        return flow.deadline_ns if flow.stage is Stage.BACKGROUND else NO_DEADLINE

    def forget_needed(self, gone: Waiting) -> None:
        if not any(f.request == gone.request and without_batch(f) and not f.in_flight for f in self.flows.values()):
            self.needed.pop(gone.request, None)
            whole = self.whole.pop(gone.request, 0)
            if self.behind.pop(gone.request, 0) and not isinstance(gone.request, tuple):
                self.between[gone.request] = whole

    def key(self, flow: Waiting) -> tuple[int, ...]:
        facts, decision, layer_current = self.place(flow)
        return order_key(self.config, facts, decision, layer_current)

    def first(self) -> int | None:
        waiting = [h for h, flow in self.flows.items() if not flow.in_flight and flow.destination not in self.closed]
        return min(waiting, key=lambda handle: self.key(self.flows[handle]), default=None)

    def described(self, flow: Waiting) -> tuple[int, int, int]:
        """(tier, level, wire class)."""
        if flow.in_flight:
            return flow.granted
        facts, decision, layer_current = self.place(flow)
        tier = tier_of(self.config, facts, decision)
        level = decision.level if flow.stage is Stage.P2D else 0
        rli = rli_of(facts, layer_current) if tier is Tier.EARLY else 0
        reuse = flow.stage is Stage.REUSE
        wire = wire_class(
            self.config.classes,
            tier,
            rli,
            level,
            reuse=reuse,
            load_step=load_step(self.config, facts, decision) if reuse else None,
            due_step=due_step(self.config, facts, decision, self.now),
            variant=self.config.variant,
        )
        return tier.value, level, wire

    # when requests are evaluated

    def slack(self) -> int | None:
        return min(
            (
                b.deadline_ns - max(b.compute_end_ns, self.now)
                for b in self.batches.values()
                if b.deadline_ns and not b.pruned
            ),
            default=None,
        )

    def evaluate(self, key: object) -> int | None:
        request, facts = self.requests[key], self.request_facts(key)
        before = request.decision
        request.decision = evaluate(self.config, facts, before, self.now, self.rho, self.slack())
        if facts.deadline_ns == NO_DEADLINE:
            return None
        if request.evaluated and (request.decision.level < before.level or request.decision.critical > before.critical):
            self.promotions += 1
        request.evaluated = True
        soonest = self.now + self.config.promotion_interval_ns
        if request.decision.infeasible:
            return None
        if facts.computing:
            return max(facts.compute_end_ns, soonest)
        unpruned = replace(facts, pruned=False)  # it may come back at any time
        following = next_evaluation_ns(self.config, unpruned, request.decision, self.now, self.rho)
        assert following is not None
        if request.decision.level > 1:  # half way, since the load may rise
            rate = effective_rate_bytes_per_s(self.rate, self.rho, self.config.rho_max)
            threshold = thresholds(self.config)[request.decision.level - 2]
            crossing = crossing_ns(facts.remaining_bytes, facts.deadline_ns, rate, threshold)
            following = min(following, self.now + (crossing - self.now) // 2)
        return max(following, soonest)

    def evaluate_at_event(self, key: object) -> None:
        request = self.requests[key]
        following = self.evaluate(key)
        if following is not None and (request.timer is None or request.timer > following):
            request.timer = following

    def advance(self, now: int) -> int:
        self.now = max(self.now, now)
        for key, request in self.requests.items():
            if request.timer is not None and request.timer <= self.now:
                request.timer = None
                if self.flows_of(key, waiting=True):
                    self.evaluations += 1
                    request.timer = self.evaluate(key)
        return min((r.timer for r in self.requests.values() if r.timer is not None), default=NEVER)

    # life of a request

    def request(self, key: object) -> Request:
        return self.requests.setdefault(key, Request(initial(self.config)))

    def release(self, key: object) -> None:
        request = self.requests[key]
        if not self.flows_of(key):
            request.batch = 0
            if not (request.reported or request.pruned):
                del self.requests[key]

    def tell_deadline(self, request: Request, deadline_ns: int) -> None:
        if deadline_ns:
            request.deadline_ns = deadline_ns
            if not request.budget_ns and deadline_ns > self.now:
                request.budget_ns = deadline_ns - self.now

    # calls

    def submit(
        self,
        handle: int,
        now: int,
        stage: int,
        size: int,
        request: int,
        batch: int,
        deadline_ns: int,
        layer: int,
        destination: int,
        left: int,
    ) -> None:
        self.now = max(self.now, now)
        key = request or ("lone", handle)
        flow = Waiting(
            known_stage(stage), size, key, batch, layer, deadline_ns or NO_DEADLINE, self.sequence, destination
        )
        self.sequence += 1
        self.flows[handle] = flow
        if without_batch(flow) and deadline_ns:
            self.needed[key] = deadline_ns
        if without_batch(flow) and left >= max(size, 1):
            self.behind[key] = left - size
            self.whole[key] = max(self.whole.get(key, 0) or self.between.pop(key, 0), left)
        elif without_batch(flow):
            self.whole[key] = self.whole.get(key, 0) + size
        if flow.stage is Stage.P2D:
            owner = self.request(key)
            owner.ahead = max(owner.ahead - size, left - size, 0)
            owner.batch = batch or owner.batch
            self.tell_deadline(owner, deadline_ns)
            self.evaluate_at_event(key)

    def pick(self, handle: int) -> None:
        flow = self.flows[handle]
        flow.granted = self.described(flow)
        flow.in_flight = True
        self.forget_needed(flow)

    def forget(self, handle: int) -> None:
        flow = self.flows.pop(handle)
        self.forget_needed(flow)
        if flow.stage is Stage.P2D:
            self.release(flow.request)

    def announce_batch(self, key: int, now: int, layer: int, rank: int, pruned: bool, deadline: int, left: int) -> None:
        self.now = max(self.now, now)
        before = self.batches.get(key)
        layer = max(layer, before.layer_current) if before else layer
        self.batches[key] = Batch(layer, rank, pruned, deadline, self.now + left if left else 0)
        self.evaluate_members(key)

    def evaluate_members(self, key: int) -> None:
        for request, state in self.requests.items():
            if state.batch == key:
                self.evaluate_at_event(request)

    def announce_request(self, key: int, now: int, deadline: int, budget: int, ahead: int, tail: int) -> None:
        self.now = max(self.now, now)
        request = self.request(key)
        request.reported = True
        if budget:
            request.budget_ns = budget
        self.tell_deadline(request, deadline)
        request.ahead, request.tail = ahead, tail
        if self.flows_of(key, waiting=True):
            self.evaluate_at_event(key)


MS = 1_000_000
keys = st.integers(1, 4)
places = st.integers(0, 2)
sizes = st.one_of(st.integers(0, 4), st.integers(0, 10**6), st.integers(0, 2**40))
spans = st.one_of(st.integers(0, 4), st.integers(0, 10 * MS), st.integers(0, 10**10))
deadlines = st.one_of(st.just(0), st.tuples(st.booleans(), spans))
stages = st.sampled_from([0, 1, 1, 1, 2, 3, 3, 3, 3, 4, 200])
early_stages = st.sampled_from([1, 1, 1, 1, 1, 1, 2, 0, 3])
early_flows = st.tuples(
    early_stages,
    st.integers(0, 3),
    st.integers(1, 2),
    st.sampled_from([0, 1, 1, 2]),
    st.just(0),
    st.integers(0, 4),
    places,
    st.sampled_from([None, None, 0, 2]),
)
near_spans = st.integers(0, 1500)
near = st.tuples(st.just(False), near_spans)
urgent_flows = st.tuples(
    st.just(3), st.integers(0, 300), st.integers(1, 3), st.integers(0, 2), near, st.just(0), places, st.none()
)
load_sizes = st.one_of(st.integers(0, 300), st.integers(0, 40_000))
loads = st.tuples(
    st.just(1),
    load_sizes,
    st.integers(0, 4),
    st.just(0),
    st.one_of(st.just(0), near),
    st.sampled_from([0, 0, 1]),
    places,
    st.one_of(st.none(), load_sizes),
)
lefts = st.one_of(st.none(), sizes)
flows = st.tuples(stages, sizes, st.integers(0, 4), st.integers(0, 2), deadlines, st.integers(0, 6), places, lefts)


class Machine(RuleBasedStateMachine):
    native: Native
    rates: tuple[int, ...] = (10**9, 1, 999_983, 12_500_000_000, 50_000_000_001)
    destinations: tuple[int, ...] = (0,)

    @initialize(spread=st.sampled_from([(0,), (0,), (0, 1, 8191)]))
    def spread(self, spread):
        """To one destination in most of the runs."""
        self.destinations = spread

    @initialize(
        paper=st.booleans(),
        order=st.sampled_from(EARLY_ORDERS),
        classes=st.integers(2, 8),
        levels=st.integers(2, 8),
        share=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
        readmission=st.sampled_from([0.0, 0.05, 0.3]),
        top=st.sampled_from([0.125, 0.5, 1.0]),
        base=st.sampled_from([2.0, 4.0, 3.7]),
        interval=st.sampled_from([1, 1000, MS]),
        rate=st.integers(0, 4),
        soon=st.sampled_from([0, 300, 500 * MS]),
        short=st.sampled_from([0, 20, 16 * MS]),
        incoming=st.booleans(),
    )
    def start(
        self, paper, order, classes, levels, share, readmission, top, base, interval, rate, soon, short, incoming
    ):
        config = PolicyConfig(
            variant=Variant.PAPER if paper else Variant.MFS,
            classes=classes,
            levels=levels,
            threshold_base=base,
            threshold_top=top,
            promotion_interval_ns=interval,
            critical_laxity_share=share,
            soon_ns=soon,
            short_load_ns=short,
            early_order=order,
            readmission_margin=readmission,
        )
        policy = self.native.policy(
            classes,
            variant=int(paper),
            early_order=EARLY_ORDERS.index(order),
            levels=levels,
            promotion_interval_ns=interval,
            critical_laxity_share=share,
            soon_ns=soon,
            short_load_ns=short,
            readmission_margin=readmission,
        )
        for i, threshold in enumerate(thresholds(config)):
            policy.threshold[i] = threshold
        rate = self.rates[rate % len(self.rates)]
        self.model = Model(config, rate, incoming)
        self.queue = self.native.queue(policy, rate, FLOWS_MAX)
        if incoming:
            self.queue.set_incoming()

    def deadline(self, choice) -> int:
        if not choice:
            return 0
        past, span = choice
        return max(1, self.model.now - span if past else self.model.now + span)

    def peek_agrees(self):
        code, pick = self.queue.peek(self.model.now)
        self.model.advance(self.model.now)
        first = self.model.first()
        assert (code, pick.handle) == ((-11, 0) if first is None else (0, first))

    def submit_all(self, step, flows):
        now = self.model.now + step
        for stage, size, request, batch, deadline, layer, place, behind in flows:
            deadline_ns, destination = self.deadline(deadline), self.destination(place)
            left = 0 if behind is None else size + behind
            code, handle = self.queue.submit(
                now,
                bytes=size,
                request=request,
                batch=batch,
                deadline_ns=deadline_ns,
                layer=layer,
                stage=stage,
                destination=destination,
                cookie=self.model.sequence,
                bytes_left=left,
            )
            if code:
                assert len(self.model.flows) == FLOWS_MAX
                return
            assert handle not in self.model.flows
            self.model.submit(handle, now, stage, size, request, batch, deadline_ns, layer, destination, left)
        self.compare()

    def destination(self, place) -> int:
        return self.destinations[place % len(self.destinations)]

    @rule(place=places, peek=st.booleans())
    def close(self, place, peek):
        self.queue.destination_close(self.destination(place))
        self.model.closed.add(self.destination(place))
        if peek:  # what comes first gives way
            self.peek_agrees()
        self.compare()

    @rule(place=places)
    def open(self, place):
        self.queue.destination_open(self.destination(place))
        self.model.closed.discard(self.destination(place))
        self.compare()

    @precondition(lambda self: self.model.flows)
    @rule(data=st.data(), step=st.integers(0, 50))
    def take(self, data, step):
        handle, now = data.draw(st.sampled_from(sorted(self.model.flows))), self.model.now + step
        flow = self.model.flows[handle]
        code, pick = self.queue.take(handle, now)
        self.model.advance(now)
        assert (code, pick.handle) == ((-2, 0) if flow.in_flight else (0, handle))
        if not code:
            assert (pick.tier, pick.level, pick.wire_class) == self.model.described(flow)
            self.model.pick(handle)
        self.compare()

    @rule(step=st.integers(0, 50), n=st.integers(1, 4))
    def pick(self, step, n):
        now = self.model.now + step
        for _ in range(n):
            code, pick = self.queue.pick(now)
            self.model.advance(now)
            first = self.model.first()
            if first is None:
                assert code == -11
                return
            flow = self.model.flows[first]
            assert (code, pick.handle, pick.cookie, pick.bytes) == (0, first, flow.sequence, flow.size)
            assert pick.destination == flow.destination
            assert (pick.tier, pick.level, pick.wire_class) == self.model.described(flow)
            self.model.pick(first)
        self.compare()

    @precondition(lambda self: self.model.flows)
    @rule(data=st.data(), size=st.one_of(sizes, st.just(NEVER)))
    def complete(self, data, size):
        handle = data.draw(st.sampled_from(sorted(self.model.flows)))
        flow = self.model.flows[handle]
        done = size >= flow.size
        assert self.queue.complete(handle, size) == done
        flow.size -= min(size, flow.size)
        if done:
            self.model.forget(handle)
            assert self.queue.complete(handle, size) == -2
        self.compare()

    @precondition(lambda self: self.model.flows)
    @rule(data=st.data())
    def cancel(self, data):
        handle = data.draw(st.sampled_from(sorted(self.model.flows)))
        assert self.queue.cancel(handle) == 0
        self.model.forget(handle)
        assert self.queue.cancel(handle) == -2
        self.compare()

    def tell(self, batch, step, layer, rank, pruned, deadline, left):
        now, deadline = self.model.now + step, self.deadline(deadline)
        code = self.queue.batch(
            batch,
            now,
            layer_current=layer,
            layers=7,
            rank=rank,
            pruned=pruned,
            deadline_ns=deadline,
            compute_left_ns=left,
        )
        assert code == 0
        self.model.announce_batch(batch, now, layer, rank, pruned, deadline, left)
        self.compare()

    @rule(batch=st.integers(1, 2))
    def batch_end(self, batch):
        reported = self.model.batches.pop(batch, None)
        assert self.queue.batch_end(batch) == (0 if reported else -2)
        if reported:
            self.model.evaluate_members(batch)
        self.compare()

    @rule(request=keys)
    def request_end(self, request):
        state = self.model.requests.get(request)
        known = state is not None and (state.reported or state.pruned)
        assert self.queue.request_end(request) == (0 if known else -2)
        if state is not None and known:
            state.reported = state.pruned = False
            state.ahead = 0
            self.model.release(request)
        self.compare()

    @rule(request=keys)
    def prune(self, request):
        assert self.queue.prune(request) == 0
        self.model.request(request).pruned = True
        self.compare()

    @rule(request=keys)
    def unprune(self, request):
        state = self.model.requests.get(request)
        pruned = state is not None and state.pruned
        assert self.queue.unprune(request) == (0 if pruned else -2)
        if state is not None and pruned:
            state.pruned = False
            self.model.release(request)
        self.compare()

    def compare(self) -> None:
        """Every flow stands where the policy wants it, and the sums agree."""
        bytes_, tasks, flight, waiting = [0] * 8, [0] * 8, 0, dict.fromkeys(self.destinations, 0)
        for handle, flow in self.model.flows.items():
            code, pick = self.queue.place(handle)
            where = self.model.described(flow)
            assert (code, pick.bytes, pick.in_flight) == (0, flow.size, flow.in_flight)
            assert pick.destination == flow.destination
            assert (pick.tier, pick.level, pick.wire_class) == where
            if flow.in_flight:
                flight += flow.size
            else:
                bytes_[where[2]] += flow.size
                tasks[where[2]] += 1
                waiting[flow.destination] += 1
        stats = self.queue.stats()
        assert (list(stats.waiting_bytes), list(stats.waiting_tasks)) == (bytes_, tasks)
        assert stats.in_flight_bytes == flight
        assert self.queue.waiting() == sum(tasks)
        assert {destination: self.queue.waiting_at(destination) for destination in waiting} == waiting
        assert (stats.promotions, stats.evaluations) == (self.model.promotions, self.model.evaluations)

    def teardown(self) -> None:
        """What is left comes out in the policy's order, and nothing stays behind."""
        if not hasattr(self, "model"):
            return
        for place in range(len(self.destinations)):
            while self.model.first() is not None:
                self.pick(step=0, n=1)
            self.open(place=place)
        while self.model.first() is not None:
            self.pick(step=0, n=1)
        for handle in list(self.model.flows):
            assert self.queue.complete(handle, NEVER) == 1
            self.model.forget(handle)
        for request in list(self.model.requests):
            assert self.queue.request_end(request) == 0
        for batch in list(self.model.batches):
            assert self.queue.batch_end(batch) == 0
        stats = self.queue.stats()
        assert (stats.requests, stats.batches, stats.in_flight_tasks) == (0, 0, 0)


class AllStages(Machine):
    """Every kind of flow and fact, with times and sizes of every magnitude."""

    @rule(step=st.one_of(st.just(0), spans), flows=st.lists(flows, min_size=1, max_size=8))
    def submit(self, step, flows):
        self.submit_all(step, flows)

    @rule(step=spans)
    def advance(self, step):
        assert self.queue.advance(self.model.now + step) == self.model.advance(self.model.now + step)
        self.compare()

    @rule()
    def advance_to_next_evaluation(self):
        moment = self.queue.advance(self.model.now)
        assert moment == self.model.advance(self.model.now)
        if moment != NEVER:
            assert self.queue.advance(moment) == self.model.advance(moment)
        self.compare()

    @rule(
        batch=st.integers(1, 2),
        step=spans,
        layer=st.integers(0, 7),
        rank=st.sampled_from([0, 1, 2, NO_RANK]),
        pruned=st.booleans(),
        deadline=deadlines,
        left=st.one_of(st.just(0), spans),
    )
    def batch(self, batch, step, layer, rank, pruned, deadline, left):
        pruned = pruned and layer % 2 == 1  # seldom
        self.tell(batch, step, layer, rank, pruned, deadline, left)

    @rule(
        request=keys,
        step=spans,
        deadline=deadlines,
        budget=st.one_of(st.just(0), spans),
        ahead=sizes,
        tail=sizes,
    )
    def request(self, request, step, deadline, budget, ahead, tail):
        now, deadline = self.model.now + step, self.deadline(deadline)
        code = self.queue.request(
            request, now, deadline_ns=deadline, budget_ns=budget, bytes_ahead=ahead, bytes_tail=tail
        )
        assert code == 0
        self.model.announce_request(request, now, deadline, budget, ahead, tail)
        self.compare()

    @rule(rho=st.one_of(st.floats(-0.5, 1.5), st.sampled_from([0.0, 0.5, 0.95, 1.0])))
    def set_load(self, rho):
        assert self.queue.set_load(rho) == 0
        self.model.rho = rho

    @rule(rate=st.sampled_from([7, 10**9, 25_000_000_000]))
    def set_rate(self, rate):
        assert self.queue.set_rate(rate) == 0
        self.model.rate = rate


class EarlyStages(Machine):
    """Mostly reuse flows of two batches: layers come due, batches begin and end, requests are pruned and come back."""

    @rule(flows=st.lists(early_flows, min_size=1, max_size=8))
    def submit(self, flows):
        self.submit_all(0, flows)

    @rule(batch=st.integers(1, 2), layer=st.integers(0, 5), rank=st.sampled_from([0, 1, NO_RANK]))
    def batch(self, batch, layer, rank):
        self.tell(batch, 0, layer, rank, False, 0, 0)

    @rule()
    def peek(self):
        self.peek_agrees()


class Destinations(EarlyStages):
    """Several destinations, closed and opened at almost every step, while last stages change their places, too."""

    @initialize()
    def spread(self):
        self.destinations = (0, 1, 8191)

    @rule(places=st.sets(places), flows=st.lists(st.one_of(early_flows, urgent_flows, loads), min_size=1, max_size=8))
    def submit_while_closed(self, places, flows):
        for place in places:
            self.close(place=place, peek=True)
        self.submit_all(0, flows)
        self.peek_agrees()
        for place in places:
            self.open(place=place)

    @rule(request=keys, deadline=near)
    def deadline_changes(self, request, deadline):
        deadline = self.deadline(deadline)
        assert self.queue.request(request, self.model.now, deadline_ns=deadline) == 0
        self.model.announce_request(request, self.model.now, deadline, 0, 0, 0)
        self.compare()


class Loads(Machine):
    """Reuse of requests without a batch alone, a few hundred nanoseconds from when it must be there."""

    rates = (10**9, 10**10, 10**11)

    @initialize(
        rate=st.integers(0, 2), classes=st.integers(6, 8), short=st.sampled_from([0, 10, 60]), incoming=st.booleans()
    )
    def start(self, rate, classes, short, incoming):
        """In the one order that knows of late loads and of their sizes."""
        Machine.start(
            self, False, EarlyOrder.SHORTEST, classes, 8, 0.05, 0.05, 0.5, 4.0, 1000, rate, 0, short, incoming
        )

    @rule(step=st.integers(0, 100), flows=st.lists(loads, min_size=1, max_size=6))
    def submit(self, step, flows):
        self.submit_all(step, flows)

    @precondition(lambda self: len(self.model.flows) < FLOWS_MAX // 2)
    @rule(request=keys, sizes=st.lists(load_sizes, min_size=2, max_size=3), step=st.integers(0, 100))
    def pieces(self, request, sizes, step):
        """One after the other, each when all that waits has gone."""
        while self.model.first() is not None:
            self.pick(step=0, n=1)
        for at, size in enumerate(sizes):
            self.submit_all(step, [(1, size, request, 0, 0, 0, 0, sum(sizes[at + 1 :]))])
            self.pick(step=0, n=1)

    @rule(rate=st.sampled_from([10**9, 10**10, 10**11]))
    def set_rate(self, rate):
        assert self.queue.set_rate(rate) == 0
        self.model.rate = rate

    @rule()
    def peek(self):
        self.peek_agrees()


class Urgency(Machine):
    """Last-stage flows only, a few hundred nanoseconds from every limit: levels, laxity, slack of the unit, lost."""

    rates = (10**9, 3 * 10**9, 700_000_001)

    @rule(step=st.integers(0, 100), flows=st.lists(urgent_flows, min_size=1, max_size=3))
    def submit(self, step, flows):
        self.submit_all(step, flows)

    @rule(step=st.integers(0, 300))
    def advance(self, step):
        assert self.queue.advance(self.model.now + step) == self.model.advance(self.model.now + step)
        self.compare()

    @rule()
    def advance_to_next_evaluation(self):
        moment = self.queue.advance(self.model.now)
        assert moment == self.model.advance(self.model.now)
        if moment != NEVER:
            assert self.queue.advance(moment) == self.model.advance(moment)
        self.compare()

    @rule(batch=st.integers(1, 2), deadline=near, left=st.integers(0, 400))
    def batch(self, batch, deadline, left):
        self.tell(batch, 0, 0, batch, False, deadline, left)

    @rule(request=keys, deadline=near, budget=near_spans, ahead=st.integers(0, 100), tail=st.integers(0, 100))
    def request(self, request, deadline, budget, ahead, tail):
        deadline = self.deadline(deadline)
        code = self.queue.request(
            request,
            self.model.now,
            deadline_ns=deadline,
            budget_ns=budget,
            bytes_ahead=ahead,
            bytes_tail=tail,
        )
        assert code == 0
        self.model.announce_request(request, self.model.now, deadline, budget, ahead, tail)
        self.compare()


@pytest.mark.parametrize(
    "machine, steps",
    [(AllStages, 12), (AllStages, 60), (EarlyStages, 20), (Destinations, 30), (Loads, 20), (Urgency, 20)],
)
def test_the_native_queue_follows_the_policy(native, machine, steps):
    run_state_machine_as_test(
        type("Bound", (machine,), {"native": native}),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=steps,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
