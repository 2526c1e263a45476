"""Which programs' KV an engine keeps while their tools run, and which it fetches back before they return.

An engine's memory holds the KV of few of the programs that wait for a tool; a store has all of it. Both rules go by how
long until a program's next turn (`gaps`): whose is the furthest away leaves first, whose is the nearest is fetched
first, in pieces, into memory that is free or that one further away has. They only order what no request needs now: the
caller reads pieces when no request waits for a read, and frees what requests need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

PIECE_TOKENS: Final = 1024
"""Read at once. Between two pieces everything is decided anew."""
FURTHER: Final = 1.5
"""Times as far away as the program that is fetched: less is no reason to drop what is here for what is not."""


class Waiting(NamedTuple):
    """A program that waits for a tool or a person."""

    program: str
    here_tokens: int
    """Of its KV, in the engine's memory."""
    missing_tokens: int
    """Of its KV, in the store alone."""
    remaining_s: float
    """Until its next turn; infinite: it is not expected."""


class Piece(NamedTuple):
    program: str
    tokens: int


def next_piece(
    waiting: Sequence[Waiting], free_tokens: int, piece_tokens: int = PIECE_TOKENS, further: float = FURTHER
) -> Piece | None:
    """What to fetch next while no request waits for the store: of the nearest program for whose KV there is room."""
    wanted = min((w for w in waiting if w.missing_tokens > 0), key=lambda w: (w.remaining_s, w.program), default=None)
    if wanted is None or wanted.remaining_s == float("inf"):
        return None
    tokens = min(piece_tokens, wanted.missing_tokens)
    room = free_tokens
    if room < tokens:
        limit_s = further * wanted.remaining_s
        room += sum(w.here_tokens for w in waiting if w.remaining_s > limit_s)
    return Piece(wanted.program, tokens) if room >= tokens else None
