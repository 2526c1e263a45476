"""Exact order at the sender, and admission at the receiver: a model of what a coordinator of fan-ins could do.

A message of KV waits at its sending NIC, in the policy's exact order, until the sender's window has room. With
admission it must first be admitted by the NIC that it goes to. The request arrives there half a round trip later, the
receiver admits messages in order while its window has room, and the answer takes the other half. Posted messages meet
other traffic in a fabric that knows only classes. Collectives never wait.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.sim.network import SharedNetwork

if TYPE_CHECKING:
    from bench.sim.states import Flow
    from bench.sim.topology import Topology

MESSAGE_S = 330e-6  # at the NIC's rate: 16 MiB at 400 Gbit/s
WINDOW_MESSAGES = 1.5  # of a sender; a receiver has one more, for busy senders, and the bytes of a round trip


class AdmittedNetwork(SharedNetwork):
    def __init__(self, topology: Topology, round_trip_s: float | None) -> None:
        """round_trip_s: between a sender and a receiver; None: senders need no admission."""
        super().__init__(topology)
        self.nics = topology.nics
        self.message_bytes = topology.link * MESSAGE_S
        self.asks = round_trip_s is not None
        self.half_s = (round_trip_s or 0.0) / 2
        self.window = WINDOW_MESSAGES * self.message_bytes
        self.window_there = self.window + self.message_bytes + topology.link * 2 * self.half_s
        self.backlog: dict[Flow, float] = {}  # bytes neither sent nor asked for
        self.under_way: dict[Flow, int] = {}  # messages asked for or in flight
        self.asked: dict[Flow, float] = {}  # bytes asked for and not posted
        self.messages: dict[int, tuple[Flow, float]] = {}  # by fluid number
        self.sending: dict[int, dict[Flow, None]] = {}  # NIC -> flows with a backlog
        self.granted: dict[int, list[tuple[int, Flow, float]]] = {}  # sender -> number, flow, bytes
        self.used: dict[int, float] = {}  # bytes in flight, by sender
        self.admitted: dict[int, float] = {}  # bytes admitted, by receiver
        self.asking: dict[int, list[tuple[int, Flow, float]]] = {}  # receiver -> number, flow, bytes
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.serial = 0

    def priority(self, flow: Flow) -> int:
        return flow.wire_class

    def target(self, flow: Flow) -> int:
        """Returns the first NIC that the flow enters, else the port of the NVSwitch."""
        return min(
            (link for link in flow.path.shares if self.nics <= link < 2 * self.nics), default=max(flow.path.shares)
        )

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        self.serial += 1
        heapq.heappush(self.timers, (self.fluid.now + seconds, self.serial, act))

    # -- the sender

    def send(self, flow: Flow, size: float) -> None:
        if flow.stage == 2 or flow.state is None:
            super().send(flow, size)
            return
        self.backlog[flow] = self.backlog.get(flow, 0.0) + size
        nic = flow.path.source
        if self.asks:
            self.ask_for(flow)
        else:
            self.sending.setdefault(nic, {})[flow] = None
            self.pump(nic)

    def ask_for(self, flow: Flow) -> None:
        """Asks for as many messages of a flow as can fill the port, and no more, so that they are asked for in
        order."""
        while flow in self.backlog and self.under_way.get(flow, 0) * self.message_bytes < self.window_there:
            size = self.cut(flow)
            self.asked[flow] = self.asked.get(flow, 0.0) + size
            self.later(self.half_s, lambda size=size: self.ask(flow, size))  # type: ignore[misc]

    def cut(self, flow: Flow) -> float:
        """Takes the next message off the flow's backlog; returns its bytes."""
        left = self.backlog[flow]
        size = left / max(1, math.ceil(left * flow.path.shares.get(flow.path.source, 1.0) / self.message_bytes))
        self.backlog[flow] -= size
        if self.backlog[flow] <= 1e-6 * size:
            del self.backlog[flow]
        self.under_way[flow] = self.under_way.get(flow, 0) + 1
        return size

    def pump(self, nic: int) -> None:
        """Posts messages in order while the sender's window has room."""
        flows, granted = self.sending.get(nic, {}), self.granted.get(nic, [])
        while (flows or granted) and self.used.get(nic, 0.0) < self.window:
            if self.asks:
                first = min(granted, key=lambda one: (one[1].order, one[0]))
                granted.remove(first)
                self.post(first[1], first[2])
                continue
            flow = min(flows, key=lambda flow: (flow.order, flow.sequence))
            self.post(flow, self.cut(flow))
            if flow not in self.backlog:
                del flows[flow]

    def post(self, flow: Flow, size: float) -> None:
        if self.asks:
            self.asked[flow] -= size
            if self.asked[flow] <= 1e-6 * size:
                del self.asked[flow]
        nic = flow.path.source
        self.used[nic] = self.used.get(nic, 0.0) + size * flow.path.shares.get(nic, 1.0)
        self.messages[self.fluid.add(flow.path.native, flow.wire_class, size, flow.path.weight)] = (flow, size)

    # -- the receiver

    def ask(self, flow: Flow, size: float) -> None:
        self.serial += 1
        there = self.target(flow)
        self.asking.setdefault(there, []).append((self.serial, flow, size))
        self.admit(there)

    def admit(self, there: int) -> None:
        waiting = self.asking.get(there, [])
        while waiting and self.admitted.get(there, 0.0) < self.window_there:
            first = min(waiting, key=lambda one: (one[1].order, one[0]))
            waiting.remove(first)
            self.admitted[there] = self.admitted.get(there, 0.0) + first[2] * first[1].path.shares[there]
            self.later(self.half_s, lambda first=first: self.grant(first))  # type: ignore[misc]

    def grant(self, message: tuple[int, Flow, float]) -> None:
        nic = message[1].path.source
        self.granted.setdefault(nic, []).append(message)
        self.pump(nic)

    # -- time

    def next(self) -> float:
        return min(self.fluid.next(), self.timers[0][0]) if self.timers else self.fluid.next()

    def advance(self, now: float) -> list[Flow]:
        self.fluid.advance(now)
        done = []
        for number in self.fluid.take_completed():
            if number not in self.messages:
                done.append(self.flows[number])
                continue
            flow, size = self.messages.pop(number)
            self.fluid.remove(number)
            nic, there = flow.path.source, self.target(flow)
            self.used[nic] -= size * flow.path.shares.get(nic, 1.0)
            self.under_way[flow] -= 1
            if not self.under_way[flow]:
                del self.under_way[flow]
                if flow not in self.backlog:
                    done.append(flow)
            if self.asks:
                self.admitted[there] -= size * flow.path.shares[there]
                self.ask_for(flow)
                self.admit(there)
            self.pump(nic)
        while self.timers and self.timers[0][0] <= now:
            heapq.heappop(self.timers)[2]()
        return done

    def reorder(self, flow: Flow) -> None:
        """Waiting messages use the flow's order at the time of each choice; posted ones keep their class."""
        if flow.stage == 2:
            super().reorder(flow)

    def end(self, flow: Flow) -> None:
        if flow.stage == 2:
            super().end(flow)

    def remaining(self, flow: Flow) -> float:
        if flow.stage == 2:
            return super().remaining(flow)
        moving = sum(self.fluid.remaining(number) for number, (other, _) in self.messages.items() if other is flow)
        return self.backlog.get(flow, 0.0) + self.asked.get(flow, 0.0) + moving

    def load_before(self, link: int, order: int, wire_class: int) -> float:
        return self.fluid.link_rate(link, wire_class)
