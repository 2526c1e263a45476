"""Requests whose rate or mix drifts within a run, after H-MAS's workloads (bench.requests.drift has those of the
step-level simulator).

A run has three phases of equal length. drift-rate: QwenA at 0.6 of the mean rate, at 1.4, and on and off at 1.8 and 0.2
ten times over (Eq 13). drift-mix: short prompts (QwenB), long ones (code), and both, each phase with as much to compute
in a second. They are generated, as their parts are.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import msgspec

from bench.sim import generators
from bench.sim.workload import Row

NAMES = ("drift-rate", "drift-mix")
STEADY, SHORT, LONG = "qwen-a", "qwen-b", "azure-code"
SHORT_TO_LONG = 8.0
"""Requests of SHORT that are as much to compute as one of LONG: the ratio of the rates at which GPUs are saturated."""
LONG_SHARES = (0.0, 1.0, 1 / (1 + SHORT_TO_LONG))
"""Of the requests of each phase of the mix; the last is half of the work."""
ON_OFF = 10


class Segment(msgspec.Struct, frozen=True):
    """A part of a run. `length`: share of the run; `factor`: of the mean rate."""

    length: float
    factor: float
    long_share: float = 0.0


def segments(name: str) -> list[Segment]:
    """Returns the segments of a run; their mean factor is 1."""
    third = 1 / 3
    if name == "drift-rate":
        on, off = (Segment(third / 2 / ON_OFF, factor) for factor in (1.8, 0.2))
        return [Segment(third, 0.6), Segment(third, 1.4), *[on, off] * ON_OFF]
    each = [1 / (share + (1 - share) / SHORT_TO_LONG) for share in LONG_SHARES]
    mean = sum(each) / len(each)
    return [Segment(third, one / mean, share) for one, share in zip(each, LONG_SHARES, strict=True)]


def rows(name: str, count: int, rate: float, seed: int, burst: float) -> list[Row]:
    """Returns `count` rows at the mean `rate` (requests/s), after those that fill the caches."""
    kinds = (STEADY,) if name == "drift-rate" else (SHORT, LONG)
    drawn = [generators.generate(kind, count, seed, burst) for kind in kinds]
    past = [row for of in drawn for row in of[: generators.HISTORY]]
    left = [iter(of[generators.HISTORY :]) for of in drawn]
    mixed = random.Random(f"drift {seed}")
    timed = []
    for at, segment in arrivals(segments(name), count, rate, seed):
        timed.append(msgspec.structs.replace(next(left[mixed.random() < segment.long_share]), arrival_s=at))
    return apart(past, timed, drawn)


def arrivals(parts: Sequence[Segment], count: int, rate: float, seed: int) -> list[tuple[float, Segment]]:
    """Returns `count` times, Poisson at the rate of their segment, and the segment. What chance leaves over comes at
    the mean rate behind them."""
    rng = random.Random(f"arrivals {seed}")
    times: list[tuple[float, Segment]] = []
    begin, run_s = 0.0, count / rate
    for segment in (*parts, msgspec.structs.replace(parts[-1], length=math.inf, factor=1.0)):
        end = begin + segment.length * run_s
        now = begin + rng.expovariate(rate * segment.factor)
        while len(times) < count and now < end:
            times.append((now, segment))
            now += rng.expovariate(rate * segment.factor)
        begin = end
    return times


def apart(past: Sequence[Row], timed: Sequence[Row], drawn: Sequence[Sequence[Row]]) -> list[Row]:
    """Returns all rows, those of each kind with blocks of their own."""
    kind_of = {id(row.blocks): kind for kind, of in enumerate(drawn) for row in of}
    above = 1 + max(block for of in drawn for row in of for block in row.blocks)
    moved = []
    for row in (*past, *timed):
        by = kind_of[id(row.blocks)] * above
        moved.append(msgspec.structs.replace(row, blocks=tuple(block + by for block in row.blocks)))
    return moved
