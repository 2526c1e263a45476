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


class Links:
    """The work on every link of the coflows that have no place yet. The coflows of a link are sorted when it is first
    asked for them, since most links never are the busiest one."""

    def __init__(self, demands: dict[Flow, dict[int, float]], time_left: dict[Flow, float]) -> None:
        self.demands, self._time_left = demands, time_left
        self.left = dict.fromkeys(demands)
        self.load: dict[int, float] = {}
        users: dict[int, list[Flow]] = {}
        for flow, work in demands.items():
            for link, seconds in work.items():
                if link in users:
                    self.load[link] += seconds
                    users[link].append(flow)
                else:
                    self.load[link] = seconds
                    users[link] = [flow]
        self._users = users
        self._by_deadline: dict[int, list[Flow]] = {}
        self._by_work: dict[int, list[Flow]] = {}
        self._busiest = [(-load, link) for link, load in self.load.items()]
        heapify(self._busiest)

    def busiest(self) -> int:
        """Loads only fall, so an entry that is too high is corrected when it gets to the top."""
        heap, load = self._busiest, self.load
        while heap[0][0] != -load[heap[0][1]]:
            heapreplace(heap, (-load[heap[0][1]], heap[0][1]))
        return heap[0][1]

    def latest(self, link: int) -> Flow | None:
        """Returns the coflow with the latest deadline; None if the link has no coflows left."""
        if link not in self._by_deadline:
            time_left = self._time_left
            self._by_deadline[link] = sorted(self._users[link], key=lambda f: (time_left[f], f.sequence))
        return self._last(self._by_deadline[link])

    def largest(self, link: int) -> Flow | None:
        """Returns the coflow with the most work there."""
        if link not in self._by_work:
            demands = self.demands
            self._by_work[link] = sorted(self._users[link], key=lambda f: (demands[f][link], f.sequence))
        return self._last(self._by_work[link])

    def _last(self, ordered: list[Flow]) -> Flow | None:
        while ordered and ordered[-1] not in self.left:
            ordered.pop()
        return ordered[-1] if ordered else None

    def remove(self, flow: Flow) -> None:
        del self.left[flow]
        load = self.load
        for link, seconds in self.demands[flow].items():
            load[link] -= seconds


def admit(demands: dict[Flow, dict[int, float]], time_left: dict[Flow, float]) -> tuple[list[Flow], list[Flow]]:
    """Returns (accepted in order, rejected), given seconds of work per link and until each deadline."""
    links = Links(demands, time_left)
    accepted: list[Flow] = []
    rejected: list[Flow] = []
    while links.left:
        link = links.busiest()
        last = links.latest(link)
        if last is None:
            accepted.extend(sorted(links.left, key=lambda f: -time_left[f]))
            break
        if links.load[link] <= time_left[last]:
            accepted.append(last)
        else:
            last = links.largest(link) or last
            rejected.append(last)
        links.remove(last)
    return accepted[::-1], rejected


@register("dcoflow")
class DCoflow(Policy):
    tick_s = 1e-3

    def __init__(self, simulation) -> None:  # type: ignore[no-untyped-def]
        super().__init__(simulation)
        self.rejected: set[Flow] = set()
        self.links: dict[Flow, list[tuple[int, float, float]]] = {}

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
        self.links.pop(flow, None)

    def _links(self, flow: Flow) -> list[tuple[int, float, float]]:
        """Returns the flow's links, its share of each, and their capacities."""
        if flow not in self.links:
            capacities = self.simulation.cluster.topology.capacities
            self.links[flow] = [(k, share, capacities[k]) for k, share in flow.path.shares.items()]
        return self.links[flow]

    def tick(self) -> None:
        simulation = self.simulation
        present = list(simulation.shipping)
        for batch in simulation.active.values():
            present.extend(
                c.state.reuse for c in batch.chunks if c.state.reuse is not None and c.state.reuse.number >= 0
            )
        for unit in range(len(simulation.queues)):
            present.extend(simulation.queued_reuse(unit))
        demands, time_left = {}, {}
        for flow in present:
            left = simulation.network.remaining(flow)
            if left > 0 and flow.state is not None:
                demands[flow] = {k: left * share / capacity for k, share, capacity in self._links(flow)}
                time_left[flow] = flow.state.request.deadline_s - simulation.now
        self.rejected = set(admit(demands, time_left)[1])
        for flow in present:
            simulation.reorder(flow)
