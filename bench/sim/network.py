"""Determines the rates of flows: by shared links, with production's host queues in front of them, or without
contention."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Protocol

from mfsd._native import Fluid, FluidPath

if TYPE_CHECKING:
    from bench.sim.states import Flow
    from bench.sim.topology import Topology


class Network(Protocol):
    """Moves flows' bytes in virtual time. `flow.order` and `flow.wire_class` are set by the policy. A flow is a stream,
    which is idle while it has no bytes and continues when it gets more."""

    def send(self, flow: Flow, size: float) -> None: ...
    def reorder(self, flow: Flow) -> None: ...
    def end(self, flow: Flow) -> None: ...
    def remaining(self, flow: Flow) -> float: ...
    def next(self) -> float: ...
    def advance(self, now: float) -> list[Flow]: ...
    def load_before(self, link: int, order: int, wire_class: int) -> float: ...
    def flow_events(self) -> int: ...


class SharedNetwork:
    """Every link serves flows in their exact order, as flow simulators assume. An upper reference for a real fabric."""

    def __init__(self, topology: Topology) -> None:
        self.fluid = topology.network()
        self.flows: dict[int, Flow] = {}

    def priority(self, flow: Flow) -> int:
        return flow.order

    def native_path(self, flow: Flow) -> FluidPath:
        path = flow.path
        if not flow.limited:
            return path.native
        # A private link limits the flow's rate.
        if flow.limit_link < 0:
            flow.limit_link = self.fluid.add_link(flow.rate_limit)
        return FluidPath([*path.shares, flow.limit_link], [*path.shares.values(), 1.0])

    def send(self, flow: Flow, size: float) -> None:
        if flow.number < 0:
            flow.number = self.fluid.add(self.native_path(flow), self.priority(flow), size, flow.path.weight)
            self.flows[flow.number] = flow
        else:
            self.fluid.refill(flow.number, size)

    def reorder(self, flow: Flow) -> None:
        if flow.number >= 0:
            self.fluid.set_order(flow.number, self.priority(flow))

    def limit(self, flow: Flow, rate: float) -> None:
        flow.rate_limit = rate
        if flow.limit_link >= 0:
            self.fluid.set_capacity(flow.limit_link, rate)

    def end(self, flow: Flow) -> None:
        if flow.number >= 0:
            self.fluid.remove(flow.number)
            del self.flows[flow.number]
            flow.number = -1

    def remaining(self, flow: Flow) -> float:
        return self.fluid.remaining(flow.number) if flow.number >= 0 else 0.0

    def next(self) -> float:
        return self.fluid.next()

    def advance(self, now: float) -> list[Flow]:
        self.fluid.advance(now)
        return [self.flows[number] for number in self.fluid.take_completed()]

    def load_before(self, link: int, order: int, wire_class: int) -> float:
        """Returns the bytes per second on a link that go before that order (before that class if only classes are
        known)."""
        return self.fluid.link_rate(link, order)

    def flow_events(self) -> int:
        return int(self.fluid.stats()["events"])


class HostQueuedNetwork(SharedNetwork):
    """As in production: collectives go straight to the wire. KV waits at its sending NIC in exact order, and only the
    first `window` flows there are posted. The fabric knows only wire classes and shares fairly inside each."""

    def __init__(self, topology: Topology, window: int = 1) -> None:
        super().__init__(topology)
        self.window = window
        self.backlog: dict[Flow, float] = {}
        self.posted: dict[int, list[Flow]] = {}
        self.waiting: dict[int, list[Flow]] = {}

    def priority(self, flow: Flow) -> int:
        return flow.wire_class

    def send(self, flow: Flow, size: float) -> None:
        if flow.stage == 2:
            super().send(flow, size)
            return
        nic = flow.path.source
        if flow in self.posted.setdefault(nic, []):
            super().send(flow, size)
            return
        if flow in self.backlog:
            self.backlog[flow] += size
            return
        self.backlog[flow] = size
        self.waiting.setdefault(nic, []).append(flow)
        self._grant(nic)

    def reorder(self, flow: Flow) -> None:
        if flow.stage == 2:
            super().reorder(flow)
            return
        if flow.number >= 0:
            self.fluid.set_order(flow.number, self.priority(flow))
        self._grant(flow.path.source)

    def end(self, flow: Flow) -> None:
        super().end(flow)
        nic = flow.path.source
        if flow.stage != 2:
            self.backlog.pop(flow, None)
            for queue in (self.posted.get(nic, []), self.waiting.get(nic, [])):
                if flow in queue:
                    queue.remove(flow)
            self._grant(nic)

    def _grant(self, nic: int) -> None:
        """Posts the first flows in order. Work requests are small against a flow, so a posted flow that is no longer
        among the first gets no further permits: it returns to the queue with what it has left."""
        posted, waiting = self.posted.setdefault(nic, []), self.waiting.setdefault(nic, [])
        if not waiting:
            return
        wanted = heapq.nsmallest(self.window, [*posted, *waiting], key=lambda f: f.order)
        for flow in [f for f in posted if f not in wanted]:
            self.backlog[flow] = super().remaining(flow)
            super().end(flow)
            posted.remove(flow)
            waiting.append(flow)
        for flow in [f for f in wanted if f not in posted]:
            waiting.remove(flow)
            posted.append(flow)
            super().send(flow, self.backlog.pop(flow))

    def load_before(self, link: int, order: int, wire_class: int) -> float:
        return self.fluid.link_rate(link, wire_class)

    def remaining(self, flow: Flow) -> float:
        return self.backlog[flow] if flow in self.backlog else super().remaining(flow)

    def advance(self, now: float) -> list[Flow]:
        done = super().advance(now)
        for flow in done:
            if flow.stage != 2:
                super().end(flow)
                nic = flow.path.source
                self.posted[nic].remove(flow)
                self._grant(nic)
        return done


class IsolatedNetwork:
    """No contention: every flow moves at the rate it would have alone."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self.heap: list[tuple[float, int, Flow]] = []
        self.busy_until: dict[Flow, float] = {}

    def send(self, flow: Flow, size: float) -> None:
        self.events += 2
        begin = max(self.now, self.busy_until.get(flow, 0.0))
        self.busy_until[flow] = begin + size / flow.path.isolated_rate
        heapq.heappush(self.heap, (self.busy_until[flow], self.events, flow))

    def reorder(self, flow: Flow) -> None:
        pass

    def limit(self, flow: Flow, rate: float) -> None:
        pass

    def end(self, flow: Flow) -> None:
        self.busy_until.pop(flow, None)

    def remaining(self, flow: Flow) -> float:
        return max(0.0, self.busy_until.get(flow, 0.0) - self.now) * flow.path.isolated_rate

    def next(self) -> float:
        while self.heap and self.busy_until.get(self.heap[0][2]) != self.heap[0][0]:
            heapq.heappop(self.heap)  # the stream got more bytes since
        return self.heap[0][0] if self.heap else math.inf

    def advance(self, now: float) -> list[Flow]:
        self.now = now
        done = []
        while self.next() <= now:
            _, _, flow = heapq.heappop(self.heap)
            del self.busy_until[flow]
            done.append(flow)
        return done

    def load_before(self, link: int, order: int, wire_class: int) -> float:
        return 0.0

    def flow_events(self) -> int:
        return self.events


__all__ = ["Fluid", "HostQueuedNetwork", "IsolatedNetwork", "Network", "SharedNetwork"]
