"""mh and variants: Moore-Hodgson per port in place of the special cases of `mfs`, and `mfs` without each of these.

Of the loads that wait at a port, and of its last stages, as many are kept as can be in time together
(`bench.sim.on_time`). Those kept go by deadline, or in `mh-size` by size. Loads that are given up follow them by size.
So do last stages or, in `mh-renewed` (the best variant), by a deadline four budgets later, as lost ones in `mfs`. Reuse
of running batches goes as in `mfs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

import mfsd.policy as rules
from bench.sim.on_time import Transfer, given_up
from bench.sim.policies import pack, register
from bench.sim.policies.mfs import CONFIGS, DEFAULT, NS, RLI_UNKNOWN, Mfs
from bench.sim.states import QUEUED, Flow
from mfsd._native import RENEWAL_BUDGETS

if TYPE_CHECKING:
    from bench.sim.engine import Simulation

EARLY, LAST = int(rules.Tier.EARLY), int(rules.Tier.LAST)
PLAN_S = 0.5e-3  # interval of plans
LATE_FIRST = RLI_UNKNOWN + 100  # loads that are given up: behind all others


class Parts(msgspec.Struct, frozen=True):
    """How loads and last stages are ordered. Loads: shipped, plain (late ones are as others), deadline, size (of those
    kept). Last stages: shipped, due (lost ones keep their deadline), deadline, size (of those kept)."""

    loads: str = "shipped"
    lasts: str = "shipped"
    renewed: bool = False  # last stages that are given up are due four budgets later, as in `mfs`
    class0: bool = True
    far_s: float | None = None  # the rule runs at all ports of a flow; delay until one port knows what another gives up
    weights: bool = False  # tiers count


MH = Parts(loads="deadline", lasts="deadline", class0=False)
RENEWED = msgspec.structs.replace(MH, renewed=True)
PARTS = {
    "mfs-late": Parts(loads="plain"),
    "mfs-renewal": Parts(lasts="due"),
    "mh": MH,
    "mh-size": Parts(loads="size", lasts="size", class0=False),
    "mh-renewed": RENEWED,
    "mh-only-loads": Parts(loads="deadline"),
    "mh-weighted": msgspec.structs.replace(RENEWED, weights=True),
    "mh-all-1ms": msgspec.structs.replace(RENEWED, far_s=1e-3),
}
CONFIGS |= {
    name: DEFAULT if parts.class0 else msgspec.structs.replace(DEFAULT, critical_laxity_share=0.0)
    for name, parts in PARTS.items()
}


@register(*PARTS)
class MooreHodgson(Mfs):
    variant = "mh"

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.parts = PARTS[self.variant]
        self.chosen = {"deadline", "size"} & {self.parts.loads, self.parts.lasts}
        self.late: set[Flow] = set()
        self.far: set[Flow] = set()  # given up at other ports than their source, as last known
        self.planned_s = -1.0

    # -- who can be in time

    def jobs(self) -> list[tuple[Flow, float, float]]:
        """Returns flow, when it is due, bytes left."""
        simulation, found = self.simulation, []
        if self.parts.loads in self.chosen:
            loads = [flow for unit in range(len(simulation.queues)) for flow in simulation.queued_reuse(unit)]
            found += [
                (flow, needed_ns / NS, simulation.reuse_left(flow.state))
                for flow in loads
                if flow.state is not None and (needed_ns := self.needed_ns(flow))
            ]
        if self.parts.lasts in self.chosen:
            found += [
                (flow, flow.state.request.deadline_s, simulation.p2d_left(flow.state))
                for flow in simulation.shipping
                if flow.state is not None
            ]
        return found

    def links(self, flow: Flow) -> list[int]:
        shares, source = flow.path.shares, flow.path.source
        if self.parts.far_s is not None:
            return list(shares)
        return [source if source in shares else max(shares, key=shares.__getitem__)]

    def plan(self) -> None:
        simulation = self.simulation
        if simulation.now - self.planned_s < PLAN_S:
            return
        self.planned_s = simulation.now
        capacity = simulation.cluster.topology.capacities
        jobs = self.jobs()
        ports: dict[tuple[int, int], list[Transfer]] = {}
        by_sequence = {flow.sequence: flow for flow, _, _ in jobs}
        for flow, due_s, left in jobs:
            for link in self.links(flow):
                port_ns = int(NS * left * flow.path.shares[link] / capacity[link])
                transfer = Transfer(int(NS * due_s), flow.sequence, port_ns, self.weight(flow))
                ports.setdefault((link, flow.stage), []).append(transfer)
        near: set[Flow] = set()
        far: set[Flow] = set()
        for (link, _), waiting in ports.items():
            late = {by_sequence[sequence] for sequence in given_up(waiting, self.now_ns())}
            near |= {flow for flow in late if flow.path.source == link or self.parts.far_s is None}
            far |= {flow for flow in late if flow.path.source != link}
        if self.parts.far_s is not None:
            simulation.at(simulation.now + self.parts.far_s, self.learn, far)
        self.late = near | self.far

    def learn(self, far: set[Flow]) -> None:
        self.far = far

    def weight(self, flow: Flow) -> int:
        return flow.state.request.weight if self.parts.weights and flow.state is not None else 1

    # -- places

    def order(self, flow: Flow) -> int:
        state = flow.state
        if self.queues is not None or state is None or state.pruned:
            return super().order(flow)
        if flow.stage == 3:
            return self.last_order(flow)
        if flow.stage == 1 and flow.batch.step == QUEUED and self.needed_ns(flow):
            return self.load_order(flow)
        return super().order(flow)

    def load_order(self, flow: Flow) -> int:
        assert flow.state is not None
        if self.parts.loads == "shipped":
            return super().order(flow)
        facts = msgspec.structs.replace(self.queued_stage(flow), deadline_ns=rules.NO_DEADLINE)
        size = self.rules.place(facts, self.rules.first(), 0).key[2] >> 4
        by_size_s = 1e-6 * size  # as in `mfs`, except late ones
        if self.parts.loads == "plain":
            return pack(EARLY, RLI_UNKNOWN, by_size_s, 2, flow.sequence)
        self.plan()
        if flow in self.late:
            return pack(EARLY, LATE_FIRST, by_size_s, 2, flow.sequence)
        by_s = by_size_s if self.parts.loads == "size" else self.needed_ns(flow) / NS
        return pack(EARLY, RLI_UNKNOWN, by_s, 2, flow.sequence)

    def last_order(self, flow: Flow) -> int:
        assert flow.state is not None
        simulation, state, request = self.simulation, flow.state, flow.state.request
        left = simulation.p2d_left(state) * 1e-6
        if self.parts.lasts not in self.chosen:
            place = super().order(flow)
            lost = state.policy is not None and state.policy.infeasible
            if lost and self.parts.lasts == "due":
                return pack(LAST, 0, request.deadline_s, sequence=flow.sequence)
            return place
        self.plan()
        if self.parts.class0:
            place = super().order(flow)
            if state.policy is not None and state.policy.critical and not state.policy.infeasible:
                return place
        if flow in self.late:
            if self.parts.renewed:
                due_s = request.deadline_s + RENEWAL_BUDGETS * request.budget_s
                return pack(LAST, 0, due_s, sequence=flow.sequence)
            return pack(LAST, 1, left, sequence=flow.sequence)
        by = left if self.parts.lasts == "size" else request.deadline_s
        return pack(LAST, 0, by, sequence=flow.sequence)

    def tick(self) -> None:
        if not self.chosen:
            super().tick()
            return
        simulation = self.simulation
        self.plan()
        for flow in list(simulation.shipping):
            simulation.reorder(flow)
        for unit in range(len(simulation.queues)):
            for flow in simulation.queued_reuse(unit):
                simulation.reorder(flow)

    def flow_ended(self, flow: Flow) -> None:
        super().flow_ended(flow)
        self.late.discard(flow)
