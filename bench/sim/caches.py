"""KV blocks of prompts and who holds them.

Every unit has its own cache, from which the least recently used blocks leave first. `keep`: a unit keeps what it
computes and what it fetches, as the prefix caches of engines do, so that a popular prefix is soon everywhere.
`first-owner`: a block stays with the unit that computed it first and is fetched from there every time. No product is
known to do that; it makes owners hot.

With a store (Mooncake's, or another one behind its own NICs) units read each other's blocks from the store as long as
it has them. The store places each block on one of its NICs at random, and is finite as well. Writing blocks to it is
not simulated.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from bench.sim.cluster import Cluster
from bench.sim.workload import Row


class Held(msgspec.Struct, frozen=True):
    """A block and who has it: unit -> group whose GPUs it lies on, first owner first."""

    block: int
    tokens: int
    groups: dict[int, int]
    store_nic: int = -1  # of the store; -1: not there


class Caches:
    """Who holds which block; read and changed in the order of arrivals."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        config, model = cluster.config, cluster.model
        per_gpu = config.cache_tokens_per_gpu
        if config.cache_gb_per_gpu is not None:
            per_gpu = int(config.cache_gb_per_gpu * 1e9 / (cluster.kv_bytes * model.layers))
        self.keep = config.cache == "keep"
        self.room = [per_gpu * model.instance_gpus] * cluster.units
        self.blocks: list[OrderedDict[int, int]] = [OrderedDict() for _ in range(cluster.units)]  # tokens
        self.groups: dict[int, dict[int, int]] = {}  # block -> unit -> group
        self.seed = seed
        self.store_nics = config.store_nics
        self.store_room = int(config.store_nics * config.store_gb_per_nic * 1e9 / (cluster.kv_bytes * model.layers))
        self.stored: OrderedDict[int, int] = OrderedDict()  # tokens

    def prefix(self, row: Row) -> list[Held]:
        """Returns the longest beginning of the prompt that some unit holds."""
        held: list[Held] = []
        for block, tokens in zip(row.blocks, tokens_of(row), strict=True):
            groups = self.groups.get(block, {})
            stored = block in self.stored
            if not groups and not stored:
                break
            held.append(Held(block, tokens, groups, self._nic(block) if stored else -1))
        return held

    def _nic(self, block: int) -> int:
        return random.Random(f"store {self.seed} {block}").randrange(self.store_nics)

    def store(self, row: Row, unit: int, group: int) -> None:
        """The unit now has all blocks of the prompt; without `keep`, those that no other unit holds."""
        own = self.blocks[unit]
        for block, tokens in zip(row.blocks, tokens_of(row), strict=True):
            if self.store_nics:
                self._put(block, tokens)
            if block in own:
                own.move_to_end(block)
                continue
            holders = self.groups.setdefault(block, {})
            if holders and not self.keep:
                self.blocks[next(iter(holders))].move_to_end(block)
                continue
            holders[unit] = group  # before room is made, so that this block is not removed
            while self.room[unit] < tokens and own:
                self._drop(unit, *own.popitem(last=False))
            self.room[unit] -= tokens
            own[block] = tokens

    def _drop(self, unit: int, block: int, tokens: int) -> None:
        self.room[unit] += tokens
        del self.groups[block][unit]
        if not self.groups[block]:
            del self.groups[block]

    def _put(self, block: int, tokens: int) -> None:
        if block in self.stored:
            self.stored.move_to_end(block)
            return
        while self.store_room < tokens and self.stored:
            self.store_room += self.stored.popitem(last=False)[1]
        self.store_room -= tokens
        self.stored[block] = tokens

    def clear(self, unit: int) -> None:
        """The unit has just started and holds nothing."""
        while self.blocks[unit]:
            self._drop(unit, *self.blocks[unit].popitem(last=False))


def tokens_of(row: Row) -> list[int]:
    """Returns the tokens of each block of the prompt; blocks beyond its end have none."""
    left = row.input_tokens
    tokens = []
    for size in row.block_lengths or [row.block_tokens] * len(row.blocks):
        tokens.append(size if size < left else left)
        left -= tokens[-1]
    return tokens


def owners(cluster: Cluster, held: Sequence[Held], unit: int, rng: random.Random) -> tuple[dict[int, float], int]:
    """Returns the NICs (and shares) from which the unit fetches what it lacks, and how many tokens that is. Of the
    first `replicas` holders of a prefix it takes one at random; with `stripe` the blocks leave by all NICs of the
    owner's server."""
    config, model = cluster.config, cluster.model
    of_nics: dict[tuple[int, ...], int] = {}
    chosen: dict[tuple[int, ...], int] = {}
    for one in held:
        if unit in one.groups:
            continue
        if one.store_nic >= 0:
            nics: tuple[int, ...] = (cluster.first_store_nic + one.store_nic,)
        else:
            first = tuple(list(one.groups)[: config.replicas])
            owner = chosen.setdefault(first, first[rng.randrange(len(first))] if len(first) > 1 else first[0])
            nics = cluster.group_nics(cluster.first_unit + owner, one.groups[owner])
            if config.stripe:
                server = nics[0] // model.server_gpus * model.server_gpus
                nics = tuple(range(server, server + max(model.server_gpus, len(nics))))
        of_nics[nics] = of_nics.get(nics, 0) + one.tokens
    total = sum(of_nics.values())
    if not total:  # blocks beyond the end of the prompt have no tokens
        return {}, 0
    shares: dict[int, float] = {}
    for nics, tokens in of_nics.items():
        for nic in nics:
            shares[nic] = shares.get(nic, 0.0) + tokens / total / len(nics)
    return shares, total
