"""A replica: its policy, what a step takes, what the planner believes, its memory."""

from __future__ import annotations

from enum import Enum

import msgspec

from bench.sim.serving.cost import Cost, Linear
from mfsd.policy.serve import ServeConfig, Service
from mfsd.policy.workflow import TierSpeeds


class Eviction(str, Enum):
    """What becomes of the KV of a running call that has to give way."""

    RECOMPUTE = "recompute"
    """Freed; prompt and output so far are computed again."""
    PREFIX = "prefix"
    """Left in the prefix cache: what no other call needed meanwhile is found again."""
    SWAP = "swap"
    """Moved to host memory and back beside the steps, at `swap_tokens_per_s`."""
    PAUSE = "pause"
    """Kept: the call sits steps out. Where memory has run out for all, one is recomputed."""


class Expect(str, Enum):
    """How many output tokens the engine expects of a call."""

    ORACLE = "oracle"
    HISTORY = "history"
    """Mean and two standard deviations of its application's calls that have ended (QoServe 3.4)."""
    NONE = "none"


class Belief(msgspec.Struct, frozen=True, kw_only=True):
    """What the planner starts from and whether it learns: apart from the truth."""

    profiled: bool = True
    """Begins with a profile of the truth; otherwise with nothing, which takes no call for late."""
    bias: float = 1.0
    """Estimates of the profile, and steps as observed, are so many times the truth."""
    noise: float = 0.0
    """Standard deviation of the logarithm of what is observed."""
    learns: bool = True


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A store that has the KV of all turns that have ended, whatever replica had them."""

    tokens_per_s: float = 95_000.0
    """That a replica reads from it: a port of 100 Gb/s at 131 kB a token."""
    retain: bool = False
    """Whether what is kept in memory goes by how far each program's next turn is; otherwise by use."""
    prefetch: bool = False
    """Whether KV is read before the turn arrives, while no call waits for a read."""
    hindsight: bool = False
    """Whether ends of gaps are known: a bound, no policy."""


class Apart(msgspec.Struct, frozen=True, kw_only=True):
    """Prefill and decode on replicas of their own; KV moves between them by a port of each."""

    prefill: int
    """So many replicas, the first ones, compute prompts; the others decode."""
    kv_bytes_per_token: int = 131_072
    """Of Llama3-8B."""
    port_bytes_per_s: float = 12.5e9
    """That a replica sends, and as much that it receives: 100 Gb/s."""

    def __post_init__(self) -> None:
        for name, low in (("prefill", 1), ("kv_bytes_per_token", 1), ("port_bytes_per_s", 1)):
            if not low <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}: use {low} or more")


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Engines of several models, a replica each, on a node with memory for some of them."""

    running: int
    """So many run at once."""
    weights_bytes: int = 16_000_000_000
    """Of each, read when it is started."""
    speeds: TierSpeeds = TierSpeeds()
    """Of the node: what a start takes beside that, and how fast weights are read from disk."""

    def __post_init__(self) -> None:
        for name in ("running", "weights_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: use 1 or more")


class ReplicaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One engine."""

    serve: ServeConfig = ServeConfig()
    cost: Cost = Linear()
    noise: float = 0.0
    """Standard deviation of the logarithm of true step times."""
    belief: Belief = Belief()
    kv_tokens: int | None = 400_000
    """KV memory; None: it never runs out."""
    prefix_cache: bool = True
    """Whether KV that no call holds any more is kept until its memory is needed, the least recently used first."""
    eviction: Eviction = Eviction.RECOMPUTE
    yield_every: int = 0
    """Every so many steps a running decode gives its slot to a waiting call of an earlier program queue (Agentix); 0:
    priorities decide admission only."""
    swap_tokens_per_s: float = 150_000.0
    """PCIe 4 at 20 GB/s and 131 kB a token."""
    store: StoreConfig | None = None
    """None: what the cache has lost is computed again."""
    expect: Expect = Expect.HISTORY
    expected_tokens: float = 256.0
    """Where history has nothing yet."""
    bound_outputs: bool = False
    """Whether the fence holds memory for a bound on outputs (`LengthBounds`) or for prompts alone."""
    output_limit_tokens: int = 4096
    """What a request may ask for at most (vLLM: max_tokens): no bound and no expectation is above it."""
    service: Service = Service.PLAS
    lanes: bool = False
    """Whether the view says where fast requests end (`LaneCut`)."""
    ask_always: bool = False
    """Ask plan_step for every step even where the kept queue gives the same plan faster."""
