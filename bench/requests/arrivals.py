"""When requests or programs arrive: Poisson, at one rate or at one that changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator


def poisson(chance: random.Random, rate: float) -> Iterator[float]:
    """Yields times of arrival, without end."""
    now = 0.0
    while True:
        now += chance.expovariate(rate)
        yield now


def thinned(chance: random.Random, rate_of: Callable[[float], float], highest: float) -> Iterator[float]:
    """Yields arrivals at a changing rate: Poisson at the highest one, of which the share that the rate asks for is
    kept."""
    for now in poisson(chance, highest):
        if chance.random() * highest < rate_of(now):
            yield now
