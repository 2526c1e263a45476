"""What is served and where: one scenario, the same for every mode of the testbed and for the simulator.

Everything here is in the cluster's own units: seconds, bytes and bit/s of A100s and 50 Gbit/s NICs.
`bench.testbed.scale` scales it to what network namespaces on two cores can carry. Requests, their cached prefixes,
deadlines and places come from the simulator's generators and router, so both run identical work.

Hosts: two prefill units of two ranks (one GPU and one NIC each), the KV pool that owns every cached block (one host, or
several owners, one of which may be slow), and the decode workers.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec

from bench.sim import generators
from bench.sim.cluster import Cluster, Config, ConfigError, Request
from bench.sim.point import SATURATION_LIMIT, saturation
from bench.sim.routing import route
from bench.sim.workload import Row, TraceError, read_trace

MODEL = "mixtral-8x7b-testbed"
UNITS = 2
RANKS = 2
PREFILL_HOSTS = UNITS * RANKS
# The paper's testbed serves traces of conversations and of agents calling an API: its QwenA and QwenB.
WORKLOADS = {"conversation": "qwen-a", "agent": "qwen-b"}
RATES = {"conversation": 2.0, "agent": 4.8}
"""Requests/s per GPU at which a cluster without a scheduler meets about half of the deadlines."""
TOKENS_LEAST = 16
SIGNALS = ("all", "nccl")
FETCHES = {
    "batch": "when the request's batch begins; each layer waits for its own",
    "loaded": "when the request queues, which joins no batch before all of it is there",
}
"""When a request's reused KV is asked for: those of the simulator's (`bench.sim.cluster.FETCH`) that workers can do."""
SLOW_OWNER_LEAST = 0.01


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run depends on except the mode and the scale."""

    workload: str = "conversation"
    """One of WORKLOADS, of the simulator's generators, or a trace file."""
    rate: float = 2.0
    """Requests/s per prefill GPU, of the cluster."""
    duration_s: float = 30.0
    """Time in which requests arrive, of the cluster."""
    seed: int = 1
    decode_hosts: int = 1
    pool_hosts: int = 1
    """Owners of cached blocks; those of a request are on one of them."""
    slow_owner: float = 1.0
    """Rate of the last owner's link relative to the others': MFS does not know that it is slow."""
    lanes: bool = True
    """Whether classes travel separately; if not, each stage has one lane to a peer, and all lanes are alike on the
    wire."""
    signals: str = "all"
    """Which work requests of collectives are signaled: one of SIGNALS. As NCCL: the last one of a transfer, and one of
    256 clear-to-send writes."""
    fetch: str = "batch"
    """When reused KV is asked for: one of FETCHES."""
    kv_scale: float = 1.8
    """Factor of the model's KV bytes per token."""
    copies: float = 1.0
    """All-to-all bytes, as a multiple of one copy per expert."""
    batch_tokens: int = 2048
    """Tokens that a unit computes together: 8,192 on the eight GPUs of the paper's units."""
    slo_factor: float = 3.0
    longest_tokens: int = 8192
    """Prompts are cut to this, because a longer one would fill a short run."""

    def __post_init__(self) -> None:
        for name in ("rate", "duration_s", "kv_scale", "copies", "slo_factor"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(
                    f"--{name.replace('_s', '').replace('_', '-')} {getattr(self, name)}: must be above 0"
                )
        if not 1 <= self.decode_hosts <= 8:
            raise ConfigError(f"--decode-hosts {self.decode_hosts}: use 1 to 8")
        if not 1 <= self.pool_hosts <= 8:
            raise ConfigError(f"--pool-hosts {self.pool_hosts}: use 1 to 8")
        if not SLOW_OWNER_LEAST <= self.slow_owner <= 1:
            raise ConfigError(f"--slow-owner {self.slow_owner:g}: use {SLOW_OWNER_LEAST:g} to 1")
        if self.signals not in SIGNALS:
            raise ConfigError(f"--signals {self.signals}: use one of {', '.join(SIGNALS)}")
        if self.fetch not in FETCHES:
            raise ConfigError(f"--fetch {self.fetch}: use one of {', '.join(FETCHES)}")
        if self.batch_tokens < TOKENS_LEAST:
            raise ConfigError(f"--batch-tokens {self.batch_tokens}: use at least {TOKENS_LEAST}")

    @property
    def pool_nics(self) -> range:
        """The simulator's numbers of the KV pool's NICs: after those of the decode workers."""
        first = PREFILL_HOSTS + self.decode_hosts
        return range(first, first + self.pool_hosts)

    @property
    def hosts(self) -> list[str]:
        """Names in the order of the simulator's NIC numbers."""
        ranks = [f"unit{u}r{r}" for u in range(UNITS) for r in range(RANKS)]
        pools = ["pool"] if self.pool_hosts == 1 else [f"pool{p}" for p in range(self.pool_hosts)]
        return [*ranks, *(f"decode{d}" for d in range(self.decode_hosts)), *pools]

    @property
    def slow_hosts(self) -> dict[str, float]:
        """Hosts whose links are slower than all others, and by how much."""
        return {self.hosts[-1]: self.slow_owner} if self.slow_owner < 1 else {}


def cluster_of(
    scenario: Scenario,
    fabric_classes: int = 8,
    policy: dict[str, Any] | None = None,
    max_hold_s: float | None = None,
) -> Cluster:
    """Returns the simulator's cluster of the scenario: a fabric with the testbed's number of priorities, whose workers
    read what is reused. `policy`: parameters that differ from the default. `max_hold_s`: in the cluster's time."""
    config = Config(
        model=MODEL,
        gpus=2 * PREFILL_HOSTS,
        decode_nics=scenario.decode_hosts + scenario.pool_hosts,
        kv_scale=scenario.kv_scale,
        copies=scenario.copies,
        slo_factor=scenario.slo_factor,
        batch_tokens=scenario.batch_tokens,
        fetch=scenario.fetch,
        cache="first-owner",  # every cached token comes from the pool, see below
        decode_choice="random",
        fabric_classes=fabric_classes,
        reads=fabric_classes > 0,
        max_hold_s=max_hold_s,
        policy=policy or {},
    )
    cluster = Cluster(config, scenario.seed)
    cluster.decode_workers = scenario.decode_hosts
    return cluster


def requests_of(scenario: Scenario, cluster: Cluster) -> list[Request]:
    """Returns the requests in the order of their arrival, as `bench.sim.cluster.Request`: at most as many as the GPUs
    could compute. Every cached token comes from the pool, those of a request from one owner. Raises ConfigError or
    TraceError."""
    rows = _rows(scenario)
    requests = route(cluster, rows, scenario.seed)
    rng, owner = random.Random(f"decode {scenario.seed}"), random.Random(f"owner {scenario.seed}")
    for request in requests:
        request.remote_tokens = request.context_tokens
        nic = owner.choice(scenario.pool_nics)
        request.owners = ((nic, 1.0),) if request.context_tokens else ()
        request.decode = rng.randrange(scenario.decode_hosts)
        request.group = 0  # any: isolated times are alike; the batch chooses
        request.isolated_s = cluster.isolated_s(request)
        request.deadline_s = request.arrival_s + scenario.slo_factor * request.isolated_s
        request.group = -1
    limit = saturation(cluster, requests)
    if scenario.rate > SATURATION_LIMIT * limit:
        raise ConfigError(
            f"--rate {scenario.rate:g}: the GPUs can compute {limit:.3g} requests/s per GPU of this workload; above "
            f"that queues only grow. Use at most {SATURATION_LIMIT * limit:.3g}"
        )
    return requests


def _rows(scenario: Scenario) -> list[Row]:
    total_rate = scenario.rate * PREFILL_HOSTS
    expected = max(1, round(total_rate * scenario.duration_s))
    name = WORKLOADS.get(scenario.workload, scenario.workload)
    history: list[Row] = []
    if name in generators.NAMES:
        rows = generators.generate(name, expected, scenario.seed)
        history, rows = rows[: generators.HISTORY], rows[generators.HISTORY :]
    else:
        if not Path(name).exists():
            known = ", ".join([*WORKLOADS, *generators.NAMES])
            raise ConfigError(f"--workload {name}: use one of {known}, or the path of a trace")
        rows = read_trace(Path(name), expected)
        if len(rows) < expected:
            raise TraceError(f"{name}: {len(rows)} requests, but this rate and duration need {expected}; lower them")
    rows = generators.schedule([_cut(row, scenario.longest_tokens) for row in rows], total_rate, scenario.seed)
    return history + rows


def _cut(row: Row, longest_tokens: int) -> Row:
    if row.input_tokens <= longest_tokens:
        return row
    return msgspec.structs.replace(row, input_tokens=longest_tokens, block_lengths=())
