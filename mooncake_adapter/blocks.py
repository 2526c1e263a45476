"""Finds the request that owns a KV block by arithmetic on its address, instead of one range for every block."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterable
from typing import NamedTuple

from mooncake_adapter.metadata import Metadata

BY_LAYER_MAX = 16384
"""Limit of the metadata objects cached by layer: not every engine reports the end of a request."""


class Region(NamedTuple):
    """One layer's cache: blocks of equal stride."""

    address: int
    block_bytes: int
    blocks: int
    layer: int


class Blocks:
    """Finds the request and the layer of an address. A block belongs to the request that it was given to last."""

    def __init__(self) -> None:
        self._regions: list[Region] = []
        self._starts: list[int] = []
        self._owner: dict[int, Metadata] = {}
        self._by_layer: dict[tuple[Metadata, int], Metadata] = {}
        self._lock = threading.Lock()

    @property
    def owned(self) -> dict[int, Metadata]:
        """Metadata of the owner of each block, by block number."""
        return self._owner

    def register(self, regions: Iterable[Region]) -> None:
        self._regions = sorted(regions)
        self._starts = [region.address for region in self._regions]

    def give(self, blocks: Iterable[int], metadata: Metadata) -> None:
        with self._lock:
            self._owner.update(dict.fromkeys(blocks, metadata))

    def take(self, metadata: Metadata) -> None:
        """Removes all blocks that the request of this metadata owns."""
        request = metadata.request_id
        with self._lock:
            for block in [block for block, owner in self._owner.items() if owner.request_id == request]:
                del self._owner[block]
            # one atomic copy: transfer threads add to the dictionary meanwhile without the lock
            for key in [key for key in list(self._by_layer) if key[0].request_id == request]:
                del self._by_layer[key]

    def layer_of(self, address: int) -> int:
        """Returns the layer whose cache contains the address; 0 if no cache does."""
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
        """Returns the owner's metadata for one layer. It is cached for later transfers."""
        found = self._by_layer.get((owner, layer))
        if found is None:
            if len(self._by_layer) >= BY_LAYER_MAX:
                self._by_layer.clear()
            found = self._by_layer[owner, layer] = owner._replace(layer=layer)
        return found


class Owned(list[int]):
    """A list of addresses that also carries the owner of each, passed to a transfer call in place of a plain list."""

    def __init__(self, addresses: Iterable[int], owners: list[Metadata]) -> None:
        super().__init__(addresses)
        self.owners = owners
