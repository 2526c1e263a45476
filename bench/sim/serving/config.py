"""Configuration of a replica: its policy, the cost of a step, what the planner believes, its memory."""

from __future__ import annotations

from enum import Enum

import msgspec

from bench.sim.serving.cost import Cost, Linear
from mfsd.policy.serve import ServeConfig, Service
from mfsd.policy.workflow import TierSpeeds


class Eviction(str, Enum):
    """What happens to the KV of a running call that has to give way."""

    RECOMPUTE = "recompute"
    """It is freed; the prompt and the output so far are computed again."""
    PREFIX = "prefix"
    """It is left in the prefix cache: what no other call needed in the meantime is found again."""
    SWAP = "swap"
    """It is moved to host memory and back beside the steps, at `swap_tokens_per_s`."""
    PAUSE = "pause"
    """It is kept while the call pauses for some steps. If memory runs out for all calls, one is recomputed."""


class Expect(str, Enum):
    """How many output tokens the engine expects of a call."""

    ORACLE = "oracle"
    HISTORY = "history"
    """Mean and two standard deviations of its application's calls that have ended (QoServe 3.4)."""
    NONE = "none"


class Belief(msgspec.Struct, frozen=True, kw_only=True):
    """What the planner starts from and whether it learns; independent of the truth."""

    profiled: bool = True
    """Begins with a profile of the truth; otherwise with nothing, by which no call is late."""
    bias: float = 1.0
    """Factor of the profile's estimates, and of observed step times, against the truth."""
    noise: float = 0.0
    """Standard deviation of the logarithm of observed times."""
    learns: bool = True


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A store with the KV of all turns that have ended on any replica."""

    tokens_per_s: float = 95_000.0
    """Rate at which a replica reads from it: a port of 100 Gb/s at 131 kB a token."""
    retain: bool = False
    """Whether KV is kept in memory by how far away each program's next turn is; otherwise by use."""
    prefetch: bool = False
    """Whether KV is read before the turn arrives, while no call waits for a read."""
    hindsight: bool = False
    """Whether ends of gaps are known in advance: a bound, not a policy."""


class Apart(msgspec.Struct, frozen=True, kw_only=True):
    """Prefill and decode on separate replicas; KV moves between them through a port of each."""

    prefill: int
    """Number of replicas, the first ones, that compute prompts; the others decode."""
    kv_bytes_per_token: int = 131_072
    """That of Llama3-8B."""
    port_bytes_per_s: float = 12.5e9
    """A replica sends at this rate and receives at the same: 100 Gb/s."""

    def __post_init__(self) -> None:
        for name, low in (("prefill", 1), ("kv_bytes_per_token", 1), ("port_bytes_per_s", 1)):
            if not low <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}: use {low} or more")


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Engines of several models, a replica each, on a node with memory for some of them."""

    running: int
    """How many can run at once."""
    weights_bytes: int = 16_000_000_000
    """Weights of each model, read when its engine is started."""
    speeds: TierSpeeds = TierSpeeds()
    """The node's speeds: what a start takes in addition, and how fast weights are read from disk."""
    host_bytes: int = 0
    """Host memory for the weights of engines that sleep; 0: they are stopped."""

    def __post_init__(self) -> None:
        for name in ("running", "weights_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: use 1 or more")
        if self.host_bytes < 0:
            raise ValueError(f"host_bytes is {self.host_bytes}: use 0 or more")


class ReplicaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One engine."""

    serve: ServeConfig = ServeConfig()
    cost: Cost = Linear()
    noise: float = 0.0
    """Standard deviation of the logarithm of true step times."""
    belief: Belief = Belief()
    kv_tokens: int | None = 400_000
    """KV memory; None: unlimited."""
    prefix_cache: bool = True
    """Whether KV that no call uses any more is kept until its memory is needed; the least recently used is freed
    first."""
    eviction: Eviction = Eviction.RECOMPUTE
    yield_every: int = 0
    """Interval in steps at which a running decode gives its slot to a waiting call of an earlier program queue
    (Agentix). 0: priorities decide admission only."""
    swap_tokens_per_s: float = 150_000.0
    """PCIe 4 at 20 GB/s and 131 kB a token."""
    store: StoreConfig | None = None
    """None: what the cache has lost is computed again."""
    expect: Expect = Expect.HISTORY
    expected_tokens: float = 256.0
    """Expected output while there is no history."""
    bound_outputs: bool = False
    """Whether memory is reserved for a bound on outputs (`LengthBounds`); otherwise for prompts only."""
    output_limit_tokens: int = 4096
    """The most that a request may ask for (vLLM: max_tokens); limits all bounds and expectations."""
    service: Service = Service.PLAS
    lanes: bool = False
    """Whether the view contains the limit of fast requests (`LaneCut`)."""
    ask_always: bool = False
    """Calls plan_step for every step even if the kept queue gives the same plan faster."""
