"""paper, mfs and mfs without one of its parts: the production rules and plan core, applied to the simulator's flows.

This file only passes facts to those rules and carries out their answers; it decides nothing.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

import mfsd.policy as rules
from bench.sim.altered_queue import AlteredNetwork
from bench.sim.hold import hold_of
from bench.sim.host_queue import RmlqNetwork
from bench.sim.load import Load, bottleneck_rho
from bench.sim.pace import Pace
from bench.sim.policies import Policy, pack, register
from bench.sim.states import QUEUED, Batch, Flow, State
from mfsd._native import Decision, PlanCore
from mfsd.policy.estimate import transfer_ns

if TYPE_CHECKING:
    from bench.sim.engine import Simulation
    from bench.sim.network import Network
    from mfsd._native import Rmlq

NS = 1_000_000_000

LAST = pack(rules.Tier.LAST)
RLI_UNKNOWN = 1024  # of reuse without a batch: above every layer, as in the queue (there 2^16), and within `pack`
LONE_BATCHES = 1 << 40  # above the numbers of batches
NOT_MEASURED = (Load(), -NS)

DEFAULT = rules.PolicyConfig()
CONFIGS = {
    "mfs": DEFAULT,
    # Class 0 from an MLU of 1, as in the paper's table 1. rho is the long-term load of a port, averaged over a second.
    # With the defaults (0.5, 10 ms) a busy moment sends most last stages before all loads.
    "paper": rules.PolicyConfig(variant=rules.Variant.PAPER, threshold_top=1.0, load_time_constant_ns=NS),
    "paper-defaults": rules.PolicyConfig(variant=rules.Variant.PAPER),
    "mfs-rli": DEFAULT,
    "mfs-red": DEFAULT,
    "mfs-prune": msgspec.structs.replace(DEFAULT, drop_budget=0.0),
    "mfs-class0": msgspec.structs.replace(DEFAULT, critical_laxity_share=0.0),
    # The other orders of early flows, which block layers.
    "mfs-rank": msgspec.structs.replace(DEFAULT, early_order=rules.EarlyOrder.RANK),
    "mfs-collective-first": msgspec.structs.replace(DEFAULT, early_order=rules.EarlyOrder.COLLECTIVE_FIRST),
}


@register(*CONFIGS)
class Mfs(Policy):
    at_layers = True
    reuse_by_layer = True
    variant = "mfs"

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.config = self.configure(simulation)
        self.tick_s = self.config.promotion_interval_ns / NS
        self.rules = rules.order_rules(self.config)
        collective = rules.Flow(stage=2, sequence=0, remaining_bytes=0, rate_bytes_per_s=1, batch_running=True)
        self.collective_class = self.rules.place(collective, self.rules.first(), 0).wire_class
        self.has_levels = self.config.variant is rules.Variant.PAPER  # they depend on rho
        self.loads: dict[int, tuple[Load, int]] = {}  # per link: load and when it was measured
        self.readings: dict[int, deque[tuple[Load, int]]] = {}  # per link: the reading in use, and later ones
        self.counter_delay_ns = int(simulation.cluster.config.counter_delay_s * NS)
        self.queues: RmlqNetwork | None = None
        self.evaluate_at: dict[Flow, int | None] = {}  # of last stages, ns
        self.pace = Pace(simulation)
        self.needed: dict[int, int] = {}  # by request that is loaded while it queues: when its reuse must be there, ns
        self.pruned: frozenset[int] = frozenset()  # requests, by the plan
        self.planned: set[int] = set()  # batches that the plan core knows
        self.rate = int(simulation.cluster.link)  # of every NIC
        self.capacity = {k: int(c) for k, c in enumerate(simulation.cluster.topology.capacities)}
        self.core = PlanCore(self.config, len(self.capacity)) if self.config.drop_budget else None

    def configure(self, simulation: Simulation) -> rules.PolicyConfig:
        classes = simulation.cluster.config.fabric_classes or DEFAULT.classes
        config = msgspec.structs.replace(CONFIGS[self.variant], classes=classes)
        return msgspec.structs.replace(config, **simulation.cluster.config.policy)

    # -- facts

    def now_ns(self) -> int:
        return int(self.simulation.now * NS)

    def last_stage(self, flow: Flow, state: State) -> rules.Flow:
        simulation, request = self.simulation, state.request
        computing = not state.computed
        port = flow.path.shares.get(flow.path.source, 1.0)  # the part that leaves here, all that its queue knows of
        return rules.Flow(
            stage=3,
            sequence=flow.sequence,
            remaining_bytes=int(port * simulation.p2d_left(state)),
            rate_bytes_per_s=int(port * flow.path.isolated_rate),
            deadline_ns=int(request.deadline_s * NS),
            budget_ns=int(request.budget_s * NS),
            computing=computing,
            compute_end_ns=int((simulation.now + simulation.compute_left_s(state)) * NS) if computing else 0,
            tail_bytes=int(port * flow.message_bytes) if computing else 0,
            batch_running=computing,
            pruned=state.pruned,
        )

    def early_stage(self, flow: Flow) -> rules.Flow:
        state = flow.state
        if flow.batch.step == QUEUED:
            return self.queued_stage(flow)
        return rules.Flow(
            stage=flow.stage,
            sequence=flow.sequence,
            remaining_bytes=0 if state is None else self.waiting_bytes(flow),
            rate_bytes_per_s=self.rate,
            layer_target=0 if self.variant == "mfs-rli" else flow.layer,
            rank=self.rank(flow.batch),
            batch_running=True,
            pruned=state is not None and state.pruned,
        )

    def queued_stage(self, flow: Flow) -> rules.Flow:
        """Facts of reuse whose request still queues: production's queue knows no batch for it."""
        return rules.Flow(
            stage=flow.stage,
            sequence=flow.sequence,
            remaining_bytes=self.waiting_bytes(flow),
            rate_bytes_per_s=self.rate,
            layer_target=RLI_UNKNOWN + flow.layer,
            rank=self.lone_rank(flow),
            deadline_ns=self.needed_ns(flow) or rules.NO_DEADLINE,
            without_batch=True,
        )

    def lone_rank(self, flow: Flow) -> int:
        """Returns the rank of a load whose request is in no batch yet. In `paper` it is the RED of a batch of one: its
        deadline."""
        if self.variant != "paper" or flow.state is None:
            return rules.NO_RANK
        return min(int(flow.state.request.deadline_s * 1e6), rules.NO_RANK - 1)

    def rank_alone(self, queue: Rmlq, now_ns: int, facts: dict[str, Any]) -> None:
        """Announces a batch to production's queue for each load without one, so that the load has a rank there, too."""
        if facts["stage"] == 1 and not facts["batch"]:
            request = facts["request"]
            facts["batch"], facts["layer"] = LONE_BATCHES + request, RLI_UNKNOWN + facts["layer"]
            rank = int(self.simulation.states[request - 1].request.deadline_s * 1e6)
            queue.batch(now_ns, facts["batch"], layer_current=0, layers=2 * RLI_UNKNOWN, rank=rank)

    def needed_ns(self, flow: Flow) -> int:
        """Returns when the load of a queued request must be there, as its engine reports when it is posted; 0: unknown,
        or reuse that is fetched layer by layer."""
        state = flow.state
        if state is None or not self.simulation.loads_first:
            return 0
        number = state.request.number
        if number not in self.needed:
            needed_s = self.pace.needed_s(state)
            self.needed[number] = 0 if needed_s is None else max(1, int(needed_s * NS))
        return self.needed[number]

    def waiting_bytes(self, flow: Flow) -> int:
        """Returns the bytes that the flow's batch still waits for on the flow's busiest port, of all its layers. A
        collective waits for nothing: production never holds one (design)."""
        batch, shares = flow.batch, flow.path.shares
        port = max(shares, key=shares.__getitem__)
        total = 0.0
        for chunk in batch.chunks:
            state = chunk.state
            if state.reuse is not None:
                total += self.simulation.reuse_left(state) * state.reuse.path.shares.get(port, 0.0)
        return int(total)

    def rank(self, batch: Batch) -> int:
        """Returns RED in microseconds, which orders batches without renumbering them (the paper's tie-break, not its
        position)."""
        return min(int(batch.policy), rules.NO_RANK - 1)

    def rho(self, flow: Flow) -> float:
        """Returns the measured load that goes before last stages on the flow's busiest link. A link is measured once
        per interval."""
        network, now_ns, config, measured = self.simulation.network, self.now_ns(), self.config, self.loads
        since = now_ns - config.promotion_interval_ns
        loads = []
        for link in flow.path.shares:
            load, at_ns = measured.get(link, NOT_MEASURED)
            if at_ns <= since:
                rate = network.load_before(link, LAST, 2)
                elapsed = min(now_ns - at_ns, 10 * config.load_time_constant_ns)
                load = load.observe(int(rate * elapsed / NS), elapsed, self.capacity[link], config)
                measured[link] = (load, now_ns)
            loads.append(self.as_read(link, load, now_ns) if self.counter_delay_ns else load)
        return bottleneck_rho(loads)

    def as_read(self, link: int, load: Load, now_ns: int) -> Load:
        """Returns the load in the latest reading of the port's counters, which is as old as the delay. At first there
        is none."""
        readings = self.readings.setdefault(link, deque())
        if not readings or readings[-1][1] != now_ns:
            readings.append((load, now_ns))
        while len(readings) > 1 and readings[1][1] <= now_ns - self.counter_delay_ns:
            readings.popleft()
        return readings[0][0] if readings[0][1] <= now_ns - self.counter_delay_ns else Load()

    def unit_slack_ns(self, unit: int) -> int | None:
        """Returns the smallest laxity of the unit's requests that can still be in time; None if it computes nothing."""
        simulation = self.simulation
        batch = simulation.running[unit]
        if batch is None:
            return None
        slack = [c.state.request.deadline_s - simulation.earliest_finish_s(c.state) for c in batch.chunks]
        ahead = simulation.now + simulation.until_layer_s(batch, batch.layers)
        waiting = islice(simulation.queues[unit], 16)
        slack.extend(s.request.deadline_s - ahead - s.request.isolated_s for s in waiting)
        return int(min((s for s in slack if s >= 0), default=3600.0) * NS)

    # -- production's host queues, when the fabric has few classes

    def network(self) -> Network | None:
        if not self.simulation.cluster.config.fabric_classes:
            return None
        self.at_layers = self.reuse_by_layer = False
        self.tick_s = None
        cluster = self.simulation.cluster
        if self.variant == "paper":
            self.queues = AlteredNetwork(
                cluster.topology, self.config, self.rank_alone, hold_of(cluster.config), cluster.config.reads
            )
        else:
            self.queues = RmlqNetwork(
                cluster.topology,
                self.config,
                needed_ns=self.needed_ns,
                bypass=self.simulation.bypass,
                hold=hold_of(cluster.config),
                reads=cluster.config.reads,
            )
        return self.queues

    def tell(self, batch: Batch) -> None:
        """Tells the queues what a daemon learns at a layer boundary."""
        if self.queues is None:
            return
        simulation = self.simulation
        deadline_ns = min(int(c.state.request.deadline_s * NS) for c in batch.chunks)
        left_ns = int(simulation.until_layer_s(batch, batch.layers) * NS)
        self.queues.announce_batch(batch, self.rank(batch), deadline_ns, left_ns, batch.layers)
        for chunk in batch.chunks:
            flow = chunk.state.p2d
            if flow is not None and self.has_levels:
                self.queues.set_load(flow.path.source, min(1.0, max(0.0, self.rho(flow))))

    def layer_began(self, batch: Batch) -> None:
        self.tell(batch)

    def batch_computed(self, batch: Batch) -> None:
        self.pace.batch_computed(batch)
        if self.queues is not None:
            self.queues.end_batch(batch)

    # -- decisions

    def order(self, flow: Flow) -> int:
        if self.queues is not None:  # for collectives; KV is ordered by the native queue
            flow.wire_class = self.collective_class
            return 0
        now_ns, state = self.now_ns(), flow.state
        if flow.stage == 3 and state is not None:
            facts, layer = self.last_stage(flow, state), 0
            state.policy = self.evaluate(flow, state, facts, now_ns)
            place = self.rules.place(facts, state.policy, now_ns)
        else:
            facts, layer = self.early_stage(flow), flow.batch.layer
            place = self.rules.place(facts, self.rules.first(), now_ns, layer)
        flow.wire_class = place.wire_class
        tier, first, second, third, sequence = place.key
        if tier != rules.Tier.EARLY:
            ticks = second / NS
        elif self.rules.by_size:
            ticks = (second >> 4) * 1e-6  # 6 bits of size, RED in units of 16 us
        else:
            ticks = second * 1e-6  # RED
        return pack(tier, first, ticks, third, sequence)

    def evaluate(self, flow: Flow, state: State, facts: rules.Flow, now_ns: int) -> Decision:
        """Evaluates a last stage. The slack of its unit costs more than all the rest, so it is computed only if it
        matters: if the flow would be critical were no unit busy."""
        last = state.policy or self.rules.first()
        rho = self.rho(flow) if self.has_levels else 0.0
        decision, next_ns = self.rules.evaluate(facts, last, now_ns, rho)
        if decision.critical and not last.critical and not self.has_levels:
            slack_ns = self.unit_slack_ns(state.request.unit)
            decision, next_ns = self.rules.evaluate(facts, last, now_ns, rho, slack_ns)
        self.evaluate_at[flow] = None if facts.computing or facts.pruned else next_ns
        return decision

    def tick(self) -> None:
        """Evaluates last stages whose compute has ended again, if that can change anything."""
        now_ns = self.now_ns()
        for flow in list(self.simulation.shipping):
            due = self.evaluate_at.get(flow)
            if due is not None and due <= now_ns:
                self.simulation.reorder(flow)

    def flow_ended(self, flow: Flow) -> None:
        self.evaluate_at.pop(flow, None)
        if flow.state is not None:
            self.needed.pop(flow.state.request.number, None)
        if self.queues is not None and flow.stage == 3 and flow.state is not None:
            self.queues.end_request(flow.state)

    # -- the coordinator

    def batch_began(self, batch: Batch) -> None:
        self.pace.batch_began(batch)
        if self.variant == "mfs-red":
            batch.policy = self.simulation.now * 1e6
        else:
            deadlines = [int(c.state.request.deadline_s * NS) for c in batch.chunks]
            batch.policy = rules.robust_effective_deadline(deadlines).red_ns // 1000
        if self.queues is not None:
            for chunk in batch.chunks:
                if chunk.state.p2d is not None and chunk.state.p2d_posted == 0:
                    self.queues.announce_request(chunk.state, chunk.state.p2d_total, chunk.p2d_bytes)
            self.tell(batch)
            for chunk in batch.chunks:
                if chunk.state.reuse is not None and self.simulation.early_fetch:
                    self.queues.joined(chunk.state.reuse)
        self.replan()

    def batch_ended(self, batch: Batch) -> None:
        self.replan()

    def replan(self) -> None:
        """Passes all changes to production's plan core, which then plans once."""
        if self.core is None:
            return
        simulation, core, now_ns = self.simulation, self.core, self.now_ns()
        described = [(batch, self.requests_of(batch)) for batch in simulation.active.values()]
        loaded = {link for _, requests in described for request in requests for link in request.loads}
        batches = [self.describe(batch, requests, loaded) for batch, requests in described if requests]
        core.hold()
        for gone in self.planned - {batch.batch_id for batch in batches}:
            core.depart(gone, now_ns)
        # a request continues in a later batch: its earlier one must give it up first
        for batch in sorted(batches, key=lambda batch: batch.batch_id not in self.planned):
            (core.update if batch.batch_id in self.planned else core.arrive)(batch, now_ns)
        self.planned = {batch.batch_id for batch in batches}
        core.release(now_ns)
        change = core.delta()
        pruned = self.pruned - {*change.infeasible, *change.restored} | {p.request_id for p in change.pruned}
        if pruned != self.pruned:
            self.pruned = pruned
            simulation.at(simulation.now + simulation.cluster.config.coordinator_delay_s, self.apply, pruned)

    def apply(self, chosen: frozenset[int]) -> None:
        simulation = self.simulation
        for batch in list(simulation.active.values()):
            for chunk in batch.chunks:
                state = chunk.state
                if state.finish_s >= 0:
                    continue  # it stays as it was when it ended
                if state.pruned != (state.request.number in chosen):
                    state.pruned = not state.pruned
                    if self.queues is not None:
                        self.queues.prune(state)
                        continue
                    for flow in (state.reuse, state.p2d):
                        if flow is not None:
                            simulation.reorder(flow)

    def time_ns(self, link: int, size_bytes: int) -> int:
        """Converts a load as a coordinator does: to time of its port."""
        return transfer_ns(size_bytes, self.capacity[link])

    def requests_of(self, batch: Batch) -> tuple[rules.Request, ...]:
        """Returns the batch's requests with the time, by link, that their remaining KV takes."""
        simulation = self.simulation
        requests = []
        for chunk in batch.chunks:
            state = chunk.state
            if state.finish_s >= 0 or state.p2d is None or state.batch is not batch:
                continue
            left = simulation.p2d_left(state)
            loads = {link: int(share * left) for link, share in state.p2d.path.shares.items()}
            if state.reuse is not None:
                ahead = state.reuse.message_bytes * (batch.layers - state.fetched)
                for link, share in state.reuse.path.shares.items():
                    loads[link] = loads.get(link, 0) + int(share * ahead)
            times = {link: self.time_ns(link, size) for link, size in loads.items()}
            requests.append(rules.Request(state.request.number, int(state.request.deadline_s * NS), times))
        return tuple(requests)

    def describe(self, batch: Batch, requests: tuple[rules.Request, ...], loaded: set[int]) -> rules.Batch:
        """Returns a batch as the coordinator sees it. Its collectives count on links that carry KV and on its busiest
        one: no other link can be a bottleneck, as collectives stay in their unit."""
        simulation = self.simulation
        layers_left = batch.layers - batch.layer if batch is simulation.running[batch.unit] else 0
        fixed: dict[int, int] = {}
        if layers_left and batch.paths:
            shares: dict[int, float] = {}
            for path in batch.paths:
                for link, share in path.shares.items():
                    shares[link] = shares.get(link, 0.0) + share
            busiest = max(shares, key=shares.__getitem__)
            left = batch.collective_bytes * layers_left
            fixed = {
                link: self.time_ns(link, int(share * left))
                for link, share in shares.items()
                if link in loaded or link == busiest
            }
        compute_s = layers_left * (batch.attention_s + batch.experts_s) * batch.believed
        return rules.Batch(batch.serial, requests, int(compute_s * NS), fixed)
