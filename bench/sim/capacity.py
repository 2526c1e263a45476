"""How much load a policy carries: the rate up to which it meets 90 % of the deadlines, for each seed.

Attainment at one load says little about how many machines to buy; the carried load says how many fewer are needed.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import msgspec

from bench.sim.cluster import ConfigError
from bench.sim.compare import Results, half_width
from bench.sim.point import Point

TARGET = 0.9
HIGHEST = 1.25  # times the knee: at that `nocont` itself meets no more than the target
STEPS = 6


class Capacity(msgspec.Struct, frozen=True):
    """Over seeds, relative to the knee and to another policy on the same seeds."""

    load: float
    ratio: float
    ratio_half: float | None  # half of its 95 % interval

    @property
    def above(self) -> bool:
        """Whether the whole interval of the ratio is above 1."""
        return self.ratio_half is not None and self.ratio - self.ratio_half > 1


def capacity(results: Results, point: Point, seed: int, knee: float) -> float:
    """Returns the highest load, relative to the knee, at which the point still meets the target; in steps of 2 % of
    it."""
    low, high = 0.0, HIGHEST
    for _ in range(STEPS):
        load = (low + high) / 2
        tried = msgspec.structs.replace(point, seed=seed, rate=round(load * knee, 4))
        try:
            met = results.of(tried)["slo_attainment"] >= TARGET
        except ConfigError:  # more than the GPUs can compute of this seed's requests
            met = False
        low, high = (load, high) if met else (low, load)
    return low


def carried_against(
    results: Results, points: Mapping[str, Point], seeds: Sequence[int], knee: float, against: str
) -> dict[str, Capacity]:
    """Returns what each of the points carries, by name, compared with one of them on the same seeds."""
    loads = {name: [capacity(results, point, seed, knee) for seed in seeds] for name, point in points.items()}
    return {name: compare_capacity(mine, loads[against]) for name, mine in loads.items()}


def compare_capacity(mine: Sequence[float], other: Sequence[float]) -> Capacity:
    ratios = [a / b for a, b in zip(mine, other, strict=True) if b]
    return Capacity(
        load=statistics.fmean(mine),
        ratio=statistics.fmean(ratios) if ratios else 0.0,
        ratio_half=half_width(ratios),
    )
