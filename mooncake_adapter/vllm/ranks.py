"""Ranks of requests that change as little as possible when the order changes. No vLLM in here.

The daemon is told each request's rank. If ranks were positions, a request that leaves the front of the queue would
change the rank of all behind it, and all would have to be announced again.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

STEP = 1 << 12
"""Gap between consecutive new ranks, so that later requests fit in between."""
RANK_MAX = 2**32 - 1


class Ranks:
    """The ranks of one engine's requests."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}
        """Rank of each request that has one: smaller goes first."""

    def arrange(self, names: list[str]) -> dict[str, int]:
        """Returns the ranks of these names, each once, in this order. As many as possible keep theirs; other names lose
        it."""
        before = self.of
        if list(before) == names:
            return before
        known = [before.get(name, -1) for name in names]
        if any(a < 0 or a >= b for a, b in pairwise([*known, RANK_MAX + 1])):
            known = _filled(_kept(known))
        self.of = dict(zip(names, known, strict=True))
        return self.of


def _kept(ranks: list[int]) -> list[int]:
    """Returns the ranks with -1 for all that are not in the longest increasing subsequence."""
    ends: list[int] = []  # the least rank at which a run of this length ends
    places: list[int] = []
    came_from = [-1] * len(ranks)
    for at, rank in enumerate(ranks):
        if rank < 0:
            continue
        length = bisect_left(ends, rank)
        came_from[at] = places[length - 1] if length else -1
        if length == len(ends):
            ends.append(rank)
            places.append(at)
        else:
            ends[length], places[length] = rank, at
    kept = [-1] * len(ranks)
    at = places[-1] if places else -1
    while at >= 0:
        kept[at] = ranks[at]
        at = came_from[at]
    return kept


def _filled(ranks: list[int]) -> list[int]:
    """Replaces each -1 by a rank between its neighbours. If there is no room, all ranks are new."""
    filled = list(ranks)
    at, before = 0, 0
    while at < len(filled):
        if filled[at] >= 0:
            before, at = filled[at], at + 1
            continue
        end = at
        while end < len(filled) and filled[end] < 0:
            end += 1
        count = end - at
        after = filled[end] if end < len(filled) else before + STEP * (count + 1)
        step = (after - before) // (count + 1)
        if step == 0 or after > RANK_MAX:
            return [STEP * (place + 1) for place in range(len(ranks))]
        for offset in range(count):
            filled[at + offset] = before + step * (offset + 1)
        before, at = filled[end - 1], end
    return filled
