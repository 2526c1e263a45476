"""The state of a run: flows, requests, and the batches that compute them."""

from __future__ import annotations

from typing import Any

from bench.sim.cluster import Cluster, Request
from bench.sim.topology import Path

WAIT, RING, ATTENTION, DISPATCH, EXPERTS, COMBINE, ENDED, QUEUED = range(8)


class Flow:
    """A stream of one stage: a collective of a batch (2), or a request's KV that comes in (1) or goes out (3)."""

    __slots__ = (
        "batch",
        "layer",
        "layers",
        "limit_link",
        "limited",
        "message_bytes",
        "number",
        "order",
        "path",
        "posted_s",
        "rate_limit",
        "sequence",
        "stage",
        "state",
        "wire_class",
    )

    def __init__(
        self, stage: int, path: Path, batch: Batch, state: State | None, message_bytes: float, sequence: int
    ) -> None:
        self.stage = stage
        self.path = path
        self.batch = batch
        self.state = state
        self.message_bytes = message_bytes  # of one layer
        self.layer = 0  # the layer it is for
        self.layers = 1  # that one message is for; all for reuse that is loaded first
        self.sequence = sequence
        self.number = -1
        self.order = 0
        self.wire_class = 0
        self.posted_s = 0.0
        self.limited = False
        self.rate_limit = 0.0
        self.limit_link = -1

    @property
    def port_bytes(self) -> float:
        """Bytes of one message on its busiest NIC."""
        return self.message_bytes * max(self.path.shares.values())


class State:
    """A request in the cluster: what is computed, fetched and shipped."""

    __slots__ = (
        "batch",
        "batches_before",
        "cluster",
        "computed",
        "done_tokens",
        "fetched",
        "fetched_bytes",
        "finish_s",
        "p2d",
        "p2d_posted",
        "p2d_total",
        "policy",
        "pruned",
        "request",
        "reuse",
        "undecided",
    )

    def __init__(self, request: Request, cluster: Cluster) -> None:
        self.request = request
        self.cluster = cluster  # the part of its model
        self.batch: Batch | None = None  # a batch of its own while it queues and is already fetched
        self.batches_before = 0  # batches expected between the unit's present one and its own, while it queues
        self.done_tokens = 0
        self.computed = False
        self.fetched = 0
        self.fetched_bytes = 0.0  # that have arrived, including those of a load that was given up
        self.reuse: Flow | None = None
        self.p2d: Flow | None = None
        self.p2d_posted = 0.0
        self.p2d_total = 0.0
        self.finish_s = -1.0
        self.pruned = False
        self.undecided = False  # whether it is still open if it fetches its reuse or computes it
        self.policy: Any = None


class Chunk:
    """A part of a prompt that one batch computes."""

    __slots__ = ("context", "new", "p2d_bytes", "state")

    def __init__(self, state: State, new: int, p2d_bytes: float) -> None:
        self.state = state
        self.new = new
        self.context = state.request.context_tokens + state.done_tokens
        self.p2d_bytes = p2d_bytes  # per layer


class Batch:
    """Chunks that run their layers together."""

    __slots__ = (
        "attention_s",
        "believed",
        "chunks",
        "cluster",
        "collective",
        "collective_bytes",
        "experts_s",
        "layer",
        "layers",
        "left",
        "paths",
        "policy",
        "serial",
        "step",
        "step_end_s",
        "unit",
        "wire_s",
    )

    def __init__(self, serial: int, unit: int, chunks: list[Chunk], cluster: Cluster) -> None:
        self.serial = serial
        self.unit = unit
        self.chunks = chunks
        self.cluster = cluster  # the part of its model
        self.layers = cluster.model.layers
        self.layer = 0
        self.step = WAIT
        self.step_end_s = 0.0
        self.collective: Flow | None = None
        self.believed = 1.0
        self.left = len(chunks)
        self.policy: Any = None
        self.attention_s = self.experts_s = self.collective_bytes = 0.0
        self.paths: tuple[Path, ...] = ()
        self.wire_s: list[float] = []  # time of each collective alone

    @property
    def tokens(self) -> int:
        return sum(chunk.new for chunk in self.chunks)
