"""The production host queue (csrc/queue/rmlq.c) under the simulator's clock: at every sending NIC it decides which
message goes next.

A message is a part of a request's KV of one layer, as work requests are; reused KV is asked for with all its layers at
once. It waits in the queue of the NIC it leaves from (the first of its group: the ranks of a tensor-parallel group move
together). With `reads`, reused KV waits in the queue of the NIC that it reaches. A message is posted when production's
windows have room for it (csrc/queue/window.c: the NIC's own, and that of the NIC at the other end). It keeps the wire
class it was posted with, and meets other traffic in a fabric that knows only those classes. Collectives never wait.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.sim.hold import Hold
from bench.sim.moves import Move
from bench.sim.network import SharedNetwork
from bench.sim.states import QUEUED
from mfsd._native import ROOM_DESTINATION_FULL, ROOM_NIC_FULL, Passage, Rmlq, Window
from mfsd.client.types import class_without_permit
from mfsd.policy import PolicyConfig
from mfsd.policy.native import native_policy
from mfsd.policy.types import Stage

if TYPE_CHECKING:
    from bench.sim.bypass import BypassLoad
    from bench.sim.states import Batch, Flow, State
    from bench.sim.topology import Topology

NS = 1_000_000_000
MESSAGE_NS = 1_000_000  # limit of a message, at the NIC's rate: 25 MB at 200 Gbit/s
WINDOW_MESSAGES = 1.5  # the NIC's own window; small, because posted messages keep their class
TICK_NS = 10_000_000  # the arbiter's heartbeat: by then a full window knows what its link has left
MESSAGES_MAX = 1 << 18  # waiting at one NIC; memory is allocated as needed; 65,000 were too few at 12.5 Gbit/s


class RmlqNetwork(SharedNetwork):
    """Shared links behind one native queue per sending NIC."""

    def __init__(
        self,
        topology: Topology,
        config: PolicyConfig,
        window_messages: float = WINDOW_MESSAGES,
        needed_ns: Callable[[Flow], int] = lambda _: 0,
        bypass: BypassLoad | None = None,
        hold: Hold | None = None,
        reads: bool = False,
    ) -> None:
        """needed_ns: returns when the reuse of a queued request must be there, as its engine would report; 0: unknown.
        hold: None: messages are held without limit. reads: reuse is posted by the reader, as one-sided reads are."""
        super().__init__(topology)
        self.reads = reads
        self.bypass = bypass
        self.hold = hold
        self.needed_ns = needed_ns
        self.classes = config.classes
        self.policy = native_policy(config)
        self.nics = topology.nics
        self.rate = int(topology.link)
        self.message_bytes = self.rate * MESSAGE_NS / NS
        self.window_ns = int(window_messages * MESSAGE_NS)
        self.queues: dict[int, Rmlq] = {}
        self.windows: dict[int, Window] = {}
        self.checks: list[tuple[int, int]] = []  # heap of times at which a NIC has room again
        self.check_ns: dict[int, int] = {}  # by NIC: the latest of these times
        self.waiting: dict[int, tuple[Flow, float, int, int]] = {}  # by cookie: flow, bytes, layer, handle
        self.posted: dict[int, tuple[Flow, int, int, Passage | None]] = {}  # by fluid number
        self.awaited: dict[Flow, dict[int, int]] = {}  # reuse: layers not there yet, and their parts
        self.left: dict[Flow, float] = {}  # bytes not yet posted
        self.messages: dict[Flow, int] = {}  # waiting or in flight
        self.announced: dict[int, set[int]] = {}  # batch -> NICs whose queue knows it
        self.cookie = 0

    def priority(self, flow: Flow) -> int:
        return flow.wire_class

    def queue(self, nic: int) -> Rmlq:
        if nic not in self.queues:
            self.queues[nic] = Rmlq(self.rate, policy=self.policy, flows_max=MESSAGES_MAX, incoming=nic >= self.nics)
            self.windows[nic] = Window(self.rate, window_ns=self.window_ns, window_bytes_min=1)
        return self.queues[nic]

    def now_ns(self) -> int:
        return int(self.fluid.now * NS)

    def queue_link(self, flow: Flow) -> int:
        """Returns the link in whose queue the flow's messages wait."""
        return self.entry_link(flow) if self.reads and flow.stage == 1 else flow.path.source

    # -- messages

    def send(self, flow: Flow, size: float) -> None:
        if flow.stage == 2:
            super().send(flow, size)
            return
        nic = self.queue_link(flow)
        if flow.stage != 1:
            self._submit(flow, size, flow.layer)
        elif flow not in self.awaited:
            layers = range(flow.layer, flow.batch.layers, flow.layers)
            self.awaited[flow] = {layer: self._submit(flow, size, layer) for layer in layers}
        self._pump(nic)

    def _submit(self, flow: Flow, size: float, layer: int) -> int:
        """Submits the bytes; returns the number of messages."""
        parts = max(1, math.ceil(size / self.message_bytes))
        self.left[flow] = self.left.get(flow, 0.0) + size
        self.messages[flow] = self.messages.get(flow, 0) + parts
        for _ in range(parts):
            self._enqueue(flow, size / parts, layer)
        if self.hold is not None:
            if self.hold.spent(flow):
                self._let_go(flow)
            else:
                self.hold.waits(flow, self.fluid.now)
        return parts

    def _enqueue(self, flow: Flow, size: float, layer: int) -> None:
        nic = self.queue_link(flow)
        stage, request, batch, deadline_ns = self._facts(flow)
        self.cookie += 1
        handle = self.queue(nic).submit(
            self.now_ns(), max(1, int(size * flow.path.shares.get(nic, 1.0))), stage=stage,
            request=request, batch=batch, deadline_ns=deadline_ns, cookie=self.cookie, layer=layer,
            destination=self.windows[nic].destination(self.target(flow), self.now_ns()),
        )  # fmt: skip
        self.waiting[self.cookie] = (flow, size, layer, handle)

    def _facts(self, flow: Flow) -> tuple[int, int, int, int]:
        """Returns what a sender reports of the flow: stage, request, batch and deadline; 0 for what it does not
        have."""
        if isinstance(flow, Move):
            return flow.mark, 0, 0, int(flow.deadline_s * NS) if flow.mark == Stage.BACKGROUND else 0
        assert flow.state is not None
        request = flow.state.request
        if flow.batch.step == QUEUED:
            return flow.stage, request.number + 1, 0, self.needed_ns(flow)
        return flow.stage, request.number + 1, flow.batch.serial, int(request.deadline_s * NS)

    def joined(self, flow: Flow) -> None:
        """The batch of a request with reuse begins: its waiting messages are submitted again, with the batch."""
        mine = [(cookie, what) for cookie, what in self.waiting.items() if what[0] is flow]
        nic = self.queue_link(flow)
        for cookie, (_, size, layer, handle) in mine:
            del self.waiting[cookie]
            self.windows[nic].give(self.queues[nic].place(handle).destination)
            self.queues[nic].cancel(handle)
            self._enqueue(flow, size, layer)

    def _pump(self, nic: int) -> None:
        queue, window, now_ns = self.queues[nic], self.windows[nic], self.now_ns()
        sends = nic < self.nics
        if self.bypass is not None and sends:
            window.set_drain(self.rate - self.bypass.rate(nic, now_ns), now_ns)
        while pick := queue.peek(now_ns):
            room, at_ns = window.room(pick.destination, pick.bytes, now_ns, pick.tier)
            if room == ROOM_NIC_FULL:
                if self.bypass is not None and sends:
                    at_ns = min(at_ns, now_ns + TICK_NS)
                if at_ns != self.check_ns.get(nic):
                    self.check_ns[nic] = at_ns
                    heapq.heappush(self.checks, (at_ns, nic))
                return
            if room == ROOM_DESTINATION_FULL:
                queue.close_destination(pick.destination)
                continue
            queue.pick(now_ns)
            passage = window.enter(pick.destination, pick.bytes, now_ns)
            self._post(pick.cookie, pick.wire_class, passage)

    def _post(self, cookie: int, wire_class: int, passage: Passage | None) -> None:
        """passage: None: the message goes without a permit."""
        flow, size, layer, handle = self.waiting.pop(cookie)
        self.left[flow] -= size
        number = self.fluid.add(flow.path.native, wire_class, size, flow.path.weight)
        self.posted[number] = (flow, handle, layer, passage)
        if self.hold is not None:
            self.hold.goes(flow, self.fluid.now)

    def _let_go(self, flow: Flow) -> None:
        """Posts all waiting messages of the flow without permits."""
        nic = self.queue_link(flow)
        for cookie, what in list(self.waiting.items()):
            if what[0] is flow:
                place = self.queues[nic].place(what[3])
                self.queues[nic].cancel(what[3])
                self.windows[nic].give(place.destination)
                self._post(cookie, class_without_permit(self.classes), None)

    def next(self) -> float:
        times = [self.fluid.next()]
        if self.checks:
            times.append(self.checks[0][0] / NS)
        if self.hold is not None:
            times.append(self.hold.next_s())
        return min(times)

    def target(self, flow: Flow) -> int:
        """Returns the far end of the flow as its queue knows it."""
        entry = self.entry_link(flow)
        return flow.path.source if self.queue_link(flow) == entry else entry

    def entry_link(self, flow: Flow) -> int:
        """Returns the first NIC that the flow enters, else the port of the NVSwitch."""
        return min(
            (link for link in flow.path.shares if self.nics <= link < 2 * self.nics), default=max(flow.path.shares)
        )

    def advance(self, now: float) -> list[Flow]:
        self.fluid.advance(now)
        done = []
        due = set()
        while self.checks and self.checks[0][0] <= self.now_ns() + 1:  # a float may be a nanosecond early
            due.add(heapq.heappop(self.checks)[1])
        for number in self.fluid.take_completed():
            if number not in self.posted:
                done.append(self.flows[number])
                continue
            flow, handle, layer, passage = self.posted.pop(number)
            self.fluid.remove(number)
            nic = self.queue_link(flow)
            if passage is not None:
                self.queues[nic].complete(handle)
                self.windows[nic].complete(passage, self.now_ns())
                self.windows[nic].give(passage.destination)
                self.queues[nic].open_destination(passage.destination)
            self.messages[flow] -= 1
            last = not self.messages[flow]
            if self.hold is not None:
                self.hold.arrives(flow, now, not last)
            if last:
                del self.messages[flow], self.left[flow]
            if flow.stage == 1:
                done += self._in_order(flow, layer)
            elif last:
                done.append(flow)
            due.add(nic)
        for nic in sorted(due):
            self._pump(nic)
        if self.hold is not None:
            for flow in self.hold.over(now):
                self._let_go(flow)
        return done

    def _in_order(self, flow: Flow, layer: int) -> list[Flow]:
        """Returns the flow once for each layer that is now complete with all before it: a later one in a better class
        may arrive first."""
        awaited, end = self.awaited[flow], flow.batch.layers
        before = min(awaited)
        awaited[layer] -= 1
        if not awaited[layer]:
            del awaited[layer]
        return [flow] * ((min(awaited, default=end) - before) // flow.layers)

    def reorder(self, flow: Flow) -> None:
        """The queue orders waiting messages; those on the wire keep their class."""
        if flow.stage == 2:
            super().reorder(flow)

    def end(self, flow: Flow) -> None:
        self.awaited.pop(flow, None)
        if self.hold is not None:
            self.hold.end(flow)
        if flow.stage == 2:
            super().end(flow)

    def remaining(self, flow: Flow) -> float:
        if flow.stage == 2:
            return super().remaining(flow)
        if flow not in self.left:
            return 0.0
        moving = sum(self.fluid.remaining(number) for number, (other, *_) in self.posted.items() if other is flow)
        return self.left[flow] + moving

    def load_before(self, link: int, order: int, wire_class: int) -> float:
        return self.fluid.link_rate(link, wire_class)

    # -- what the daemon would report to the queues

    def announce_batch(self, batch: Batch, rank: int, deadline_ns: int, compute_left_ns: int, layers: int) -> None:
        nics = self.announced.setdefault(batch.serial, set())
        for chunk in batch.chunks:
            for flow in (chunk.state.reuse, chunk.state.p2d):
                if flow is not None:
                    nics.add(self.queue_link(flow))
        for nic in sorted(nics):
            self.queue(nic).batch(
                self.now_ns(), batch.serial, layer_current=batch.layer, layers=layers, rank=min(rank, 2**32
                - 2),
                deadline_ns=max(1, deadline_ns), compute_left_ns=max(0, compute_left_ns),
            )  # fmt: skip

    def end_batch(self, batch: Batch) -> None:
        for nic in sorted(self.announced.pop(batch.serial, ())):
            self.queues[nic].batch_end(batch.serial)

    def announce_request(self, state: State, ahead: float, tail: float) -> None:
        assert state.p2d is not None
        path, request = state.p2d.path, state.request
        share = path.shares.get(path.source, 1.0)
        self.queue(path.source).request(
            self.now_ns(), request.number + 1, deadline_ns=int(request.deadline_s * NS),
            budget_ns=int(request.budget_s * NS),
            bytes_ahead=int(ahead * share), bytes_tail=int(tail * share),
        )  # fmt: skip

    def end_request(self, state: State) -> None:
        assert state.p2d is not None
        self.queue(state.p2d.path.source).request_end(state.request.number + 1)

    def prune(self, state: State) -> None:
        for flow in (state.reuse, state.p2d):
            if flow is not None:
                queue = self.queue(self.queue_link(flow))
                (queue.prune if state.pruned else queue.unprune)(state.request.number + 1)

    def set_load(self, nic: int, rho: float) -> None:
        self.queue(nic).set_load(rho)
