"""NIXL's telemetry for a transfer that went in several pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Telemetry(NamedTuple):
    """The attributes of a nixlXferTelemetry; times in microseconds."""

    startTime: int
    postDuration: int
    xferDuration: int
    totalBytes: int
    descCount: int


def summed(pieces: Sequence[Any]) -> Telemetry:
    """Sums up the pieces, from the first post to the last arrival."""
    start = min(piece.startTime for piece in pieces)
    return Telemetry(
        start,
        sum(piece.postDuration for piece in pieces),
        max(piece.startTime + piece.xferDuration for piece in pieces) - start,
        sum(piece.totalBytes for piece in pieces),
        sum(piece.descCount for piece in pieces),
    )
