"""Time of one arrival or departure in the incremental Algorithm 1 (PlanCore), delta included, at 10^4 active batches.

Batches come with deadlines spread over a horizon and go when the earliest is due. The regime is how far the horizon is
beyond what the longest port needs: `feasible` prunes nobody, `slight` a few, `heavy` all that the drop budget allows.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mfsd._native import PlanCore
from mfsd.policy import Batch, Core, PolicyConfig, ReferenceCore, Request, Variant

SEED = 11
RATE = 50_000_000_000  # 400 Gbit/s
ROOM = {"feasible": 2.0, "slight": 1.0, "heavy": 0.4}


class Shape(NamedTuple):
    """One kind of cluster. spread: the ports of an all-to-all; 0: none."""

    ports: int
    spread: int = 0
    scattered: bool = False
    requests_spread: bool = False


SHAPES = {
    "few_ports": Shape(2048),
    "all_to_all_64_ports": Shape(64, 64),
    "all_to_all_64_of_2048_ports": Shape(2048, 64),
    "all_to_all_64_scattered": Shape(2048, 64, scattered=True),
    "requests_all_to_all_64_ports": Shape(64, 64, requests_spread=True),
}


class Cluster:
    """Makes batches of one shape, reproducibly."""

    def __init__(self, shape: Shape, batches: int, room: float, seed: int = SEED) -> None:
        self.shape = shape
        self.random = random.Random(seed)
        self.capacity = dict.fromkeys(range(shape.ports), RATE)
        self.numbers = 0
        sample = [self._batch(0, 0, 1) for _ in range(200)]
        load = sum(
            sum(b.fixed_loads.values()) + sum(sum(r.loads.values()) for r in b.requests) for b in sample
        ) / len(sample)
        self.horizon_ns = int(room * load * batches / shape.ports / RATE * 1e9 * 1.25)
        self.batches = batches
        self.now_ns = 10**12

    def _spread(self, most: int) -> dict[int, int]:
        shape, rng = self.shape, self.random
        if shape.scattered:
            ports = rng.sample(range(shape.ports), shape.spread)
        else:
            first = rng.randrange(shape.ports // shape.spread) * shape.spread
            ports = list(range(first, first + shape.spread))
        return {port: rng.randrange(most // 2, most) for port in ports}

    def _batch(self, number: int, soonest_ns: int, latest_ns: int) -> Batch:
        rng, shape = self.random, self.shape
        requests = []
        deadline = rng.randrange(soonest_ns, latest_ns)
        for _ in range(rng.randrange(2, 7)):
            self.numbers += 1
            own = deadline + int(rng.random() * 0.05 * (latest_ns - soonest_ns))
            if shape.requests_spread:
                loads = self._spread(2_000_000)
            else:
                loads = {port: rng.randrange(1_000_000, 64_000_000) for port in rng.sample(range(shape.ports), 2)}
            requests.append(Request(self.numbers, own, loads))
        fixed = self._spread(8_000_000) if shape.spread and not shape.requests_spread else {}
        return Batch(number, tuple(requests), rng.randrange(1 + self.horizon() // 200), fixed)

    def horizon(self) -> int:
        return getattr(self, "horizon_ns", 0)

    def fill(self, core: Core) -> dict[int, int]:
        """The first batches, at one moment. Number -> deadline."""
        due = {}
        for number in range(self.batches):
            batch = self._batch(number, self.now_ns + self.horizon_ns // 50, self.now_ns + self.horizon_ns)
            due[number] = batch.requests[0].deadline_ns
            self._arrive(core, batch)
        return due

    @staticmethod
    def _arrive(core: Core, batch: Batch) -> None:
        pass


def percentile(sorted_values: list[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]
