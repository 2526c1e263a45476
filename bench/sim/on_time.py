"""Finds which of the transfers that wait at a port can be in time together, by Moore and Hodgson's rule.

Only studied, not shipped: `csrc/queue/rmlq.c` does not have it. The simulator's `mh` policies use it
(docs/results/studies.md).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple


class Transfer(NamedTuple):
    """One request's transfer that waits at a port."""

    due_ns: int
    sequence: int
    """Order of arrival, different for each."""
    port_ns: int
    """Time that the port needs for it (`transfer_ns`)."""
    weight: int = 1
    """Worth of its deadline, at least 1."""


def given_up(waiting: Iterable[Transfer], now_ns: int) -> set[int]:
    """Returns the sequences of the transfers to serve after all others, so that as many others as possible are in time.

    Transfers are taken by deadline. When one would be late, the longest so far is given up, of equal ones the latest
    (Moore 1968). No larger set can be in time. With weights, the one that takes the longest per weight is given up.
    That is optimal if the shorter of two never weighs less, and a good guess otherwise, where the optimum is a knapsack
    problem.
    """
    out: set[int] = set()
    kept: list[tuple[float, int, Transfer]] = []
    done_ns = now_ns
    for transfer in sorted(waiting):
        if now_ns + transfer.port_ns > transfer.due_ns:  # late even alone: no room can be made for it
            out.add(transfer.sequence)
            continue
        done_ns += transfer.port_ns
        heapq.heappush(kept, (-transfer.port_ns / transfer.weight, -transfer.sequence, transfer))
        while done_ns > transfer.due_ns:
            longest = heapq.heappop(kept)[2]
            done_ns -= longest.port_ns
            out.add(longest.sequence)
    return out
