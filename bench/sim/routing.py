"""Requests as the cluster sees them before any network decision.

`route` fixes units, cache contents, block owners and decode workers from the arrival sequence and a router's own
estimate of load. They are the same for every policy, so policies are compared on identical work. `Arrivals` takes one
request after the other, for a router that chooses units during the run.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bench.sim.caches import Caches, Held, owners
from bench.sim.cluster import Cluster, Request
from bench.sim.unit_models import UnitModels, model_of, profile_of
from bench.sim.workload import Row
from mfsd.policy.workflow import HOLD_S, Residence, activation_s

LOCALITY = 0.1  # the router's price of fetching a cached token, in computed tokens
LEAST_NEW_TOKENS = 16  # computed of every prompt, however much of it is cached

TOKEN_S = 0.03  # between two tokens of a decoding request, as the router expects


class _RouterView:
    """A unit as the router models it: batches formed first come first served, computing alone with an idle network."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.free_at = 0.0
        self.queue: deque[tuple[int, int]] = deque()
        self.queued_tokens = 0
        self.token_s = cluster.batch_s([(1024, 1024)] * 4) / 4096

    def wait_s(self, now: float) -> float:
        """Returns the time until a request that arrives now would begin, at the time per token of the last batch."""
        while self.queue and self.free_at <= now:
            chosen: list[tuple[int, int]] = []
            room = self.cluster.config.batch_tokens
            while self.queue and (not chosen or self.queue[0][0] <= room):
                chosen.append(self.queue.popleft())
                room -= chosen[-1][0]
            tokens = sum(new for new, _ in chosen)
            seconds = self.cluster.batch_s(chosen)
            self.queued_tokens -= tokens
            self.token_s = seconds / tokens
            self.free_at += seconds
        return max(0.0, self.free_at - now) + self.queued_tokens * self.token_s

    def add(self, now: float, new: int, context: int) -> None:
        if not self.queue:
            self.free_at = max(self.free_at, now)
        self.queue.append((new, context))
        self.queued_tokens += new


class _DecodeWorkers:
    """Chooses the worker that decodes a request. `load`: the one with the fewest tokens of requests that it is expected
    to hold then, as KV-aware routers count; no router knows how much KV is on its way to it. `random`: any."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.width = cluster.decode_width
        self.workers = max(1, cluster.decode_nics // cluster.decode_width)
        self.by_load = cluster.config.decode_choice == "load"
        self.rng = rng
        self.tokens = [0] * self.workers
        self.ends: list[tuple[float, int, int]] = []  # when, worker, tokens

    def choose(self, now: float, row: Row) -> int:
        """Returns the first NIC of the chosen worker."""
        if not self.by_load:
            return self.rng.randrange(self.workers) * self.width
        while self.ends and self.ends[0][0] <= now:
            _, worker, tokens = heapq.heappop(self.ends)
            self.tokens[worker] -= tokens
        shift = self.rng.randrange(self.workers)
        worker = min(range(self.workers), key=lambda w: (self.tokens[w], (w + shift) % self.workers))
        tokens = row.input_tokens + row.output_tokens
        self.tokens[worker] += tokens
        heapq.heappush(self.ends, (now + row.output_tokens * TOKEN_S, worker, tokens))
        return worker * self.width


def _is_hot(cluster: Cluster, row: Row, seed: int) -> bool:
    fraction = cluster.config.hot_fraction
    return bool(fraction) and random.Random(f"hot {seed} {row.blocks[0]}").random() < fraction


class Arriving(NamedTuple):
    """A request that has no unit yet."""

    number: int
    row: Row
    new_tokens: int
    cached: int  # tokens of its prompt that some unit holds
    local: Sequence[int]  # of those, by unit
    shift: int  # among equal units, requests start at another one each time


Fetched = tuple[dict[int, float], int]
"""What a unit would fetch: the NICs that it comes from with their shares, and the number of tokens."""
Choose = Callable[[Arriving, Callable[[int], Fetched]], int]
"""Returns the unit of a request, given what each unit would fetch. Called once for each, in the order of arrivals."""


class Locality:
    """Chooses the least estimated wait, preferring a unit that holds the prefix; ignores the network. `price`: of a
    cached token that is fetched, in computed ones."""

    def __init__(self, cluster: Cluster, price: float = LOCALITY) -> None:
        self.price = price
        self.views = [_RouterView(cluster) for _ in range(cluster.units)]

    def __call__(self, arriving: Arriving, fetched: Callable[[int], Fetched]) -> int:
        now, views = arriving.row.arrival_s, self.views
        unit = min(turns(len(views), arriving.shift), key=lambda u: self.cost_s(u, arriving))
        views[unit].add(now, arriving.new_tokens, arriving.cached)
        return unit

    def cost_s(self, unit: int, arriving: Arriving) -> float:
        """Returns the unit's estimated wait, and the price of what it would have to fetch."""
        view = self.views[unit]
        return view.wait_s(arriving.row.arrival_s) + self.price * view.token_s * (
            arriving.cached - min(arriving.cached, arriving.local[unit])
        )


class ByModel:
    """The same for models that take turns in units' memory: a unit that runs the request's model, or the idle one that
    was used the longest ago, whichever would begin sooner. Knows where it has sent requests, and assumes that
    activations take what they take alone."""

    def __init__(self, cluster: Cluster, models: UnitModels) -> None:
        self.cluster, self.models = cluster, models
        self.locality = Locality(cluster)
        # Also where weights come from host memory: so the same requests go to the same units.
        self.activation_s = activation_s(profile_of(cluster.model), Residence.REMOTE, cluster.unit_speeds(models))
        self.resident: list[dict[int, None]] = [{} for _ in range(cluster.units)]  # the least recently used first
        self.used_s = [-math.inf] * cluster.units

    def __call__(self, arriving: Arriving, fetched: Callable[[int], Fetched]) -> int:
        now, views = arriving.row.arrival_s, self.locality.views
        model = model_of(self.models, arriving.row, self.cluster.seed)

        def begins_s(unit: int) -> tuple[float, float]:
            cost = self.locality.cost_s(unit, arriving)
            if model in self.resident[unit]:
                return cost, 0.0
            busy = views[unit].wait_s(now) > 0
            return cost + self.activation_s + (HOLD_S if busy else 0.0), self.used_s[unit]

        unit = min(turns(len(views), arriving.shift), key=begins_s)
        resident = self.resident[unit]
        if model not in resident:
            views[unit].free_at = max(views[unit].free_at, now) + self.activation_s
            if len(resident) == self.models.running:
                del resident[next(iter(resident))]
        resident.pop(model, None)
        resident[model] = None
        self.used_s[unit] = now
        views[unit].add(now, arriving.new_tokens, arriving.cached)
        return unit


def loads_of(cluster: Cluster, request: Request) -> dict[int, float]:
    """Returns the bytes that the request loads, by link."""
    if not request.remote_tokens:
        return {}
    size = request.remote_tokens * cluster.kv_bytes * cluster.model.layers
    return {link: size * share for link, share in cluster.reuse_path(request).shares.items()}


def turns(units: int, shift: int) -> Iterator[int]:
    """Yields all units, starting with another one each time."""
    return ((unit + shift) % units for unit in range(units))


class Arrivals:
    """The requests of one part of a cluster as they arrive: what caches hold then, and where their KV lies."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.seed = seed
        self.rng = random.Random(f"route {seed}" + (f" {cluster.number}" if cluster.number else ""))
        self.caches = Caches(cluster, seed)
        self.workers = _DecodeWorkers(cluster, self.rng)
        self.before = [0.0] * cluster.units  # tokens computed before the run
        self.cold = round(cluster.config.cold * cluster.units)
        self.requests = 0

    def before_run(self, row: Row) -> None:
        """Adds a request of the past, which only fills the caches."""
        held = self.caches.prefix(row)
        arriving = self._arriving(row, held)
        unit = arriving.shift
        if self.caches.keep:  # otherwise every popular prefix would be everywhere before the run begins
            cached, before = arriving.cached, self.before
            unit = min(
                turns(self.cluster.units, unit),
                key=lambda u: before[u] + LOCALITY * (cached - min(cached, arriving.local[u])),
            )
            before[unit] += row.input_tokens - cached
        self.caches.store(row, unit, self.rng.randrange(self.cluster.model.groups))

    def arrive(self, row: Row, choose: Choose) -> Request:
        """Returns the request of the row, at the unit that is chosen now."""
        cluster = self.cluster
        while self.cold:
            self.cold -= 1
            self.caches.clear(self.cold)
        held = self.caches.prefix(row)
        arriving = self._arriving(row, held)
        known: dict[int, Fetched] = {}

        def fetched(unit: int) -> Fetched:
            if unit not in known:
                known[unit] = self._fetched(arriving, held, unit)
            return known[unit]

        unit = choose(arriving, fetched)
        group = self.rng.randrange(cluster.model.groups)
        nics, tokens = fetched(unit)
        request = Request(
            number=self.requests,
            arrival_s=row.arrival_s,
            new_tokens=arriving.new_tokens,
            context_tokens=arriving.cached,
            unit=cluster.first_unit + unit,
            group=-1,
            decode=self.workers.choose(row.arrival_s, row),
            owners=tuple(sorted(nics.items())),
            remote_tokens=tokens,
            model=model_of(models, row, self.seed) if (models := cluster.config.unit_models) else 0,
        )
        self.requests += 1
        self.caches.store(row, unit, group)
        return request

    def _arriving(self, row: Row, held: Sequence[Held]) -> Arriving:
        cached = max(0, min(row.prefix_tokens(len(held)), row.input_tokens - LEAST_NEW_TOKENS))
        local = [0] * self.cluster.units
        for one in held:
            for unit in one.groups:
                local[unit] += one.tokens
        new = max(row.input_tokens - cached, min(LEAST_NEW_TOKENS, row.input_tokens))
        return Arriving(self.requests, row, new, cached, local, self.rng.randrange(self.cluster.units))

    def _fetched(self, arriving: Arriving, held: Sequence[Held], unit: int) -> Fetched:
        cluster = self.cluster
        nics, missing = owners(cluster, held, unit, self.rng)
        tokens = min(arriving.cached, missing)
        if tokens and _is_hot(cluster, arriving.row, self.seed):
            nics = {0: 1.0} if cluster.first_unit + unit else {}
        return (nics, tokens) if tokens and nics else ({}, 0)


def route(cluster: Cluster, rows: Sequence[Row], seed: int) -> list[Request]:
    """Sends each request to a unit by locality. Rows that arrive before 0 only fill the caches."""
    arrivals, models = Arrivals(cluster, seed), cluster.config.unit_models
    choose = ByModel(cluster, models) if models else Locality(cluster)
    requests: list[Request] = []
    for row in rows:
        if row.arrival_s < 0:
            arrivals.before_run(row)
        else:
            requests.append(arrivals.arrive(row, choose))
    _set_deadlines(cluster, requests)
    return requests


def _set_deadlines(cluster: Cluster, requests: Sequence[Request]) -> None:
    known: dict[tuple[int, int, int, float], float] = {}
    for request in requests:
        key = (request.new_tokens, request.context_tokens, request.remote_tokens, cluster.reuse_rate(request))
        if key not in known:
            known[key] = cluster.isolated_s(request)
        request.isolated_s = known[key]
        factor = cluster.config.slo_factor
        if tiers := cluster.config.slo_tiers:
            tier = random.Random(f"tier {cluster.seed} {cluster.number} {request.number}").choices(
                tiers, [tier.share for tier in tiers]
            )[0]
            factor, request.weight = tier.slo_factor, tier.weight
        request.deadline_s = request.arrival_s + factor * request.isolated_s
