"""When requests or programs arrive: Poisson, at one rate or at one that changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator


def poisson(chance: random.Random, rate: float) -> Iterator[float]:
    """Times of arrival, without end."""
    now = 0.0
    while True:
        now += chance.expovariate(rate)
        yield now


def thinned(chance: random.Random, rate_of: Callable[[float], float], highest: float) -> Iterator[float]:
    """At a rate that changes: Poisson at the highest, of which as many are kept as the rate asks."""
    for now in poisson(chance, highest):
        if chance.random() * highest < rate_of(now):
            yield now
