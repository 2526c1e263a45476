"""Configuration of one simulated point: sizes, topology and what a request or a batch costs alone."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from typing import Any

import msgspec

from bench.sim.profile import ACCELERATORS, MODELS, Accelerator, Model
from bench.sim.topology import NVSWITCH_BYTES_PER_S, Path, Topology
from bench.sim.unit_models import UnitModels, speeds_of
from mfsd.policy.workflow import TierSpeeds


class ConfigError(Exception):
    """A setting that cannot be simulated; one line with its name, its value and the remedy."""


FETCH = {
    "loaded": "when the request queues, which joins no batch before all of it is there",
    "batch": "when the request's batch begins; each layer waits for its own",
    "queued": "when the request queues; each layer of its batch waits for its own",
}
"""When a request's reused KV is asked for. loaded: all layers at once, as by vLLM's asynchronous loads
(WAITING_FOR_REMOTE_KVS), the only kind that its connector to Mooncake's store supports; batch, as in the paper, and
queued: layer by layer."""


CACHES = {
    "keep": "units keep what they fetch, as prefix caches do",
    "first-owner": "a block stays with the unit that computed it first",
}
DECODE_CHOICES = {"load": "the worker with the fewest tokens", "random": "any worker"}


class SloTier(msgspec.Struct, frozen=True):
    """A share of the requests, with deadlines of another length or weight."""

    share: float  # of all requests
    slo_factor: float
    weight: int


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster, with all parameters that affect contention. The same for every policy."""

    model: str = "dbrx"  # or several with commas: equal shares of the GPUs, one fabric, shared decode NICs
    accelerator: str = "a100"
    gpus: int = 2048  # prefill and decode, half each
    decode_nics: int | None = None
    link_gbps: float | None = None
    fabric: str = "nic-only"
    oversubscription: float = 1.0
    hot_fraction: float = 0.0
    kv_scale: float = 1.0
    burst: float = 1.0
    expert_skew: float = 0.0
    copies: float = 1.0
    imbalance: float = 1.0
    slo_factor: float = 3.0
    slo_tiers: list[SloTier] = []  # instead of one factor for all
    fabric_classes: int = 0
    batch_tokens: int = 8192
    fetch: str = "loaded"  # when reused KV is asked for, see FETCH
    cache: str = "keep"  # what a unit does with reuse that it fetched, see CACHES
    cache_tokens_per_gpu: int = 400_000
    cache_gb_per_gpu: float | None = None  # instead of tokens
    cold: float = 0.0  # share of units with empty caches at the start of the run: just scaled up, or restarted
    replicas: int = 1  # how many holders of a block others read it from
    stripe: bool = False  # an owner's blocks leave by all NICs of its server
    store_nics: int = 0  # NICs of a KV store that all units read from, instead of from each other
    store_gb_per_nic: float = 1000.0
    nics_per_server: int | None = None  # NICs that the GPUs of a server share; None: one for each GPU
    decode_choice: str = "load"  # see DECODE_CHOICES
    belief_error: float = 0.0
    coordinator_delay_s: float = 0.0
    counter_delay_s: float = 0.0  # age of the readings of ports' load
    bypass_share: float = 0.0  # share of every sending NIC that is taken by load which no daemon orders
    bypass_burst_s: float = 0.05  # mean length of its bursts
    bypass_read_s: float | None = None  # interval of the readings of a port's counters for it; None: never
    max_hold_s: float | None = None  # limit of the time that KV stands still for permits, see bench.sim.hold
    reads: bool = False  # whether reuse waits in the queue of the NIC that it reaches, as one-sided reads do
    moves_share: float = (
        0.0  # of the prefill NICs' rate, taken by weights and swapped KV that move, see bench.sim.moves
    )
    moves_gb_per_nic: float = 1.0  # of one move
    moves_due: float = 4.0  # their deadline: a multiple of the time that a move takes alone
    moves_as: str = "background"  # their mark: background, or load as KV of requests
    unit_models: UnitModels | None = None  # several models that take turns in each unit's memory
    policy: dict[str, Any] = {}  # parameters of mfsd.policy.PolicyConfig that differ from its defaults

    def __post_init__(self) -> None:
        unknown = [name for name in self.models if name not in MODELS]
        if unknown:
            raise ConfigError(f"--model {','.join(unknown)}: use one or several of {', '.join(MODELS)}")
        models = [MODELS[name] for name in self.models]
        if len({model.server_gpus for model in models}) > 1:
            raise ConfigError(f"--model {self.model}: their servers differ in GPUs; use models of equal servers")
        if self.link_gbps is None and len({model.link_gbps for model in models}) > 1:
            raise ConfigError(f"--model {self.model}: their NICs differ in speed; give one with --link-gbps")
        if self.accelerator not in ACCELERATORS:
            raise ConfigError(f"--accelerator {self.accelerator}: use one of {', '.join(ACCELERATORS)}")
        instance = math.lcm(*(model.instance_gpus for model in models))
        least = 2 * instance * len(models)
        if self.gpus < least or self.gpus % least:
            raise ConfigError(
                f"--gpus {self.gpus}: use a multiple of {least}, half of them prefill instances of {instance}"
                + (" for each model" if len(models) > 1 else "")
            )
        for name in ("kv_scale", "burst", "copies", "imbalance", "slo_factor", "oversubscription", "link_gbps"):
            if getattr(self, name) is not None and not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: use a number above 0")
        if self.max_hold_s is not None and not 0 < self.max_hold_s < math.inf:
            raise ConfigError(f"--max-hold {self.max_hold_s}: use a number of seconds above 0")
        if (self.max_hold_s is not None or self.reads) and not self.fabric_classes:
            raise ConfigError("--max-hold and --reads need production's queue: give --fabric-classes, too")
        if not 0 <= self.hot_fraction <= 1:
            raise ConfigError(f"--hot-fraction {self.hot_fraction}: use a share from 0 to 1")
        if self.slo_tiers and abs(sum(tier.share for tier in self.slo_tiers) - 1) > 1e-9:
            raise ConfigError(f"slo_tiers {self.slo_tiers}: shares must sum to 1")
        if self.fabric_classes not in (0, *range(2, 9)):
            raise ConfigError(f"--fabric-classes {self.fabric_classes}: use 2 to 8, or 0 for exact order on every link")
        if self.fabric not in ("nic-only", "fat-tree"):
            raise ConfigError(f"--fabric {self.fabric}: use nic-only or fat-tree")
        if self.fetch not in FETCH:
            raise ConfigError(f"--fetch {self.fetch}: use one of {', '.join(FETCH)}")
        if self.cache not in CACHES:
            raise ConfigError(f"--cache {self.cache}: use one of {', '.join(CACHES)}")
        if self.decode_choice not in DECODE_CHOICES:
            raise ConfigError(f"--decode-choice {self.decode_choice}: use one of {', '.join(DECODE_CHOICES)}")
        if self.cache_gb_per_gpu is not None and not 0 < self.cache_gb_per_gpu < math.inf:
            raise ConfigError(f"--cache-gb {self.cache_gb_per_gpu}: use a number above 0")
        if not 0 <= self.cold <= 1:
            raise ConfigError(f"--cold {self.cold}: use a share from 0 to 1")
        if self.replicas < 1:
            raise ConfigError(f"--replicas {self.replicas}: use at least 1")
        if self.store_nics < 0:
            raise ConfigError(f"--store-nics {self.store_nics}: use at least 0")
        server = models[0].server_gpus
        if self.nics_per_server is not None and (self.nics_per_server < 1 or server % self.nics_per_server):
            raise ConfigError(f"--nics-per-server {self.nics_per_server}: use a divisor of the server's {server} GPUs")
        if self.decode_nics is not None and self.decode_nics < 1:
            raise ConfigError(f"--decode-nics {self.decode_nics}: use at least 1")
        if self.batch_tokens < 1:
            raise ConfigError(f"--batch-tokens {self.batch_tokens}: use at least 1")
        if not 0 <= self.expert_skew < math.inf:
            raise ConfigError(f"--expert-skew {self.expert_skew}: use a number of at least 0")
        if not 0 <= self.belief_error < 1:
            raise ConfigError(f"--belief-error {self.belief_error}: use a share from 0 to below 1")
        if not 0 <= self.coordinator_delay_s < math.inf:
            raise ConfigError(f"--coordinator-delay-ms {1e3 * self.coordinator_delay_s:g}: use at least 0")
        if not 0 <= self.counter_delay_s < math.inf:
            raise ConfigError(f"--counter-delay-ms {1e3 * self.counter_delay_s:g}: use at least 0")
        if not 0 <= self.bypass_share <= 0.9:
            raise ConfigError(f"--bypass-share {self.bypass_share:g}: use 0 to 0.9")
        if not 0 < self.bypass_burst_s < math.inf:
            raise ConfigError(f"--bypass-burst-ms {1e3 * self.bypass_burst_s:g}: use a number above 0")
        if self.bypass_read_s is not None and not 0 <= self.bypass_read_s < math.inf:
            raise ConfigError(f"--bypass-read-ms {1e3 * self.bypass_read_s:g}: use at least 0")
        self._check_moves()
        self._check_unit_models()

    def _check_moves(self) -> None:
        if not 0 <= self.moves_share <= 0.9:
            raise ConfigError(f"moves_share {self.moves_share:g}: use 0 to 0.9")
        for name in ("moves_gb_per_nic", "moves_due"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} {getattr(self, name):g}: use a number above 0")
        if self.moves_as not in ("background", "load"):
            raise ConfigError(f"moves_as {self.moves_as}: use background or load")

    def _check_unit_models(self) -> None:
        if self.unit_models is None:
            return
        if problem := self.unit_models.problem:
            raise ConfigError(f"unit_models: {problem}")
        if len(self.models) > 1:
            raise ConfigError(f"unit_models with --model {self.model}: name one model, whose shape all of them have")
        if self.unit_models.weights_from == "units" and self.gpus < 4 * MODELS[self.model].instance_gpus:
            raise ConfigError(f"unit_models: weights come from another unit, but --gpus {self.gpus} have one; use more")

    @property
    def models(self) -> list[str]:
        return self.model.split(",")


class Request(msgspec.Struct):
    """One request, routed. Bytes are those that its NICs carry; times are seconds since the start of the run."""

    number: int
    arrival_s: float
    new_tokens: int
    context_tokens: int  # served from the KV cache
    unit: int
    group: int  # -1: chosen when its batch is formed
    decode: int  # first decode NIC of its worker
    owners: tuple[tuple[int, float], ...]  # (NIC, share) that its remote context lies on; () if local
    remote_tokens: int
    isolated_s: float = 0.0
    deadline_s: float = 0.0
    weight: int = 1  # of its deadline
    model: int = 0  # of those that take turns in a unit's memory

    @property
    def budget_s(self) -> float:
        return self.deadline_s - self.arrival_s


class Cluster:
    """Sizes, topology and cost model of a configuration. With several models this is the part of the first one; `parts`
    are all of them, on one topology, with NICs and units numbered across parts."""

    def __init__(self, config: Config, seed: int = 0, after: Cluster | None = None) -> None:
        self.config = config
        self.seed = seed
        self.number: int = after.number + 1 if after else 0
        self.model: Model = MODELS[config.models[self.number]]
        self.gpu: Accelerator = ACCELERATORS[config.accelerator]
        self.prefill_gpus = config.gpus // 2 // len(config.models)
        self.units = self.prefill_gpus // self.model.instance_gpus
        self.first_unit: int = after.first_unit + after.units if after else 0
        self.first_nic: int = after.first_nic + after.prefill_gpus if after else 0
        self.decode_nics = config.decode_nics or config.gpus // 2
        self.decode_width = min(self.model.tensor_parallel, self.decode_nics)
        self.decode_workers = max(1, self.decode_nics // self.decode_width)
        """Workers that a request may be given on arrival. The testbed has fewer: the last of these NICs belong to
        owners."""
        self.link = (config.link_gbps or self.model.link_gbps) * 1e9 / 8
        self.topology: Topology = (
            after.topology
            if after
            else Topology(
                self.prefill_gpus * len(config.models),
                self.decode_nics,
                self.link,
                self.model.server_gpus,
                config.fabric,
                config.oversubscription,
                seed=seed,
                store_nics=config.store_nics,
                nics_per_server=config.nics_per_server,
            )
        )
        self.first_store_nic = self.topology.prefill_nics + self.decode_nics
        self.kv_bytes = self.model.kv_bytes * config.kv_scale
        width = self.model.group_gpus
        self._group_nics = [
            tuple(range(self.first_nic + index * width, self.first_nic + (index + 1) * width))
            for index in range(self.units * self.model.groups)
        ]
        self.parts: list[Cluster] = [self]
        while not after and len(self.parts) < len(config.models):
            self.parts.append(Cluster(config, seed, after=self.parts[-1]))

    @property
    def all_units(self) -> int:
        return self.parts[-1].first_unit + self.parts[-1].units

    def of(self, unit: int) -> Cluster:
        """Returns the part that this unit belongs to."""
        return next(part for part in reversed(self.parts) if unit >= part.first_unit)

    def group_nics(self, unit: int, group: int) -> tuple[int, ...]:
        return self._group_nics[(unit - self.first_unit) * self.model.groups + group]

    def reuse_rate(self, request: Request) -> float:
        """Returns the rate of the request's reuse alone in the cluster, whatever group computes it; 0 without reuse."""
        if not request.owners:
            return 0.0
        server = self.model.server_gpus
        first = self.first_nic + (request.unit - self.first_unit) * self.model.instance_gpus
        out: dict[int, float] = {}
        inside: list[float] = []  # an instance smaller than a server has neighbours on its NVSwitch
        for nic, share in request.owners:
            if self.model.in_a_node and nic < self.topology.prefill_nics and nic // server == first // server:
                inside.append(share)
            else:
                out[self.topology.port(nic)] = out.get(self.topology.port(nic), 0.0) + share
        seconds = max(inside, default=0.0) / NVSWITCH_BYTES_PER_S
        seconds = max(seconds, sum(inside) / self.model.group_gpus / NVSWITCH_BYTES_PER_S)
        return 1 / max(
            seconds, *(share / self.link for share in (*out.values(), sum(out.values()) / self._group_ports))
        )

    @functools.cached_property
    def _group_ports(self) -> int:
        return self.topology.ports(self._group_nics[0])

    def unit_speeds(self, models: UnitModels) -> TierSpeeds:
        """Returns how fast weights reach a unit."""
        return speeds_of(models, self.model, self.link * self.topology.ports(range(self.model.instance_gpus)))

    def reuse_path(self, request: Request) -> Path:
        """Stage 1: from the owners' NICs to those of the group that computes the request."""
        into = self.group_nics(request.unit, request.group)
        pairs = []
        if len(request.owners) == len(into):
            pairs = [(nic, target, share) for (nic, share), target in zip(request.owners, into, strict=True)]
        else:
            pairs = [(nic, target, share / len(into)) for nic, share in request.owners for target in into]
        return self.topology.path(pairs, connections=1.0, salt=request.number)

    def p2d_path(self, request: Request) -> Path:
        """Stage 3: from the group's NICs to the decode worker's."""
        out = self.group_nics(request.unit, request.group)
        width = self.decode_width
        into = [self.topology.prefill_nics + request.decode + i for i in range(width)]
        pairs = [(nic, into[i % width], 1 / len(out)) for i, nic in enumerate(out)]
        return self.topology.path(pairs, connections=1.0, salt=~request.number)

    def collective_paths(self, unit: int, group_tokens: Sequence[int], salt: int) -> tuple[Path, ...]:
        """Stage 2 of one layer: dispatch and combine between experts, or the ring of sequence parallelism; none if the
        instance lies within one server."""
        model = self.model
        if model.in_a_node:
            return ()
        first = self.first_nic + (unit - self.first_unit) * model.instance_gpus
        nics = range(first, first + model.instance_gpus)
        if not model.experts:
            per_server = model.server_gpus // model.tensor_parallel  # ranks; the last of each server crosses
            edge = [n for n in nics if (n - first) // model.tensor_parallel % per_server == per_server - 1]
            start = [n for n in nics if (n - first) // model.tensor_parallel % per_server == 0]
            into = dict.fromkeys(start, 1 / len(start))
            return (self.topology.hose(dict.fromkeys(edge, 1 / len(edge)), into, 1.0, salt),)
        total = sum(group_tokens) or 1
        tokens = {}
        for group, count in enumerate(group_tokens):
            for nic in self.group_nics(unit, group):
                tokens[nic] = count / total / model.group_gpus
        experts = self._expert_shares(unit)
        spread = {nic: experts[(nic - first) // model.group_gpus] / model.group_gpus for nic in nics}
        fan = model.groups * (1 - model.server_gpus / model.instance_gpus)
        return (
            self.topology.hose(tokens, spread, max(1.0, fan), salt),
            self.topology.hose(spread, tokens, max(1.0, fan), salt + 1),
        )

    def _expert_shares(self, unit: int) -> list[float]:
        """Returns the share of tokens that each group's experts attract: Zipf with exponent expert_skew, in the unit's
        own order."""
        groups = self.model.groups
        shares = [(i + 1) ** -self.config.expert_skew for i in range(groups)]
        random.Random(f"experts {self.seed} {unit}").shuffle(shares)
        total = sum(shares)
        return [s / total for s in shares]

    def expert_imbalance(self) -> float:
        if not self.model.experts:
            return 1.0
        return self.config.imbalance * max(self._expert_shares(0)) * self.model.groups

    def collective_bytes(self, tokens: int) -> float:
        return self.model.collective_bytes(tokens) * (self.config.copies if self.model.experts else 1.0)

    def isolated_s(self, request: Request) -> float:
        """Returns the TTFT of the request alone in the cluster: layers one after the other, with KV transfers
        overlapped."""
        model, layers = self.model, self.model.layers
        reuse_rate = self.reuse_rate(request)
        into = range(self.topology.prefill_nics, self.topology.prefill_nics + self.decode_width)
        p2d_rate = min(self.topology.ports(into), self._group_ports) * self.link
        reuse_layer = request.remote_tokens * self.kv_bytes / reuse_rate if reuse_rate else 0.0
        now = shipped = 0.0
        done = 0
        while done < request.new_tokens:
            new = min(self.config.batch_tokens, request.new_tokens - done)
            context = request.context_tokens + done
            attention = model.attention_s(self.gpu, [(new, context)])
            experts = model.expert_s(self.gpu, new, self.expert_imbalance())
            moved = self.collective_bytes(new)
            wire = sum(moved / path.isolated_rate for path in self._lone_paths)
            kv = (new + (request.context_tokens if done == 0 else 0)) * self.kv_bytes / p2d_rate
            for layer in range(layers):
                if done == 0:
                    now = max(now, reuse_layer * (layer + 1))
                before = wire if not model.experts else 0.0
                now += before + attention
                shipped = max(shipped, now) + kv
                now += experts + wire - before
            done += new
        return max(now, shipped)

    def batch_s(self, lengths: Sequence[tuple[int, int]]) -> float:
        """Returns the time of a batch of (new, context) requests alone in the cluster, without reuse and P2D."""
        model = self.model
        groups: list[list[tuple[int, int]]] = [[] for _ in range(model.groups)]
        load = [0] * model.groups
        for new, context in lengths:
            at = load.index(min(load))
            groups[at].append((new, context))
            load[at] += new
        tokens = sum(load)
        compute = max(model.attention_s(self.gpu, group) for group in groups if group)
        compute += model.expert_s(self.gpu, tokens, self.expert_imbalance())
        moved = self.collective_bytes(tokens)
        if model.in_a_node:
            wire = 0.0
        elif model.experts:
            wire = 2 * moved * max(max(load) / tokens / model.group_gpus, 1 / model.instance_gpus) / self.link
        else:
            wire = moved / self._lone_paths[0].isolated_rate
        return model.layers * (compute + wire)

    @functools.cached_property
    def _lone_paths(self) -> tuple[Path, ...]:
        """Returns the paths of the collectives of a batch with one request."""
        return self.collective_paths(self.first_unit, [1] + [0] * (self.model.groups - 1), 0)
