"""What engines are asked for: calls of programs, each with its lengths and deadlines.

A program starts at a time of its own; a call arrives when those that it depends on have ended and its pause is over. A
request on its own is a program of one call.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Call(NamedTuple):
    """One request."""

    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0
    """Of the prompt: what an earlier call of its program has left in the cache at most."""
    after: tuple[int, ...] = ()
    """Calls of its program that end first, by position."""
    gap_s: float = 0.0
    """From the last of those, or from the program's start."""
    ttft_s: float | None = None
    tbt_s: float | None = None
    ttlt_s: float | None = None
    importance: int = 0
    tier: str = ""
    tenant: str = ""


class Program(NamedTuple):
    start_s: float
    calls: tuple[Call, ...]


class Workload(NamedTuple):
    """`source`: from what it was drawn, for the row's reader."""

    programs: list[Program]
    source: str


def poisson(chance: random.Random, rate: float) -> Iterator[float]:
    """Times of arrival."""
    now = 0.0
    while True:
        now += chance.expovariate(rate)
        yield now


def thinned(chance: random.Random, rate_of: Callable[[float], float], highest: float) -> Iterator[float]:
    """Times of arrival at a rate that changes: Poisson at the highest, of which as many are kept as the rate asks."""
    for now in poisson(chance, highest):
        if chance.random() * highest < rate_of(now):
            yield now
