"""Forms a unit's batches as the simulator does, and determines what each rank of the unit has to compute and move."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from bench.sim.batching import FirstComeFirstServed, RequestScheduler, least_loaded
from bench.sim.cluster import Cluster, Request
from bench.sim.reuse import prefill_s
from bench.sim.serve import scheduler as scheduler_of
from bench.sim.states import State
from bench.testbed.scale import Scale
from bench.testbed.scenario import PREFILL_HOSTS, RANKS
from mfsd.policy.red import robust_effective_deadline
from mfsd.policy.serve.fetch import ReuseView


class Part(msgspec.Struct):
    """A request's share in a batch, on the rank that holds it. Bytes are the testbed's, of one layer."""

    request: Request
    fetch_bytes: int
    push_bytes: int
    is_last: bool


class Batch(msgspec.Struct):
    """What the ranks of a unit run together. Seconds are the cluster's, bytes the testbed's."""

    number: int
    unit: int
    layers: int
    attention_s: float
    experts_s: float
    dispatch_bytes: list[int]
    """Bytes that each rank sends to the other one in each layer; the combine returns as many."""
    parts: list[list[Part]]
    """By rank."""
    deadline_s: float
    """Robust effective deadline of its requests."""
    ended_ns: list[int] = []
    """When each rank had ended it, CLOCK_MONOTONIC."""

    @property
    def requests(self) -> list[Part]:
        return [part for parts in self.parts for part in parts]


class Unit:
    """Queue of a prefill unit. `scheduler`: chooses who shares a batch, one of `bench.sim.serve.SCHEDULERS`, up to the
    token budget; all but first come first served are planned by `mfsd.policy.serve.plan_step`."""

    def __init__(self, cluster: Cluster, scale: Scale, number: int, scheduler: str = "fcfs") -> None:
        self.cluster, self.scale, self.number = cluster, scale, number
        self.queue: deque[State] = deque()
        self.running: Batch | None = None
        self.loads_first = cluster.config.fetch == "loaded"
        self._scheduler: RequestScheduler = (
            FirstComeFirstServed() if scheduler == "fcfs" else scheduler_of(scheduler, cluster)
        )
        self._formed = 0
        self._loading: set[int] = set()
        self._ends_s = 0.0
        """When the running batch ends, if nothing disturbs it."""
        self._token_s = cluster.batch_s([(1024, 1024)] * 4) / 4096

    def arrived(self, request: Request) -> State:
        """Queues a request. If it loads first, its rank is chosen now, because its KV goes there, and it joins no batch
        before `loaded`."""
        state = State(request, self.cluster)
        if self.loads_first:
            tokens = [0] * RANKS
            for other in self.queue:
                tokens[other.request.group] += other.request.new_tokens - other.done_tokens
            request.group = least_loaded(tokens, self._formed + len(self.queue))
            if request.remote_tokens:
                self._loading.add(request.number)
        self.queue.append(state)
        return state

    def loaded(self, number: int) -> None:
        self._loading.discard(number)

    def recompute(self, state: State) -> None:
        """Makes the request compute what it would have fetched."""
        request = state.request
        state.request = msgspec.structs.replace(
            request,
            new_tokens=request.new_tokens + request.remote_tokens,
            context_tokens=request.context_tokens - request.remote_tokens,
            remote_tokens=0,
            owners=(),
        )
        self.loaded(request.number)

    def ended(self, now_s: float) -> None:
        """The running batch has ended."""
        self.running = None
        self._scheduler.computed(self.number, now_s)

    def load_bytes(self, request: Request) -> int:
        """Bytes of the request's load, of one layer."""
        return self.scale.size(request.remote_tokens * self.cluster.kv_bytes)

    def needed_s(self, state: State, now_s: float) -> float:
        """Returns when the request's load must be there for it to be in time. Requests that wait for loads of their own
        are not expected to go first (`bench.sim.pace`)."""
        ahead = [s for s in self.queue if s is not state and s.request.number not in self._loading]
        tokens = sum(s.request.new_tokens - s.done_tokens for s in [*ahead, state])
        return state.request.deadline_s - tokens * self._token_s - self._busy_s(now_s)

    def view_of(self, state: State, fetch_s: float | None, now_s: float) -> ReuseView:
        """Returns what is known when the request decides whether to fetch its reuse, the same as the simulator's units
        know."""
        request, cluster = state.request, self.cluster
        waiting = [other for other in self.queue if other is not state]
        tokens = sum(s.request.new_tokens - s.done_tokens for s in waiting)
        whole = request.new_tokens + request.remote_tokens
        return ReuseView(
            fetch_s=fetch_s,
            queue_s=self._busy_s(now_s) + tokens * self._token_s,
            rest_s=prefill_s(cluster, request.new_tokens, request.context_tokens),
            whole_s=prefill_s(cluster, whole, request.context_tokens - request.remote_tokens),
            left_s=request.deadline_s - now_s,
            limit_s=request.budget_s,
            waiting=len(waiting),
        )

    def _busy_s(self, now_s: float) -> float:
        return max(0.0, self._ends_s - now_s) if self.running is not None else 0.0

    def next_batch(self, now_s: float) -> Batch | None:
        """Returns the batch that the idle unit runs now; None if no request waits that has its load."""
        cluster, model = self.cluster, self.cluster.model
        ready = [state for state in self.queue if state.request.number not in self._loading]
        plan = self._scheduler.plan(ready, cluster.config.batch_tokens, now_s)
        if not plan:
            return None
        tokens = [0] * RANKS
        parts: list[list[Part]] = [[] for _ in range(RANKS)]
        lengths: list[list[tuple[int, int]]] = [[] for _ in range(RANKS)]
        for state, take in plan:
            request, first = state.request, state.done_tokens == 0
            open_rank = request.group < 0 or (first and not self.loads_first)
            rank = least_loaded(tokens, self._formed) if open_rank else request.group
            request.group = rank
            context = request.context_tokens + state.done_tokens
            pushed = 0 if first else context
            state.done_tokens += take
            last = state.done_tokens >= request.new_tokens
            if last:
                self.queue.remove(state)
            tokens[rank] += take
            lengths[rank].append((take, context))
            parts[rank].append(
                Part(
                    request,
                    self.load_bytes(request) if first and not self.loads_first else 0,
                    # Cut so that the sum does not depend on where the prompt is.
                    self.scale.size((context + take) * cluster.kv_bytes) - self.scale.size(pushed * cluster.kv_bytes),
                    last,
                )
            )
        moved_bytes = cluster.collective_bytes(sum(tokens))
        self._formed += 1
        self.running = Batch(
            number=self._formed << 8 | self.number + 1,
            unit=self.number,
            layers=model.layers,
            attention_s=max(model.attention_s(cluster.gpu, group) for group in lengths),
            experts_s=model.expert_s(cluster.gpu, sum(tokens), cluster.expert_imbalance()),
            # A rank without tokens still takes part, or the other one would not know when it is done.
            dispatch_bytes=[max(64, self.scale.size(moved_bytes * t / sum(tokens))) for t in tokens],
            parts=parts,
            deadline_s=robust_effective_deadline([int(s.request.deadline_s * 1e9) for s, _ in plan]).red_ns / 1e9,
        )
        compute_s = self.running.layers * (self.running.attention_s + self.running.experts_s)
        self._ends_s = now_s + compute_s + self.wire_s(self.running)
        return self.running

    def wire_s(self, batch: Batch) -> float:
        """Returns the time of the batch's collectives alone on their links, in the cluster's seconds."""
        longest = max(batch.dispatch_bytes) / self.scale.bytes
        return 2 * batch.layers * longest / self.cluster.link


def shipped_bytes(cluster: Cluster, scale: Scale, request: Request) -> int:
    """Returns all stage-3 bytes of a request, however `Unit.next_batch` cuts it."""
    return scale.size((request.new_tokens + request.context_tokens) * cluster.kv_bytes) * cluster.model.layers


def rank_host(unit: int, rank: int) -> int:
    """Returns the number of the host that is this rank."""
    assert unit * RANKS + rank < PREFILL_HOSTS
    return unit * RANKS + rank


def owner_host(request: Request) -> int:
    """Returns the number of the host that has the request's cached blocks; 0 if it has none."""
    return request.owners[0][0] if request.owners else 0


ClassesOf = Callable[[Request], tuple[int, int]]
"""Returns the classes of a request's load and of its last stage, if nothing is scheduled."""


def batch_command(
    batch: Batch, rank: int, scale: Scale, zero_ns: int, wire_s: float, classes_of: ClassesOf = lambda _: (0, 0)
) -> str:
    """Returns the command that prefill.c reads. Deadlines are on this machine's CLOCK_MONOTONIC; `zero_ns` is second
    0."""
    compute_ns = scale.ns(batch.layers * (batch.attention_s + batch.experts_s) + wire_s)
    sent, arrives = batch.dispatch_bytes[rank], batch.dispatch_bytes[1 - rank]
    head = (
        f"batch {batch.number} {batch.layers} {scale.ns(batch.attention_s)} {scale.ns(batch.experts_s)} "
        f"{sent} {arrives} {arrives} {sent} {zero_ns + scale.ns(batch.deadline_s)} {compute_ns} "
        f"{len(batch.parts[rank])}"
    )
    lines = [
        f"{p.request.number} {zero_ns + scale.ns(p.request.deadline_s)} {scale.ns(p.request.budget_s)} "
        f"{PREFILL_HOSTS + p.request.decode} {owner_host(p.request)} {p.fetch_bytes} {p.push_bytes} "
        + " ".join(map(str, classes_of(p.request)))
        for p in batch.parts[rank]
    ]
    return "\n".join([head, *lines])


def load_command(
    request: Request, layer_bytes: int, layers: int, scale: Scale, zero_ns: int, needed_s: float, reuse_class: int
) -> str:
    """Returns the command that prefill_load of prefill.c reads. The place in the engine's order is that of its
    deadline."""
    return (
        f"load {request.number} {owner_host(request)} {layers} {layer_bytes} {max(1, zero_ns + scale.ns(needed_s))} "
        f"{zero_ns + scale.ns(request.deadline_s)} {scale.ns(request.budget_s)} {round(request.deadline_s * 1e3)} "
        f"{reuse_class}"
    )
