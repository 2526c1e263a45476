"""Moves the KV of calls that decode on another replica than the one that computed their prompt.

Each replica has a port that sends and receives at the same rate (`mfsd._native.Fluid`). At both ports the KV of the
call whose prompt was due first goes first; the remaining rate goes to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from bench.sim.serving.config import Apart, Eviction
from bench.sim.serving.live import Live
from bench.sim.serving.replica import Replica
from mfsd._native import Fluid, FluidPath
from mfsd.policy import route
from mfsd.policy.route import Role, Router, choose

NS_PER_S = 1e9


class Handover(NamedTuple):
    live: Live
    """The call as it was where its prompt was computed."""
    there: Live
    """The same call where it decodes."""
    source: Replica
    sink: Replica
    size_bytes: int


class Handovers:
    """Call `leaves` when a prompt is done, `stepped` when a replica's step has ended, and `due` at each requested
    wake-up."""

    def __init__(self, config: Apart, replicas: Sequence[Replica], wake: Callable[[float], None]) -> None:
        """Raises ValueError if there is no replica to decode on, or if replicas have options that are not simulated
        with this."""
        count = len(replicas)
        if config.prefill >= count:
            raise ValueError(f"prefill is {config.prefill}: use fewer than there are replicas, {count}")
        if any(replica.config.store is not None for replica in replicas):
            raise ValueError("store: a prefill replica reads from none; use no store, or replicas for both")
        if any(replica.config.eviction is Eviction.PAUSE for replica in replicas):
            raise ValueError("eviction is pause: use recompute, prefix or swap, or replicas for both")
        self._config, self._replicas, self._wake = config, replicas, wake
        self._sinks = {replica.name: replica for replica in replicas[config.prefill :]}
        self._ports = Fluid([config.port_bytes_per_s] * (2 * count))
        """The port by which each replica sends, then the port by which each receives."""
        self._moving: dict[int, Handover] = {}
        self._waiting: list[list[tuple[int, int, Handover]]] = [[] for _ in replicas]
        """Handovers that wait for room at each replica, as heaps: when the prompt was due (ns), number."""
        self._asked: list[Replica] = []
        """Replicas for which KV has begun to wait in this step."""
        self._wakes_s = -1.0
        for replica in replicas:
            replica.role = Role.DECODE if replica.name in self._sinks else Role.PREFILL
            replica.history = replicas[0].history  # a prefill replica learns how long outputs were
        for replica in replicas[: config.prefill]:
            replica.hand_over = self._leaving(replica)

    def _leaving(self, source: Replica) -> Callable[[Live, float], None]:
        return lambda live, now_s: self.leaves(source, live, now_s)

    def leaves(self, source: Replica, live: Live, now_s: float) -> None:
        self._ports.advance(now_s)
        size_bytes = live.num_computed_tokens * self._config.kv_bytes_per_token
        sink = self._choose(live, size_bytes)
        live.record.decoder = sink.number
        handover = Handover(live, _there(live), source, sink, size_bytes)
        heappush(self._waiting[sink.number], (round(NS_PER_S * live.first_due_s), live.request_id, handover))
        self._asked.append(sink)

    def _choose(self, live: Live, size_bytes: int) -> Replica:
        """Chooses as the gateway does by default: the port that owes least, then the fewest requests."""
        asked = route.Call(prompt_tokens=live.call.prompt_tokens, tier=live.call.tier, kv_bytes=size_bytes)
        owed = self._owed_bytes()
        views = [
            msgspec.structs.replace(
                view,
                waiting=view.waiting + sink.coming + len(self._waiting[sink.number]),
                port_rate_bytes_per_s=max(1, round(self._config.port_bytes_per_s)),
                owed_bytes=round(owed[sink.number]),
            )
            for sink in self._sinks.values()
            for view in (sink.view(live.call, live.program),)
        ]
        choice = choose(Router.OWED, asked, views, role=Role.DECODE)
        assert choice.replica is not None  # all are healthy and none is full
        return self._sinks[choice.replica]

    def _owed_bytes(self) -> list[float]:
        """Returns the bytes that each port has still to receive, including KV that waits for room."""
        owed = [float(sum(handover.size_bytes for _, _, handover in waiting)) for waiting in self._waiting]
        for number, handover in self._moving.items():
            owed[handover.sink.number] += self._ports.remaining(number)
        return owed

    def _start(self, sink: Replica, now_s: float) -> None:
        """Starts to move KV for which there is room, in the order of the ports."""
        waiting = self._waiting[sink.number]
        while waiting and sink.takes(waiting[0][2].there):
            order, _, handover = heappop(waiting)
            sink.expect(handover.there)
            handover.live.record.moving_s = now_s
            path = FluidPath([handover.source.number, len(self._replicas) + sink.number])
            self._moving[self._ports.add(path, order, handover.size_bytes)] = handover
        self._wake_next()

    def stepped(self, replica: Replica, now_s: float) -> None:
        """A step has ended. KV that has arrived joins, and there may be room for other KV here, or for what was
        computed."""
        replica.join()
        for sink in (replica, *self._asked):
            if self._waiting[sink.number]:
                self._ports.advance(now_s)
                self._start(sink, now_s)
        self._asked.clear()

    def due(self, now_s: float) -> set[int]:
        """Returns the replicas that have something new to plan."""
        self._ports.advance(now_s)
        seen: set[int] = set()
        for number in self._ports.take_completed():
            self._ports.remove(number)
            handover = self._moving.pop(number)
            handover.source.left(handover.live)
            handover.source.step_s = handover.sink.step_s  # the time of an output token, for its deadlines
            handover.sink.came(handover.there, now_s)
            seen |= {handover.source.number, handover.sink.number}
        self._wake_next()
        return seen

    def _wake_next(self) -> None:
        at_s = self._ports.next()
        if self._moving and at_s < float("inf") and at_s != self._wakes_s:
            self._wakes_s = at_s
            self._wake(at_s)


def _there(live: Live) -> Live:
    """Copies a call for another replica, because queues of the first one may still have entries of the original."""
    there = Live(live.request_id, live.call, live.arrival_s, live.record, live.program)
    there.due_s, there.first_due_s = live.due_s, live.first_due_s
    there.output_tokens, there.output_tokens_max = live.output_tokens, live.output_tokens_max
    there.inherited, there.service_s = live.inherited, live.service_s
    there.program_service_s, there.program_wait_s = live.program_service_s, live.program_wait_s
    there.num_computed_tokens, there.prefill_left = live.num_prompt_tokens, 0
    there.num_output_tokens = live.num_output_tokens
    return there
