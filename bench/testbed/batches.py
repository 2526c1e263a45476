"""Forms a unit's batches as the simulator does, and says what each rank of the unit has to compute and move."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from bench.sim.batching import FirstComeFirstServed, least_loaded
from bench.sim.cluster import Cluster, Request
from bench.sim.states import State
from bench.testbed.scale import Scale
from bench.testbed.scenario import PREFILL_HOSTS, RANKS
from mfsd.policy.red import robust_effective_deadline


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
    """That each rank sends to the other one, each layer; the combine brings as many back."""
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
    """Queue of a prefill unit: first come first served up to the token budget."""

    def __init__(self, cluster: Cluster, scale: Scale, number: int) -> None:
        self.cluster, self.scale, self.number = cluster, scale, number
        self.queue: deque[State] = deque()
        self.running: Batch | None = None
        self._scheduler = FirstComeFirstServed()
        self._formed = 0

    def arrived(self, request: Request) -> None:
        self.queue.append(State(request, self.cluster))

    def next_batch(self, now_s: float) -> Batch | None:
        """The batch that the idle unit runs now; None when nothing waits."""
        cluster, model = self.cluster, self.cluster.model
        plan = self._scheduler.plan(self.queue, cluster.config.batch_tokens, now_s)
        if not plan:
            return None
        tokens = [0] * RANKS
        parts: list[list[Part]] = [[] for _ in range(RANKS)]
        lengths: list[list[tuple[int, int]]] = [[] for _ in range(RANKS)]
        for state, take in plan:
            request, first = state.request, state.done_tokens == 0
            rank = least_loaded(tokens, self._formed) if request.group < 0 or first else request.group
            request.group = rank
            context = request.context_tokens + state.done_tokens
            moved = take + (request.context_tokens if first else 0)
            state.done_tokens += take
            last = state.done_tokens >= request.new_tokens
            if last:
                self.queue.remove(state)
            tokens[rank] += take
            lengths[rank].append((take, context))
            fetch = request.remote_tokens if first else 0
            parts[rank].append(
                Part(
                    request,
                    self.scale.size(fetch * cluster.kv_bytes),
                    self.scale.size(moved * cluster.kv_bytes),
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
            # A rank without tokens still takes part, or the other would not know when it is through.
            dispatch_bytes=[max(64, self.scale.size(moved_bytes * t / sum(tokens))) for t in tokens],
            parts=parts,
            deadline_s=robust_effective_deadline([int(s.request.deadline_s * 1e9) for s, _ in plan]).red_ns / 1e9,
        )
        return self.running

    def wire_s(self, batch: Batch) -> float:
        """Time of the batch's collectives alone on their links, of the cluster."""
        longest = max(batch.dispatch_bytes) / self.scale.bytes
        return 2 * batch.layers * longest / self.cluster.link


def shipped_bytes(cluster: Cluster, scale: Scale, request: Request) -> int:
    """All stage-3 bytes of a request: as `Unit.next_batch` cuts them, chunk by chunk."""
    total, done = 0, 0
    while done < request.new_tokens:
        take = min(cluster.config.batch_tokens, request.new_tokens - done)
        moved = take + (request.context_tokens if done == 0 else 0)
        total += scale.size(moved * cluster.kv_bytes)
        done += take
    return total * cluster.model.layers


def rank_host(unit: int, rank: int) -> int:
    """Number of the host that is this rank."""
    assert unit * RANKS + rank < PREFILL_HOSTS
    return unit * RANKS + rank


def owner_host(request: Request) -> int:
    """Number of the host that has the request's cached blocks; 0 when it has none."""
    return request.owners[0][0] if request.owners else 0


ClassesOf = Callable[[Request], tuple[int, int]]
"""The classes of a request's load and of its last stage, where nothing is scheduled."""


def batch_command(
    batch: Batch, rank: int, scale: Scale, zero_ns: int, wire_s: float, classes_of: ClassesOf = lambda _: (0, 0)
) -> str:
    """What prefill.c reads. Deadlines are given on this machine's CLOCK_MONOTONIC; `zero_ns` is second 0."""
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
