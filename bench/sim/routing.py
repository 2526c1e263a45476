"""Requests as the cluster sees them before any network decision.

Units, cache contents, block owners and decode workers are fixed here, from the arrival sequence and a router's own
estimate of load: they are the same for every policy, so policies are compared on identical work.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Sequence

from bench.sim.caches import Caches, owners
from bench.sim.cluster import Cluster, Request
from bench.sim.workload import Row

LOCALITY = 0.1  # the router's price of fetching a cached token, in computed tokens
LEAST_NEW_TOKENS = 16  # computed of every prompt, however much of it is cached

TOKEN_S = 0.03  # between two tokens of a request that decodes, as the router expects


class _RouterView:
    """A unit as the router models it: batches formed first come first served, computing alone with an idle
    network."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.free_at = 0.0
        self.queue: deque[tuple[int, int]] = deque()
        self.queued_tokens = 0
        self.token_s = cluster.batch_s([(1024, 1024)] * 4) / 4096

    def wait_s(self, now: float) -> float:
        """Time until a request that arrives now would begin, if one batch took no longer per token than the
        last."""
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
    """Which worker decodes a request. `load`: the one with the fewest tokens of requests that it is expected to hold
    then, as KV-aware routers count; how much KV is on its way to it no router knows. `random`: any."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.width = cluster.decode_width
        self.workers = max(1, cluster.decode_nics // cluster.decode_width)
        self.by_load = cluster.config.decode_choice == "load"
        self.rng = rng
        self.tokens = [0] * self.workers
        self.ends: list[tuple[float, int, int]] = []  # when, worker, tokens

    def choose(self, now: float, row: Row) -> int:
        """The first NIC of the worker."""
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


def route(cluster: Cluster, rows: Sequence[Row], seed: int) -> list[Request]:
    """Sends each request to the unit with the least estimated wait, preferring one that holds its prefix; rows
    that arrive before 0 only fill the caches."""
    model, units = cluster.model, cluster.units
    rng = random.Random(f"route {seed}" + (f" {cluster.number}" if cluster.number else ""))
    caches = Caches(cluster, seed)
    views = [_RouterView(cluster) for _ in range(units)]
    workers = _DecodeWorkers(cluster, rng)
    before = [0.0] * units  # tokens computed before the run
    cold = round(cluster.config.cold * units)
    requests: list[Request] = []
    for row in rows:
        now = row.arrival_s
        while now >= 0 and cold:
            cold -= 1
            caches.clear(cold)
        held = caches.prefix(row)
        cached = max(0, min(row.prefix_tokens(len(held)), row.input_tokens - LEAST_NEW_TOKENS))
        local = [0] * units
        for one in held:
            for unit in one.groups:
                local[unit] += one.tokens
        unit = shift = rng.randrange(units)
        if now < 0 and caches.keep:  # else every popular prefix would be everywhere before the run begins
            unit = min(
                ((u + shift) % units for u in range(units)),
                key=lambda u: before[u] + LOCALITY * (cached - min(cached, local[u])),
            )
            before[unit] += row.input_tokens - cached
        if now >= 0:
            unit = min(
                ((u + shift) % units for u in range(units)),
                key=lambda u: views[u].wait_s(now) + LOCALITY * views[u].token_s * (cached - min(cached, local[u])),
            )
        group = rng.randrange(model.groups)
        if now >= 0:
            new = max(row.input_tokens - cached, min(LEAST_NEW_TOKENS, row.input_tokens))
            views[unit].add(now, new, cached)
            nics, missing = owners(cluster, held, unit, rng)
            remote = min(cached, missing)
            if remote and _is_hot(cluster, row, seed):
                nics = {0: 1.0} if cluster.first_unit + unit else {}
            requests.append(
                Request(
                    number=len(requests),
                    arrival_s=now,
                    new_tokens=new,
                    context_tokens=cached,
                    unit=cluster.first_unit + unit,
                    group=-1,
                    decode=workers.choose(now, row),
                    owners=tuple(sorted(nics.items())) if remote else (),
                    remote_tokens=remote if nics else 0,
                )
            )
        caches.store(row, unit, group)
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
