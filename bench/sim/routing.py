"""Requests as the cluster sees them before any network decision.

Units, cache contents, block owners and decode workers are fixed here, from the arrival sequence and a router's own
estimate of load: they are the same for every policy, so policies are compared on identical work.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Sequence

from bench.sim.cluster import Cluster, Request
from bench.sim.workload import Row

LOCALITY = 0.1  # the router's price of fetching a cached token, in computed tokens
LEAST_NEW_TOKENS = 16  # computed of every prompt, however much of it is cached

Held = tuple[int, int, int]  # a block: unit and group that hold it, tokens


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


class _Caches:
    """KV blocks and who holds them: one finite cache for each unit, least recently used blocks leave first."""

    def __init__(self, cluster: Cluster) -> None:
        self.owner: dict[int, Held] = {}
        self.room = [cluster.config.cache_tokens_per_gpu * cluster.model.instance_gpus] * cluster.units
        self.blocks: list[OrderedDict[int, int]] = [OrderedDict() for _ in range(cluster.units)]

    def prefix(self, blocks: Sequence[int]) -> list[Held]:
        held: list[Held] = []
        for block in blocks:
            entry = self.owner.get(block)
            if entry is None:
                break
            held.append(entry)
        return held

    def store(self, row: Row, unit: int, group: int) -> None:
        """The row's blocks: those that are held anywhere stay there, the others go to this unit."""
        own = self.blocks[unit]
        for index, block in enumerate(row.blocks):
            tokens = row.prefix_tokens(index + 1) - row.prefix_tokens(index)
            if block in self.owner:
                self.blocks[self.owner[block][0]].move_to_end(block)
                continue
            while self.room[unit] < tokens and own:
                old, freed = own.popitem(last=False)
                del self.owner[old]
                self.room[unit] += freed
            self.room[unit] -= tokens
            own[block] = tokens
            self.owner[block] = (unit, group, tokens)


def _owners(cluster: Cluster, row: Row, held: Sequence[Held], unit: int, seed: int) -> dict[int, float]:
    """NICs (and shares) on which the part of the prefix lies that other units hold; NIC 0 alone of hot prefixes."""
    fraction, root = cluster.config.hot_fraction, row.blocks[0]
    if fraction and random.Random(f"hot {seed} {root}").random() < fraction:
        return {0: 1.0} if cluster.first_unit + unit else {}
    tokens_of: dict[tuple[int, int], int] = {}
    for other, group, tokens in held:
        if other != unit:
            tokens_of[other, group] = tokens_of.get((other, group), 0) + tokens
    total = sum(tokens_of.values())
    shares: dict[int, float] = {}
    for (other, group), tokens in tokens_of.items():
        nics = cluster.group_nics(cluster.first_unit + other, group)
        for nic in nics:
            shares[nic] = shares.get(nic, 0.0) + tokens / total / len(nics)
    return shares


def route(cluster: Cluster, rows: Sequence[Row], seed: int) -> list[Request]:
    """Sends each request to the unit with the least estimated wait, preferring one that holds its prefix; rows
    that arrive before 0 only fill the caches."""
    model, units = cluster.model, cluster.units
    rng = random.Random(f"route {seed}" + (f" {cluster.number}" if cluster.number else ""))
    caches = _Caches(cluster)
    views = [_RouterView(cluster) for _ in range(units)]
    workers = max(1, cluster.decode_nics // cluster.decode_width)
    requests: list[Request] = []
    for row in rows:
        now = row.arrival_s
        held = caches.prefix(row.blocks)
        cached = max(0, min(row.prefix_tokens(len(held)), row.input_tokens - LEAST_NEW_TOKENS))
        local = [0] * units
        for unit, _, tokens in held:
            local[unit] += tokens
        unit = shift = rng.randrange(units)
        if now >= 0:
            unit = min(
                ((u + shift) % units for u in range(units)),
                key=lambda u: views[u].wait_s(now) + LOCALITY * views[u].token_s * (cached - min(cached, local[u])),
            )
        group = rng.randrange(model.groups)
        if now >= 0:
            new = max(row.input_tokens - cached, min(LEAST_NEW_TOKENS, row.input_tokens))
            views[unit].add(now, new, cached)
            remote = min(cached, sum(tokens for other, _, tokens in held if other != unit))
            owners = _owners(cluster, row, held, unit, seed) if remote else {}
            requests.append(
                Request(
                    number=len(requests),
                    arrival_s=now,
                    new_tokens=new,
                    context_tokens=cached,
                    unit=cluster.first_unit + unit,
                    group=-1,
                    decode=rng.randrange(workers) * cluster.decode_width,
                    owners=tuple(sorted(owners.items())),
                    remote_tokens=remote if owners else 0,
                )
            )
        caches.store(row, unit, group)
    _set_deadlines(cluster, requests)
    return requests


def _set_deadlines(cluster: Cluster, requests: Sequence[Request]) -> None:
    known: dict[tuple[int, int, int, int], float] = {}
    for request in requests:
        key = (request.new_tokens, request.context_tokens, request.remote_tokens, len(request.owners))
        if key not in known:
            known[key] = cluster.isolated_s(request)
        request.isolated_s = known[key]
        request.deadline_s = request.arrival_s + cluster.config.slo_factor * request.isolated_s
