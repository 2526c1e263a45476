"""Splits one call of a transfer engine into messages of one request each, none larger than PIECE_BYTES."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mooncake_adapter.metadata import Metadata

PIECE_BYTES = 16 << 20
"""Larger messages would occupy the window of the network card; a permit costs microseconds."""


@dataclass
class Piece:
    """One message, which is submitted, permitted and issued as a whole."""

    metadata: Metadata
    addresses: list[int] = field(default_factory=list)
    peer_addresses: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, address: int, peer_address: int, length: int) -> None:
        self.addresses.append(address)
        self.peer_addresses.append(peer_address)
        self.lengths.append(length)
        self.size_bytes += length


def cut(
    addresses: Sequence[int],
    peer_addresses: Sequence[int],
    lengths: Sequence[int],
    metadata_of: Callable[[int], Metadata],
    piece_bytes: int = PIECE_BYTES,
) -> list[Piece]:
    """Returns the pieces of a call, in the order of their first bytes.

    Raises ValueError if the lists differ in length; callers then pass the call on, as the engine's own error is better.
    """
    pieces: list[Piece] = []
    open_pieces: dict[Metadata, Piece] = {}
    for address, peer_address, length in zip(addresses, peer_addresses, lengths, strict=True):
        metadata = metadata_of(address)
        done = 0
        while True:
            piece = open_pieces.get(metadata)
            if piece is None or piece.size_bytes >= piece_bytes:
                piece = open_pieces[metadata] = Piece(metadata)
                pieces.append(piece)
            step = min(length - done, piece_bytes - piece.size_bytes)
            piece.add(address + done, peer_address + done, step)
            done += step
            if done >= length:
                break
    return pieces
