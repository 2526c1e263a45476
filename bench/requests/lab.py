"""Measures claims: runs by everything they depend on, saved as they finish, and the capacities computed from them."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.requests import point as points
from bench.requests.capacity import HIGHEST, bisect
from bench.requests.errors import UsageError
from bench.requests.point import Point, Result
from bench.requests.settings import Settings
from bench.sim import sweep
from bench.sim.compare import revision


class Scale(msgspec.Struct, frozen=True):
    """How long and how often claims are measured."""

    tiers_s: float = 14_400.0
    """Length of arrivals; eight times the longest deadline, as in QoServe."""
    deadlines: float = 1.0
    """Factor of the deadlines of batch tiers and of the turns of a changing rate, for runs that are shorter."""
    programs_s: float = 900.0
    routed_s: float = 300.0
    """Length of arrivals at several replicas."""
    step: float = 0.1
    """Requests/s at which the search for a capacity ends."""
    seeds: tuple[int, ...] = (11, 12, 13)
    ablation_seeds: tuple[int, ...] = (101, 102, 103, 104)
    """Those of the ablations, which chose nothing that the result uses."""
    joint_seeds: tuple[int, ...] = (511, 512, 513, 514, 515, 516, 517, 518)
    agents_s: float = 300.0
    agents_seeds: tuple[int, ...] = (781, 782, 783, 784, 785, 786)
    """These chose nothing."""


FULL_S = Scale().tiers_s
FULL = Scale()
QUICK = Scale(tiers_s=1800.0, deadlines=0.125, programs_s=300.0, routed_s=60.0, step=0.1, seeds=(11,),
              ablation_seeds=(101,), joint_seeds=(511,), agents_s=60.0, agents_seeds=(781,))  # fmt: skip


class _Search(NamedTuple):
    """The search for a capacity, with one seed. known: shares of late requests by rate, from earlier calls."""

    point: Point
    highest: float
    step: float
    known: dict[float, float]


def _measured(point: Point) -> dict[str, Any]:
    """Returns a row with its point, as it may be ready before rows that were requested earlier."""
    began = time.monotonic()
    row = points.run(point)
    return {"point": msgspec.to_builtins(point), "took_s": time.monotonic() - began, "row": row}


def _searched(search: _Search) -> dict[str, Any]:
    """Returns the rows that the search took."""
    found: list[dict[str, Any]] = []

    def late_at(qps: float) -> float:
        qps = round(qps, 4)
        if qps in search.known:
            return search.known[qps]
        found.append(_measured(msgspec.structs.replace(search.point, qps=qps)))
        return float(found[-1]["row"]["violations"]["all"])

    bisect(late_at, search.highest, search.step)
    return {"rows": found}


class Lab:
    """engine: "ray" spreads runs of several seeds over a Ray cluster. Raises UsageError if the file holds something
    else than runs."""

    def __init__(self, file: Path | None, scale: Scale, traces: Path | None = None, engine: str = "local") -> None:
        self.scale, self.traces, self._engine = scale, traces, engine
        self._file = file
        self._rows: dict[str, Result] = {}
        self._revision = revision()
        if file is None:
            return
        try:
            for line in file.read_text().splitlines() if file.exists() else ():
                row = json.loads(line)
                self._rows[_key(row["point"])] = row
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"--runs {file}: holds something else than runs; name another file") from error
        file.parent.mkdir(parents=True, exist_ok=True)

    @property
    def quick(self) -> bool:
        return self.scale.tiers_s < FULL_S / 4

    def beside(self, name: str) -> Path | None:
        """Returns a file for another kind of runs, beside this one's."""
        return None if self._file is None else self._file.with_name(f"{self._file.stem}-{name}.jsonl")

    def tiers_scale(self) -> str:
        scale = self.scale
        shortened = "" if scale.deadlines == 1 else f", deadlines of batch tiers x {scale.deadlines:g}"
        return f"{scale.tiers_s:g} s of arrivals{shortened}, {_seeds(scale.seeds)}"

    def programs_scale(self) -> str:
        return f"{self.scale.programs_s:g} s of arrivals, {_seeds(self.scale.seeds)}"

    def routed_scale(self) -> str:
        return f"{self.scale.routed_s:g} s of arrivals, {_seeds(self.scale.seeds)}"

    def agents_scale(self) -> str:
        return f"{self.scale.agents_s:g} s of arrivals, {_seeds(self.scale.agents_seeds)}, 95 % intervals"

    def drift_scale(self) -> str:
        return f"600 s, {_seeds(self.scale.seeds)}"

    def tiers(self, policy: str, qps: float, seed: int, workload: str = "azure-code", **given: Any) -> Point:
        """Returns a point of the tiers, with deadlines and turns scaled."""
        scale, plain = self.scale, Settings()
        scaled = {
            name: getattr(plain, name) * scale.deadlines for name in ("batch_ttlt_s", "background_ttlt_s", "swing_s")
        }
        return Point(
            workload=workload,
            policy=policy,
            qps=round(qps, 4),
            seed=seed,
            seconds=scale.tiers_s,
            traces=str(self.traces) if self.traces else None,
            settings=Settings(**{**scaled, **given}),
        )

    def run(self, point: Point) -> Result:
        """Returns the point's row, from an earlier call or from a run now."""
        return self.runs([point])[0]

    def runs(self, wanted: Sequence[Point]) -> list[Result]:
        """Returns the rows of all points, in this order. Runs what is missing, on a cluster all at once."""
        keys = [_key(msgspec.to_builtins(point)) for point in wanted]
        missing = {key: point for key, point in zip(keys, wanted, strict=True) if key not in self._rows}
        for made in sweep.each(_measured, list(missing.values()), self._engine):
            self._keep(made)
        return [self._rows[key] for key in keys]

    def of_seeds(self, point: Point, seeds: Sequence[int]) -> list[Result]:
        return self.runs([msgspec.structs.replace(point, seed=seed) for seed in seeds])

    def _keep(self, made: dict[str, Any]) -> None:
        described = made["point"]
        row = {"point": described, "revision": self._revision, **made["row"]}
        self._rows[_key(described)] = row
        if self._file is not None:
            with self._file.open("a") as out:
                out.write(json.dumps(row) + "\n")
        self._say(described, row, made["took_s"])

    def late(self, point: Point, seeds: Sequence[int] | None = None, of: str = "all") -> float:
        """Returns the mean share of late requests over seeds."""
        rows = self.of_seeds(point, self.scale.seeds if seeds is None else seeds)
        return sum(float(row["violations"][of]) for row in rows) / len(rows)

    def capacity(self, point: Point, seeds: Sequence[int] | None = None) -> float:
        """Returns the mean over seeds of the highest rate (requests/s) at which at most 1 % are late."""
        given = self.scale.seeds if seeds is None else seeds
        replicas = points.replicas(point)
        highest, step = HIGHEST[point.workload] * replicas, self.scale.step * replicas
        of_seeds = [msgspec.structs.replace(point, seed=seed) for seed in given]
        if self._engine != "local":
            searches = [_Search(one, highest, step, self._known(one)) for one in of_seeds]
            for found in sweep.each(_searched, searches, self._engine):
                for made in found["rows"]:
                    self._keep(made)
        found_qps = [bisect(functools.partial(self._late_at, one), highest, step).qps for one in of_seeds]
        return sum(found_qps) / len(found_qps)

    def _late_at(self, point: Point, qps: float) -> float:
        return float(self.run(msgspec.structs.replace(point, qps=round(qps, 4)))["violations"]["all"])

    def _known(self, point: Point) -> dict[float, float]:
        same = _key({**msgspec.to_builtins(point), "qps": 0.0})
        rows = [row for row in self._rows.values() if _key({**row["point"], "qps": 0.0}) == same]
        return {row["point"]["qps"]: float(row["violations"]["all"]) for row in rows}

    def _say(self, point: dict[str, Any], row: Result, took_s: float) -> None:
        late = row["violations"]["all"]
        print(
            f"{point['what']} {point['workload']} {point['policy']} {point['qps']:g}/s seed {point['seed']}: "
            f"{late:.1%} late ({took_s:.0f} s)",
            file=sys.stderr,
            flush=True,
        )


def _key(described: dict[str, Any]) -> str:
    return json.dumps(described, sort_keys=True)


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
