"""Computes figures from legs: the simulator's result fields, with `mode` instead of `policy`, and those that only real
bytes have."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from bench.sim.point import summary
from bench.testbed.leg import LegResult
from bench.testbed.scale import Scale
from bench.testbed.scenario import Scenario

Result = dict[str, Any]


def result_of(leg: LegResult, scenario: Scenario, load: float) -> Result:
    """Returns the figures of one leg. Seconds are the testbed's; divided by the scale's `time` they are the
    cluster's."""
    served = leg.served
    return {
        "mode": leg.mode,
        "rate": scenario.rate,
        "seed": scenario.seed,
        "requests": len(served),
        **summary(
            [((s.first_token_ns - s.arrival_ns) / 1e9, (s.deadline_ns - s.arrival_ns) / 1e9) for s in served],
            [(end - begin) / 1e9 for begin, end in leg.collectives],
        ),
        "in_time": "".join("01"[s.first_token_ns <= s.deadline_ns] for s in served),
        "load": round(load, 4),
        "wall_s": round((leg.end_ns - leg.start_ns) / 1e9, 3),
        "isolated_s": round(statistics.fmean(s.isolated_ns for s in served) / 1e9, 6),
        "kv_bytes": sum(s.kv_bytes for s in served),
        "port_bytes": leg.port_bytes,
        "workers_cpu_s": round(leg.workers_cpu_s, 3),
        "mfs_cpu_s": round(leg.mfs_cpu_s, 3),
        "permits": leg.statistics,
        **_of_loads(leg),
        **({"placed": leg.placed} if leg.placed else {}),
    }


def _of_loads(leg: LegResult) -> Result:
    """Returns the figures of reuse that is loaded while requests queue; nothing if it is fetched with the batch."""
    if not leg.loads and not leg.recomputed:
        return {}
    ended = [load for load in leg.loads if load.ended_ns]

    def beside(forecasts: Sequence[int | None]) -> list[list[float | None]]:
        return [
            [None if forecast is None else round(forecast / 1e9, 4), round((load.ended_ns - load.begun_ns) / 1e9, 4)]
            for load, forecast in zip(ended, forecasts, strict=True)
        ]

    found: Result = {"recomputed": leg.recomputed, "loads": beside([load.forecast_ns for load in ended])}
    if any(load.asked_ns is not None for load in ended):
        found["loads_asked"] = beside([load.asked_ns for load in ended])
    return found


class ForecastError(msgspec.Struct, frozen=True):
    """How far forecasts of loads were from the real durations."""

    loads: int
    """Number of loads that had a forecast."""
    unknown: int
    median_s: float
    """Of the absolute error."""
    p90_s: float
    share_median: float
    """Of the absolute error over the load's duration."""
    share_p90: float
    bias_s: float
    """Mean of forecast minus duration."""
    took_median_s: float


def forecast_error(pairs: Sequence[Sequence[float | None]]) -> ForecastError | None:
    """Compares pairs of (forecast, real duration) in seconds. Returns None if no load had a forecast."""
    known = [(expected, took) for expected, took in pairs if expected is not None and took]
    if not known:
        return None
    apart = sorted(abs(expected - took) for expected, took in known)
    shares = sorted(abs(expected - took) / took for expected, took in known)
    return ForecastError(
        len(known),
        len(pairs) - len(known),
        _quantile(apart, 0.5),
        _quantile(apart, 0.9),
        _quantile(shares, 0.5),
        _quantile(shares, 0.9),
        statistics.fmean(expected - took for expected, took in known),
        _quantile(sorted(took for _, took in known), 0.5),
    )


def _quantile(rising: Sequence[float], share: float) -> float:
    return rising[min(len(rising) - 1, int(share * len(rising)))]


T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)
"""Student's t for two-sided 95 %, by degrees of freedom from 1 on; more have the value of the last."""


class Spread(msgspec.Struct, frozen=True):
    """A figure over the seeds: mean and standard deviation."""

    mean: float
    deviation: float
    count: int = 1

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values))

    @property
    def half(self) -> float:
        """Returns half of the 95 % interval of the mean; 0 with one seed, which has none."""
        if self.count < 2:
            return 0.0
        return T_95[min(self.count - 2, len(T_95) - 1)] * self.deviation / math.sqrt(self.count)

    def show(self, digits: int = 0, factor: float = 1.0, sign: bool = False) -> str:
        """Formats the figure, such as 12.3±0.4: times `factor`, with half of its 95 % interval."""
        text = f"{self.mean * factor:{'+' if sign else ''}.{digits}f}"
        return text + (f"±{self.half * factor:.{digits}f}" if self.half else "")


def pick(result: Result, figure: str) -> float:
    """Returns a figure by its dotted name, such as ttft_s.mean."""
    value: Any = result
    for part in figure.split("."):
        value = value[part]
    return float(value)


def over_seeds(results: Sequence[Result], mode: str, figure: str) -> Spread:
    return Spread.of([pick(r, figure) for r in results if r["mode"] == mode])


def change(results: Sequence[Result], mode: str, base: str, figure: str) -> Spread:
    """Returns the relative change of a figure from mode `base` to `mode`, seed by seed: the same requests in the same
    round."""
    before = {r["seed"]: pick(r, figure) for r in results if r["mode"] == base}
    return Spread.of([pick(r, figure) / before[r["seed"]] - 1 for r in results if r["mode"] == mode])


def difference(results: Sequence[Result], mode: str, base: str, figure: str) -> Spread:
    """Returns the absolute difference of a figure, seed by seed."""
    before = {r["seed"]: pick(r, figure) for r in results if r["mode"] == base}
    return Spread.of([pick(r, figure) - before[r["seed"]] for r in results if r["mode"] == mode])


def only_one_met(results: Sequence[Result], mode: str, base: str) -> tuple[int, int]:
    """Returns how many requests were in time in `mode` but not in `base`, and the reverse: the same requests in the
    same round."""
    before = {r["seed"]: r["in_time"] for r in results if r["mode"] == base}
    pairs = [pair for r in results if r["mode"] == mode for pair in zip(r["in_time"], before[r["seed"]], strict=True)]
    return pairs.count(("1", "0")), pairs.count(("0", "1"))


def chance_of_fewer(more: int, fewer: int) -> float:
    """Returns the probability that at least `fewer` of the requests go one way if both ways are equally likely: the
    sign test of paired requests."""
    tried = more + fewer
    return sum(math.comb(tried, k) for k in range(fewer, tried + 1)) / (1 << tried)


def machine() -> str:
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as lines:  # noqa: PTH123
            model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model}, {os.cpu_count()} cores, Linux {platform.release()}"


def configuration(scenario: Scenario, scale: Scale) -> dict[str, Any]:
    """Returns what all results of a file share."""
    shared: dict[str, Any] = {
        "scenario": {k: v for k, v in msgspec.to_builtins(scenario).items() if k != "seed"},
        "scale": msgspec.to_builtins(scale),
    }
    return shared
