"""Splits one transfer into messages of one request each, none much larger than a piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mooncake_adapter.metadata import Metadata
from mooncake_adapter.nixl.descriptors import Rows

Positions = npt.NDArray[np.int64]


class Piece(NamedTuple):
    """One message, which is submitted, permitted and posted as a whole."""

    metadata: Metadata
    positions: Positions | None
    """Positions of its descriptors in the transfer's; None: all of them."""
    size_bytes: int


def by_owner(
    addresses: npt.NDArray[np.uint64], metadata_of: Callable[[int], Metadata]
) -> list[tuple[Metadata, Positions]]:
    """Groups the descriptors by request, in the order in which requests first appear. Layers stay together, as each
    further message costs a post."""
    found: dict[Metadata, tuple[Metadata, list[int]]] = {}
    for position, address in enumerate(addresses.tolist()):
        metadata = metadata_of(address)
        found.setdefault(metadata._replace(layer=0), (metadata, []))[1].append(position)
    return [(metadata, np.array(positions)) for metadata, positions in found.values()]


def cut(
    rows: Rows, owners: list[tuple[Metadata, Positions]], layer_of: Callable[[int], int], piece_bytes: int
) -> list[Piece]:
    """Returns the pieces of a transfer. Each has the layer of its first descriptor."""
    pieces = []
    for metadata, positions in owners:
        lengths = rows[positions, 1].astype(np.int64)
        before = np.cumsum(lengths) - lengths
        edges = np.flatnonzero(np.diff(before // piece_bytes)) + 1
        for part in np.split(positions, edges):
            layer = metadata.layer or layer_of(int(rows[part[0], 0]))
            size_bytes = int(rows[part, 1].sum())
            pieces.append(Piece(metadata._replace(layer=layer), part, size_bytes))
    return pieces


def shortened(local: Rows, remote: Rows, piece_bytes: int) -> tuple[Rows, Rows]:
    """Splits the descriptors into ones of at most `piece_bytes`."""
    if not len(local) or int(local[:, 1].max()) <= piece_bytes:
        return local, remote
    counts = -(-local[:, 1].astype(np.int64) // piece_bytes)
    starts = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    offsets = (starts * piece_bytes).astype(np.uint64)
    cut_lists = []
    for rows in (local, remote):
        some = np.repeat(rows, counts, axis=0)
        some[:, 0] += offsets
        some[:, 1] = np.minimum(some[:, 1] - offsets, np.uint64(piece_bytes))
        cut_lists.append(some)
    return cut_lists[0], cut_lists[1]
