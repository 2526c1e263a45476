"""Which programs' KV an engine keeps while their tools run, and which it fetches back before they return.

An engine's memory holds the KV of few of the programs that wait for a tool; a store has all of it. Both rules go by the
time until a program's next turn (`gaps`). The program furthest away leaves first. The nearest is fetched first, in
pieces, into memory that is free or held by a program further away. They only order what no request needs now: the
caller reads pieces when no request waits for a read, and frees what requests need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

PIECE_TOKENS: Final = 1024
"""Tokens read at once. Everything is decided anew between two pieces."""
FURTHER: Final = 1.5
"""A program's KV gives way only if it is this many times as far away as the program that is fetched."""


class Waiting(NamedTuple):
    """A program that waits for a tool or a person."""

    program: str
    here_tokens: int
    """Tokens of its KV in the engine's memory."""
    missing_tokens: int
    """Tokens of its KV only in the store."""
    remaining_s: float
    """Until its next turn. Infinite: none is expected."""


class Piece(NamedTuple):
    program: str
    tokens: int


def next_piece(
    waiting: Sequence[Waiting], free_tokens: int, piece_tokens: int = PIECE_TOKENS, further: float = FURTHER
) -> Piece | None:
    """What to fetch next while no request waits for the store: a piece of the nearest program's missing KV, or None."""
    wanted = min((w for w in waiting if w.missing_tokens > 0), key=lambda w: (w.remaining_s, w.program), default=None)
    if wanted is None or wanted.remaining_s == float("inf"):
        return None
    tokens = min(piece_tokens, wanted.missing_tokens)
    room = free_tokens
    if room < tokens:
        limit_s = further * wanted.remaining_s
        room += sum(w.here_tokens for w in waiting if w.remaining_s > limit_s)
    return Piece(wanted.program, tokens) if room >= tokens else None
