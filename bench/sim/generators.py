"""Generated workloads, fitted to published statistics of production traces (data/published.json names the
sources).

Generated, not recorded: each request draws its prompt length from the published quantiles and, independently, the
share of its prompt that was seen before from the published sharing curve. The shared part is the beginning of an
earlier prompt: a recent one (the next turn of a conversation) or a popular one (a template), in the published
proportion.
"""

from __future__ import annotations

import bisect
import json
import math
import random
from collections.abc import Sequence
from importlib import resources
from typing import Any

from bench.sim.workload import Row

BLOCK_TOKENS = 64
HISTORY = 2000  # requests before the first one, which fill the caches and are not simulated
TEMPLATES = 150
LONGEST_TOKENS = 1_000_000

NAMES = ("qwen-a", "qwen-b", "mooncake-conversation", "mooncake-agent", "azure-code", "agentic")


def published() -> dict[str, Any]:
    """Returns the statistics by workload name."""
    text = resources.files("bench.sim").joinpath("data/published.json").read_text()
    return dict(json.loads(text))


class Curve:
    """Inverse of a distribution given by points (probability 0..1, value)."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        self.p = [p for p, _ in points]
        self.v = [v for _, v in points]

    def at(self, p: float) -> float:
        i = bisect.bisect_right(self.p, p)
        if i == 0:
            return self.v[0]
        if i == len(self.p):
            return self.v[-1]
        share = (p - self.p[i - 1]) / (self.p[i] - self.p[i - 1] or 1.0)
        return self.v[i - 1] + share * (self.v[i] - self.v[i - 1])


def lengths(statistics: dict[str, Any]) -> Curve:
    points = sorted((float(percent) / 100, float(tokens)) for percent, tokens in statistics["input_quantiles"].items())
    # Beyond the last quantile the tail rises to 1.6 times it: the published means allow no more.
    return Curve([(0.0, points[0][1]), *points, (1.0, 1.6 * points[-1][1] if points[-1][0] < 0.995 else points[-1][1])])


def sharing(statistics: dict[str, Any]) -> Curve:
    points = sorted((1 - float(share), float(fraction)) for fraction, share in statistics["sharing"].items())
    return Curve(points)


def generate(name: str, count: int, seed: int, burst: float = 1.0) -> list[Row]:
    """Returns `count` requests without arrival times (0) after HISTORY ones (-1). With burst > 1, groups of that mean
    size share a prefix."""
    statistics = published()[name]
    length, share = lengths(statistics), sharing(statistics)
    mean_share = sum(share.at((i + 0.5) / 1000) for i in range(1000)) / 1000
    correction = statistics["ideal_reuse"] / mean_share
    rng = random.Random(f"{name} {seed}")
    output = _lognormal(*statistics["output_p50_p99"])
    popular: list[list[int]] = [[] for _ in range(TEMPLATES)]
    weights = [1 / (i + 1) ** 1.2 for i in range(TEMPLATES)]
    recent: list[tuple[int, ...]] = []
    next_block = 0
    rows: list[Row] = []
    parent: Sequence[int] = ()
    for number in range(HISTORY + count):
        tokens = min(LONGEST_TOKENS, max(16, round(length.at(rng.random()))))
        wanted = min(0.995, share.at(rng.random()) * correction) * tokens
        blocks = int(wanted / BLOCK_TOKENS + rng.random())
        if burst <= 1 or rng.random() < 1 / burst or len(parent) < blocks:
            parent = _parent(rng, blocks, recent, popular, weights, statistics["follow_up_share"])
        if parent is not None and len(parent) < blocks:  # a template grows when a request needs more of it
            grown = popular[rng.choices(range(TEMPLATES), weights)[0]]
            while len(grown) < blocks:
                grown.append(next_block)
                next_block += 1
            parent = grown
        total = -(-tokens // BLOCK_TOKENS)
        shared = min(blocks, total)
        chain = (*parent[:shared], *range(next_block, next_block + total - shared))
        next_block += total - shared
        recent.append(chain)
        rows.append(Row(-1.0 if number < HISTORY else 0.0, tokens, max(1, round(output(rng))), chain, BLOCK_TOKENS))
    return rows


def _parent(
    rng: random.Random,
    blocks: int,
    recent: list[tuple[int, ...]],
    popular: list[list[int]],
    weights: list[float],
    follow_up_share: float,
) -> Sequence[int]:
    if rng.random() < follow_up_share or not follow_up_share < 1:
        for _ in range(24):
            age = int(rng.expovariate(1 / 300))
            if age < len(recent) and len(recent[-1 - age]) >= blocks:
                return recent[-1 - age]
    best: Sequence[int] = ()
    for index in rng.choices(range(TEMPLATES), weights, k=6):
        if len(popular[index]) >= blocks:
            return popular[index]
        best = max(best, popular[index], key=len)
    return best


def _lognormal(median: float, p99: float) -> Any:
    sigma = math.log(p99 / median) / 2.326
    return lambda rng: median * math.exp(sigma * rng.gauss(0, 1))


def schedule(rows: Sequence[Row], rate: float, seed: int, burst: float = 1.0, recorded: bool = False) -> list[Row]:
    """Gives rows arrival times at a mean `rate` (requests/s): Poisson; in bursts of geometric size with mean `burst`;
    or the recorded times stretched to that rate, with equal times spread evenly up to the next."""
    rng = random.Random(f"arrivals {seed}")
    times: list[float] = []
    if recorded:
        first, last = rows[0].arrival_s, rows[-1].arrival_s
        if last <= first:
            raise ValueError("all requests of the trace arrive at once: use --arrivals poisson")
        scale = len(rows) / rate / (last - first)
        i = 0
        while i < len(rows):
            j = i
            while j < len(rows) and rows[j].arrival_s == rows[i].arrival_s:
                j += 1
            step = (rows[j].arrival_s if j < len(rows) else last + (last - first) / len(rows)) - rows[i].arrival_s
            times += [(rows[i].arrival_s - first + step * k / (j - i)) * scale for k in range(j - i)]
            i = j
    else:
        now = 0.0
        while len(times) < len(rows):
            now += rng.expovariate(rate / burst)
            times.append(now)
            while len(times) < len(rows) and rng.random() < 1 - 1 / burst:
                times.append(now)
    return [
        Row(at, r.input_tokens, r.output_tokens, r.blocks, r.block_tokens, r.session, r.block_lengths)
        for at, r in zip(times, rows, strict=True)
    ]
