"""Whose block an address lies in, while threads of transfers ask and the engine's own forgets."""

from __future__ import annotations

from mooncake_adapter.blocks import BY_LAYER_MAX, Blocks, Region
from mooncake_adapter.metadata import Metadata

BLOCK_BYTES = 4096


class Asking(Metadata):
    """When its request's number is read, a transfer asks about a block of another layer first."""

    blocks: Blocks
    asked = 0

    @property
    def request_id(self) -> int:
        Asking.asked += 1
        assert self.blocks.find((Asking.asked - 1) * BLOCK_BYTES) is not None
        return 8


def test_transfers_ask_while_a_request_is_forgotten() -> None:
    blocks = Asking.blocks = Blocks()
    blocks.register(Region(layer * BLOCK_BYTES, BLOCK_BYTES, 1, layer) for layer in range(16))
    blocks.give([0], Metadata(7))
    for layer in range(4):
        blocks.at_layer(Asking(8), layer)
    blocks.take(Metadata(9))
    assert Asking.asked == 4


def test_requests_that_are_never_forgotten_leave_no_metadata_behind() -> None:
    blocks = Blocks()
    blocks.register([Region(0, BLOCK_BYTES, 1, 3)])
    for request in range(1, 2 * BY_LAYER_MAX):
        blocks.give([0], Metadata(request))
        assert blocks.find(0) == Metadata(request, layer=3)
    assert len(blocks._by_layer) <= BY_LAYER_MAX
