"""Compares policies on the same seeds. Every point is saved to disk as it finishes."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.sim import point as points
from bench.sim.cluster import ConfigError
from bench.sim.point import Point

CHOOSING_SEED = 1000  # seeds from here on choose settings and rates; nothing is compared on them
# 97.5 % quantile of Student's t by degrees of freedom: with five seeds the normal one would be a third too small.
STUDENT = (
    12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09
)  # fmt: skip
DECIDES = ("mfsd/policy", "csrc/queue", "csrc/fluid", "bench/sim")  # what a result depends on besides its point


def revision() -> str:
    """Returns the commit that last changed the files in DECIDES, with "+" if they have changed since; "unknown" outside
    a checkout."""
    root = Path(__file__).parents[2]

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments, "--", *DECIDES], cwd=root, capture_output=True, text=True).stdout

    try:
        commit = git("log", "-1", "--format=%h").strip()
        return commit + ("+" if git("status", "--porcelain") else "") if commit else "unknown"
    except OSError:
        return "unknown"


class Results:
    """Results of points by everything they depend on. Raises ConfigError if the file holds something else."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows: dict[str, dict[str, Any]] = {}
        self.revision = revision()
        try:
            for line in file.read_text().splitlines() if file.exists() else ():
                row = json.loads(line)
                self.rows[json.dumps(row["point"], sort_keys=True)] = row
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{file}: holds something else than points; name another file") from error
        file.parent.mkdir(parents=True, exist_ok=True)

    def found(self, point: Point) -> dict[str, Any] | None:
        """Returns the point's result if an earlier run has it."""
        return self.rows.get(json.dumps(points.described(point), sort_keys=True))

    def of(self, point: Point) -> dict[str, Any]:
        """Returns the point's result, from an earlier run or from a run now."""
        described = points.described(point)
        key = json.dumps(described, sort_keys=True)
        if key not in self.rows:
            self.rows[key] = {"point": described, "revision": self.revision, **points.run(point)}
            with self.file.open("a") as out:
                out.write(json.dumps(self.rows[key]) + "\n")
        return self.rows[key]

    def of_seeds(self, point: Point, policy: str, seeds: Sequence[int]) -> list[dict[str, Any]]:
        return [self.of(msgspec.structs.replace(points.under(point, policy), seed=seed)) for seed in seeds]

    def knee(self, base: Point, name: str, seeds: int = 1) -> float:
        """Returns the rate at which `nocont` meets 90 % on seeds of its own. It is stored beside the points."""
        known = self.knees()
        if name not in known:
            known[name] = points.knee(msgspec.structs.replace(base, seed=CHOOSING_SEED), seeds=seeds)
            self.file.with_suffix(".knees.json").write_text(json.dumps(known, indent=1))
        return known[name]

    def knees(self) -> dict[str, float]:
        """Returns the known knees."""
        memory = self.file.with_suffix(".knees.json")
        return dict(json.loads(memory.read_text())) if memory.exists() else {}


class Comparison(msgspec.Struct, frozen=True):
    """A policy against another one, paired by seed. Shares are 0..1 in results and percent here."""

    attainment: float
    gain: float  # points of attainment above the other
    gain_error: float  # standard error of that over seeds; 0 with one seed
    gain_half: float | None  # half of its 95 % interval; None with one seed, which has no spread
    ttft_ratio: float  # of mean TTFT
    ttft_half: float | None  # half of its 95 % interval
    p99_ratio: float  # of the mean over seeds of p99 TTFT
    ttft_s: float  # mean, over seeds
    p99_s: float
    cct_ratio: float  # of mean collective completion time
    earliness_ratio: float  # of mean non-negative earliness

    @property
    def above(self) -> bool:
        """Whether the whole interval of the gain is above 0, which is what "holds" means."""
        return self.gain_half is not None and self.gain > self.gain_half

    @property
    def below(self) -> bool:
        """Whether the whole interval of the gain is below 0."""
        return self.gain_half is not None and -self.gain > self.gain_half

    def share_of(self, gap: Comparison) -> float | None:
        """Returns the share of the gap to another policy that is closed; None if there is hardly a gap."""
        return self.gain / gap.gain if gap.gain >= 1.0 else None


def half_width(values: Sequence[float]) -> float | None:
    """Returns half of the 95 % interval of the mean."""
    n = len(values)
    if n < 2:
        return None
    return float(STUDENT[min(n - 2, len(STUDENT) - 1)] * statistics.stdev(values) / n**0.5)


def compare(mine: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> Comparison:
    def ratio(*path: str) -> float:
        def total(rows: Sequence[dict[str, Any]]) -> float:
            return sum(float(row[path[0]][path[1]]) for row in rows)

        return total(mine) / total(other) if total(other) else 0.0

    gains = [100 * (a["slo_attainment"] - b["slo_attainment"]) for a, b in zip(mine, other, strict=True)]
    slower = [a["ttft_s"]["mean"] / b["ttft_s"]["mean"] for a, b in zip(mine, other, strict=True)]
    return Comparison(
        attainment=100 * statistics.fmean(a["slo_attainment"] for a in mine),
        gain=statistics.fmean(gains),
        gain_error=statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0,
        gain_half=half_width(gains),
        ttft_ratio=ratio("ttft_s", "mean"),
        ttft_half=half_width(slower),
        p99_ratio=ratio("ttft_s", "p99"),
        ttft_s=statistics.fmean(a["ttft_s"]["mean"] for a in mine),
        p99_s=statistics.fmean(a["ttft_s"]["p99"] for a in mine),
        cct_ratio=ratio("cct_s", "mean"),
        earliness_ratio=ratio("earliness_s", "non_negative_mean"),
    )
