"""dcoflow: coflows with deadlines; admission and order together (arXiv 2205.01229). The order is built from the last
place: on the busiest link, the coflow with the latest deadline goes last if the link's work ends by then. Otherwise the
coflow with most work there is rejected and served behind all others.

Its coflows are those of requests. A batch's collectives serve many requests; they go before and are never rejected.
Reuse has the deadline of its own request.
"""

from __future__ import annotations

from heapq import heapify, heapreplace

from bench.sim.policies import Policy, pack, register
from bench.sim.states import Flow


class Link:
    """The coflows on one link that have no place yet, by deadline and by work; both orders are made when first asked
    for, since most links never are the busiest one."""

    def __init__(self) -> None:
        self.load_s = 0.0
        self.users: dict[Flow, float] = {}
        """Coflow -> seconds of work here."""
        self._by_deadline: list[Flow] | None = None
        self._by_work: list[Flow] | None = None

    def latest(self, time_left: dict[Flow, float]) -> Flow:
        if self._by_deadline is None:
            self._by_deadline = sorted(self.users, key=lambda f: (time_left[f], f.sequence))
        return self._last(self._by_deadline)

    def largest(self) -> Flow:
        if self._by_work is None:
            self._by_work = sorted(self.users, key=lambda f: (self.users[f], f.sequence))
        return self._last(self._by_work)

    def _last(self, ordered: list[Flow]) -> Flow:
        while ordered[-1] not in self.users:
            ordered.pop()
        return ordered[-1]

    def remove(self, flow: Flow) -> None:
        self.load_s -= self.users.pop(flow)


def admit(demands: dict[Flow, dict[int, float]], time_left: dict[Flow, float]) -> tuple[list[Flow], list[Flow]]:
    """Returns (accepted in order, rejected), given seconds of work per link and until each deadline."""
    links: dict[int, Link] = {}
    for flow, work in demands.items():
        for number, seconds in work.items():
            link = links.setdefault(number, Link())
            link.load_s += seconds
            link.users[flow] = seconds
    busiest = [(-link.load_s, number) for number, link in links.items()]
    heapify(busiest)
    left = dict.fromkeys(demands)
    accepted: list[Flow] = []
    rejected: list[Flow] = []
    while left:
        number = _top(busiest, links)
        link = links[number]
        if not link.users:
            accepted.extend(sorted(left, key=lambda f: -time_left[f]))
            break
        last = link.latest(time_left)
        if link.load_s <= time_left[last]:
            accepted.append(last)
        else:
            last = link.largest()
            rejected.append(last)
        del left[last]
        for other in demands[last]:
            links[other].remove(last)
    return accepted[::-1], rejected


def _top(busiest: list[tuple[float, int]], links: dict[int, Link]) -> int:
    """Returns the busiest link. Loads only fall, so an entry that is too high is corrected when it gets to the top."""
    while True:
        load, number = busiest[0]
        if load == -links[number].load_s:
            return number
        heapreplace(busiest, (-links[number].load_s, number))


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
