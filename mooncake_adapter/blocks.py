"""Whose KV block an address lies in: arithmetic over the registered caches instead of a range for every block."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterable
from typing import NamedTuple

from mooncake_adapter.metadata import Metadata

BY_LAYER_MAX = 16384
"""Metadata by layer that is kept at once: not every engine says when a request has ended."""


class Region(NamedTuple):
    """One cache: blocks of equal stride, of one layer."""

    address: int
    block_bytes: int
    blocks: int
    layer: int


class Blocks:
    """Finds the request and the layer of an address. A block belongs to the request that was given it last."""

    def __init__(self) -> None:
        self._regions: list[Region] = []
        self._starts: list[int] = []
        self._owner: dict[int, Metadata] = {}
        self._by_layer: dict[tuple[Metadata, int], Metadata] = {}
        self._lock = threading.Lock()

    @property
    def owned(self) -> dict[int, Metadata]:
        """By block."""
        return self._owner

    def register(self, regions: Iterable[Region]) -> None:
        self._regions = sorted(regions)
        self._starts = [region.address for region in self._regions]

    def give(self, blocks: Iterable[int], metadata: Metadata) -> None:
        with self._lock:
            self._owner.update(dict.fromkeys(blocks, metadata))

    def take(self, metadata: Metadata) -> None:
        """Forgets what the request of this metadata owns."""
        request = metadata.request_id
        with self._lock:
            for block in [block for block, owner in self._owner.items() if owner.request_id == request]:
                del self._owner[block]
            # a copy, made in one go: transfers' threads add to it meanwhile, and without the lock
            for key in [key for key in list(self._by_layer) if key[0].request_id == request]:
                del self._by_layer[key]

    def layer_of(self, address: int) -> int:
        """The layer whose cache the address lies in; 0 where it lies in none."""
        at = bisect.bisect_right(self._starts, address) - 1
        return self._regions[at].layer if at >= 0 else 0

    def find(self, address: int) -> Metadata | None:
        at = bisect.bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        region = self._regions[at]
        block = (address - region.address) // region.block_bytes
        owner = self._owner.get(block) if block < region.blocks else None
        return None if owner is None else self.at_layer(owner, region.layer)

    def at_layer(self, owner: Metadata, layer: int) -> Metadata:
        """The same metadata for one layer, kept for the next time."""
        found = self._by_layer.get((owner, layer))
        if found is None:
            if len(self._by_layer) >= BY_LAYER_MAX:
                self._by_layer.clear()
            found = self._by_layer[owner, layer] = owner._replace(layer=layer)
        return found


class Owned(list[int]):
    """Addresses that know whom they belong to: handed to a transfer call in place of a list."""

    def __init__(self, addresses: Iterable[int], owners: list[Metadata]) -> None:
        super().__init__(addresses)
        self.owners = owners
