"""Which of the transfers that wait at a port can be in time together: Moore and Hodgson's rule.

A study, not what ships: `csrc/queue/rmlq.c` does not have it. The `mh` policies of the simulator ask it
(docs/results/studies.md)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple


class Transfer(NamedTuple):
    """What a request has waiting at a port."""

    due_ns: int
    sequence: int
    """Order of arrival; no two share it."""
    port_ns: int
    """How long the port takes for it (`transfer_ns`)."""
    weight: int = 1
    """What its deadline is worth, at least 1."""


def given_up(waiting: Iterable[Transfer], now_ns: int) -> set[int]:
    """Sequences of those that the port serves after all others, so that as many as possible of these are in time.

    By deadline; whenever one would be late, the one so far that takes the longest is given up, of equal ones the latest
    (Moore 1968). No set that is in time has more. With weights the one that takes the longest per weight goes, which is
    the best where the shorter of two never weighs less, else a good guess: the best is then as hard as packing a bag.
    """
    out: set[int] = set()
    kept: list[tuple[float, int, Transfer]] = []
    done_ns = now_ns
    for transfer in sorted(waiting):
        if now_ns + transfer.port_ns > transfer.due_ns:  # not even alone: nothing makes room for it
            out.add(transfer.sequence)
            continue
        done_ns += transfer.port_ns
        heapq.heappush(kept, (-transfer.port_ns / transfer.weight, -transfer.sequence, transfer))
        while done_ns > transfer.due_ns:
            longest = heapq.heappop(kept)[2]
            done_ns -= longest.port_ns
            out.add(longest.sequence)
    return out
