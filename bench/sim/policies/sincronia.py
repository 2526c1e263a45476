"""sincronia: coflows in the order of BSSI (bottleneck, select, scale, iterate), greedy rates in that order.

The order is computed anew every epoch over the coflows present. Coflows that arrive in between are placed by their size
alone until then.
"""

from __future__ import annotations

from bench.sim.policies import Policy, pack, register
from bench.sim.states import Flow

EPOCH_S = 1e-3


def bssi(demands: dict[Flow, dict[int, float]]) -> list[Flow]:
    """Orders coflows, given seconds of work per link: finds the busiest link, puts the coflow that is largest there
    relative to its weight last, scales the others' weights, repeats."""
    weights = dict.fromkeys(demands, 1.0)
    load: dict[int, float] = {}
    users: dict[int, list[Flow]] = {}
    for flow, links in demands.items():
        for link, seconds in links.items():
            load[link] = load.get(link, 0.0) + seconds
            users.setdefault(link, []).append(flow)
    order: list[Flow] = []
    left = dict.fromkeys(demands)
    while left:
        link = max(load, key=lambda k: (load[k], -k))
        there = [f for f in users[link] if f in left]
        if not there:
            order.extend(reversed(list(left)))
            break
        last = min(there, key=lambda f: (weights[f] / demands[f][link], f.sequence))
        ratio = weights[last] / demands[last][link]
        for flow in there:
            weights[flow] -= ratio * demands[flow][link]
        order.append(last)
        del left[last]
        for k, seconds in demands[last].items():
            load[k] -= seconds
    return order[::-1]


@register("sincronia")
class Sincronia(Policy):
    tick_s = EPOCH_S

    def __init__(self, simulation) -> None:  # type: ignore[no-untyped-def]
        super().__init__(simulation)
        self.place: dict[Flow, float] = {}

    def order(self, flow: Flow) -> int:
        flow.wire_class = min(6, max(0, int(flow.message_bytes / flow.path.isolated_rate * 1e4).bit_length()))
        # A coflow without a place stands where its size would put it in an order by size.
        return pack(0, second=self.place.get(flow, flow.message_bytes / flow.path.isolated_rate))

    def flow_ended(self, flow: Flow) -> None:
        self.place.pop(flow, None)

    def tick(self) -> None:
        simulation = self.simulation
        present = list(simulation.shipping)
        for batch in simulation.active.values():
            if batch.collective is not None:
                present.append(batch.collective)
            present.extend(
                c.state.reuse for c in batch.chunks if c.state.reuse is not None and c.state.reuse.number >= 0
            )
        for unit in range(len(simulation.queues)):
            present.extend(simulation.queued_reuse(unit))
        capacities = simulation.cluster.topology.capacities
        demands = {}
        for flow in present:
            left = simulation.network.remaining(flow)
            if left > 0:
                demands[flow] = {k: left * share / capacities[k] for k, share in flow.path.shares.items()}
        order = bssi(demands)
        sizes = sorted(f.message_bytes / f.path.isolated_rate for f in order)
        self.place = dict(zip(order, sizes, strict=True))  # the places of the order, on the scale of sizes
        for flow in order:
            simulation.reorder(flow)
