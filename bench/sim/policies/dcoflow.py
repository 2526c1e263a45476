"""dcoflow: coflows with deadlines; admission and order together (arXiv 2205.01229). The order is built from the last
place: on the busiest link, the coflow with the latest deadline goes last if the link's work ends by then. Otherwise the
coflow with most work there is rejected and served behind all others.

Its coflows are those of requests. A batch's collectives serve many requests; they go before and are never rejected.
Reuse has the deadline of its own request.
"""

from __future__ import annotations

from bench.sim.policies import Policy, pack, register
from bench.sim.states import Flow


def admit(demands: dict[Flow, dict[int, float]], time_left: dict[Flow, float]) -> tuple[list[Flow], list[Flow]]:
    """Returns (accepted in order, rejected), given seconds of work per link and until each deadline."""
    load: dict[int, float] = {}
    users: dict[int, list[Flow]] = {}
    for flow, links in demands.items():
        for link, seconds in links.items():
            load[link] = load.get(link, 0.0) + seconds
            users.setdefault(link, []).append(flow)
    left = dict.fromkeys(demands)
    accepted: list[Flow] = []
    rejected: list[Flow] = []
    while left:
        link = max(load, key=lambda k: (load[k], -k))
        there = [f for f in users[link] if f in left]
        if not there:
            accepted.extend(sorted(left, key=lambda f: -time_left[f]))
            break
        last = max(there, key=lambda f: (time_left[f], f.sequence))
        if load[link] > time_left[last] and len(there) > 1:
            last = max(there, key=lambda f: (demands[f][link], f.sequence))
            rejected.append(last)
        elif load[link] > time_left[last]:
            rejected.append(last)
        else:
            accepted.append(last)
        del left[last]
        for k, seconds in demands[last].items():
            load[k] -= seconds
    return accepted[::-1], rejected


@register("dcoflow")
class DCoflow(Policy):
    tick_s = 1e-3

    def __init__(self, simulation) -> None:  # type: ignore[no-untyped-def]
        super().__init__(simulation)
        self.rejected: set[Flow] = set()

    def order(self, flow: Flow) -> int:
        if flow.state is None:
            flow.wire_class = 0
            return pack(0)
        late, deadline_s = flow in self.rejected, flow.state.request.deadline_s
        left_s = max(0.0, deadline_s - self.simulation.now)
        flow.wire_class = 7 if late else min(6, 1 + int(left_s * 1e2).bit_length())
        return pack(2 if late else 1, second=deadline_s)

    def flow_ended(self, flow: Flow) -> None:
        self.rejected.discard(flow)

    def tick(self) -> None:
        simulation = self.simulation
        present = list(simulation.shipping)
        for batch in simulation.active.values():
            present.extend(
                c.state.reuse for c in batch.chunks if c.state.reuse is not None and c.state.reuse.number >= 0
            )
        for unit in range(len(simulation.queues)):
            present.extend(simulation.queued_reuse(unit))
        capacities = simulation.cluster.topology.capacities
        demands, time_left = {}, {}
        for flow in present:
            left = simulation.network.remaining(flow)
            if left > 0 and flow.state is not None:
                demands[flow] = {k: left * share / capacities[k] for k, share in flow.path.shares.items()}
                time_left[flow] = flow.state.request.deadline_s - simulation.now
        self.rejected = set(admit(demands, time_left)[1])
        for flow in present:
            simulation.reorder(flow)
