"""Everything that a run depends on besides workload, policy, rate and seed: `--set NAME=VALUE`, with the range of each.

`serve.NAME=VALUE` sets a number of the request tier itself (mfsd.policy.serve.ServeConfig) under every policy of the
run; that struct checks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bench.requests.errors import UsageError
from bench.sim.serving import COSTS, Expect
from mfsd.policy.route import Load, Router
from mfsd.policy.serve import ServeConfig

SERVE = "serve."
_DAY_S = 86_400.0
ROUND_ROBIN = "round-robin"
ROUTERS = (ROUND_ROBIN, *(r.value for r in (Router.LEAST_LOADED, Router.STICKY, Router.PREFIX, Router.LOCALITY)))


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults are QoServe's for tiers (tables 1 to 3), Agentix's and H-MAS's for the others if they give any."""

    # Tiers.
    mix_interactive: float = 1.0
    """Share of requests with ttft_s and tbt_s, relative to the two below."""
    mix_batch: float = 1.0
    mix_background: float = 1.0
    ttft_s: float = 6.0
    tbt_s: float = 0.05
    batch_ttlt_s: float = 600.0
    background_ttlt_s: float = 1800.0
    low_share: float = 0.2
    """Share of each tier that is of low importance."""
    no_slo_share: float = 0.0
    """Share of requests, of whatever tier, that ask for no deadline at all."""
    swing: float = 1.0
    """Highest rate over lowest; they alternate, and the mean is --qps. 1: a constant rate."""
    swing_s: float = 900.0
    """How long each of the two rates holds."""

    # Lengths, of all workloads.
    prompt_scale: float = 1.0
    output_scale: float = 1.0

    # Programs.
    gap_scale: float = 1.0
    """Factor of the pauses between the calls of a program, and of the times of tools."""
    gap_max_s: float = 60.0
    turns_pareto: float = 1.1
    """Exponent of the number of turns of a chat."""
    turns_max: int = 60
    context_max: int = 16_000
    """Tokens at which a chat or an agent ends."""
    fan_out: int = 4
    """Concurrent calls in a round of a tree search, and candidates of best-of-n."""
    system_tokens: int = 0
    """Leading prompt tokens that all programs of a kind share (a system prompt), added to each call."""
    session_divisor: float = 8.0
    """Prompts of recorded coding sessions are divided by it, to fit an engine of this size."""

    # Drift.
    phase_s: float = 200.0
    """How long each of the three phases lasts."""
    slo_scale: float = 1.0
    """Factor of the SLOs of the tasks."""

    # Workflows.
    nodes: int = 4
    """Number of nodes, of one GPU each."""
    remote_nodes: int = 0
    """How many of them are in another region."""
    batch_share: float = 0.8
    """Share of the jobs; the others are interactive."""

    # Engines.
    cost: str = "llama3-8b-a100"
    """The cost of a step: a model on an accelerator."""
    replicas: int = 0
    """0: 1, and 4 for agents."""
    prefill: int = 0
    """Replicas that compute prompts only; the others decode. 0: each does both."""
    kv_rate_gbit: float = 100.0
    """Rate of each replica's port, by which KV goes from prefill to decode replicas."""
    models: int = 0
    """Models on one node, an engine each, of which as many run at once as there are replicas; 0: one model."""
    model_skew: float = 1.0
    """The k-th model has 1 / k ** model_skew of the requests of the first."""
    weights_gb: float = 0.0
    """Weights of each model, which its engine reads from disk at 3 GB/s; 0: those of the cost."""
    start_s: float = 20.0
    """Additional time until an engine serves."""
    host_gb: float = 0.0
    """Host memory for weights of engines that sleep in place of being stopped, which wake by it at 20 GB/s; 0: none
    sleeps."""
    router: str = ROUND_ROBIN
    """Which replica gets a request: in turn, or by a router of mfsd.policy.route."""
    router_load: Load = Load.REQUESTS
    """How the least loaded replica is determined: by requests, tokens, kv or wait."""
    locality_tokens: int = 2048
    """For router locality: prompts of at least this many tokens stay with their program."""
    slots: int = 0
    """Requests that hold KV on a replica at once; 0: 256, and 32 for programs and agents."""
    kv_tokens: int = 0
    """KV memory of a replica; 0: what the cost's accelerator has beside the weights."""
    store_tokens_per_s: float = 95_000.0
    """Rate at which a replica reads KV from the store: a port of 100 Gb/s at 131 kB a token."""
    profiled: bool = True
    """Whether policies begin with a profile of the step times; otherwise with nothing, as a live engine does."""
    belief_scale: float = 1.0
    """Factor of the step times that policies are shown."""
    belief_noise: float = 0.0
    """Standard deviation of the logarithm of their error, from step to step."""
    step_noise: float = 0.0
    """The same of the true step times."""
    expect: Expect = Expect.HISTORY
    """Output tokens that policies expect: history of the tier, oracle, or none."""

    serve: dict[str, Any] = {}
    """Numbers of ServeConfig, under every policy."""

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not low <= value <= high:  # written so that NaN fails
                raise ValueError(f"{name} is {value}: use {low:g} to {high:g}")
        if self.cost not in COSTS:
            raise ValueError(f"cost is {self.cost}: use {', '.join(COSTS)}")
        if self.router not in ROUTERS:
            raise ValueError(f"router is {self.router}: use {', '.join(ROUTERS)}")
        if self.mix_interactive + self.mix_batch + self.mix_background <= 0:
            raise ValueError("mix_interactive, mix_batch and mix_background are all 0: use at least one above 0")


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("mix_interactive", 0, 1e6), ("mix_batch", 0, 1e6), ("mix_background", 0, 1e6), ("ttft_s", 0.001, _DAY_S),
    ("tbt_s", 0.001, _DAY_S), ("batch_ttlt_s", 0.001, _DAY_S), ("background_ttlt_s", 0.001, _DAY_S),
    ("low_share", 0, 1), ("no_slo_share", 0, 1), ("swing", 1, 1000), ("swing_s", 1, _DAY_S),
    ("prompt_scale", 0.01, 100), ("output_scale", 0.01, 100),
    ("gap_scale", 0, 1000), ("gap_max_s", 0, _DAY_S), ("turns_pareto", 0.1, 100),
    ("turns_max", 1, 10_000), ("context_max", 16, 10_000_000), ("fan_out", 1, 256), ("session_divisor", 0.1, 1000),
    ("phase_s", 1, _DAY_S), ("nodes", 1, 1000), ("remote_nodes", 0, 999), ("batch_share", 0, 1),
    ("slo_scale", 0.01, 100), ("replicas", 0, 1000), ("prefill", 0, 999), ("kv_rate_gbit", 0.001, 100_000),
    ("models", 0, 1000), ("model_skew", 0, 10), ("weights_gb", 0, 10_000), ("start_s", 0, _DAY_S),
    ("host_gb", 0, 100_000),
    ("slots", 0, 1 << 16),
    ("kv_tokens", 0, 1 << 40), ("store_tokens_per_s", 1, 1e9), ("belief_scale", 0.05, 20), ("belief_noise", 0, 1),
    ("step_noise", 0, 1), ("system_tokens", 0, 1 << 20), ("locality_tokens", 0, 1 << 30),
)  # fmt: skip


def read(options: Sequence[str]) -> Settings:
    """Reads `--set` options. Raises UsageError with the field, its value and what is allowed."""
    given: dict[str, Any] = {}
    serve: dict[str, Any] = {}
    for option in options:
        name, sign, text = option.partition("=")
        if not sign:
            raise UsageError(f"--set {option}: use NAME=VALUE")
        value = _value(text)
        if name.startswith(SERVE):
            serve[name.removeprefix(SERVE)] = value
        elif name not in names():
            raise UsageError(f"--set {option}: no such name; use {', '.join(names())}, or serve.NAME of ServeConfig")
        else:
            given[name] = value
    try:
        msgspec.convert(serve, ServeConfig)
    except msgspec.ValidationError as error:
        raise UsageError(f"--set serve: {error}") from error
    try:
        return msgspec.convert({**given, "serve": serve}, Settings)
    except msgspec.ValidationError as error:
        raise UsageError(f"--set: {error}") from error


def names() -> list[str]:
    return [name for name in Settings.__struct_fields__ if name != "serve"]


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode())
    except msgspec.DecodeError:
        return text
