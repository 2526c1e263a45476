"""python -m bench sim sensitivity FILE [--what k,error,...] [--seeds N]: how far the findings depend on
numbers nobody knows.

Each row changes one thing; `static`, the policy and `nocont` run on the same seeds. Shown: points of SLO
attainment above `static` with the standard error over the paired seeds, mean TTFT relative to `static`, and
the share of the gap to `nocont` that is closed. FILE keeps every point (JSON lines); a sweep that was stopped
goes on."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import msgspec

from bench.sim import point as points
from bench.sim.cluster import Config
from bench.sim.point import Point
from bench.sim.study import GPUS, SETTINGS

WHAT: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "k": [(f"K = {k}", {"fabric_classes": k}) for k in range(2, 9)],
    "e": [(f"E = {e:g}", {"policy": {"threshold_base": e}}) for e in (2.0, 8.0)],
    "u": [(f"U = {u:g}", {"policy": {"threshold_top": u}}) for u in (0.125, 1.0)],
    "drop": [(f"drop budget {b:g}", {"policy": {"drop_budget": b}}) for b in (0.0, 0.02, 0.2)],
    "class0": [
        (f"class 0 below {s:g} of the budget", {"policy": {"critical_laxity_share": s}}) for s in (0.0, 0.02, 0.1)
    ],
    "error": [(f"compute believed within {e:.0%}", {"belief_error": e}) for e in (0.2, 0.5)],
    "delay": [(f"coordinator {d * 1e3:g} ms late", {"coordinator_delay_s": d}) for d in (0.001, 0.01, 0.05)],
}


def knee_of(memory: Path, base: Point, name: str) -> float:
    known: dict[str, float] = json.loads(memory.read_text()) if memory.exists() else {}
    if name not in known:
        known[name] = points.knee(msgspec.structs.replace(base, seed=1000))
        memory.write_text(json.dumps(known, indent=1))
    return known[name]


class Results:
    """Points by everything they depend on, on disk as they finish."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows: dict[str, dict[str, Any]] = {}
        if file.exists():
            for line in file.read_text().splitlines():
                row = json.loads(line)
                self.rows[json.dumps(row["point"], sort_keys=True)] = row

    def of(self, point: Point) -> dict[str, Any]:
        described = msgspec.to_builtins(point)
        key = json.dumps(described, sort_keys=True)
        if key not in self.rows:
            self.rows[key] = {"point": described, **points.run(point)}
            with self.file.open("a") as out:
                out.write(json.dumps(self.rows[key]) + "\n")
        return self.rows[key]


def compare(results: Results, base: Point, policy: str, seeds: int) -> str:
    """One row: what the policy gains over `static` at this point."""

    def met(name: str) -> list[dict[str, Any]]:
        # `static` and `nocont` have no parameters of the policy: their points are shared between rows.
        plain = (
            base.config
            if name == policy
            else msgspec.structs.replace(base.config, policy={}, belief_error=0.0, coordinator_delay_s=0.0)
        )
        if name == "nocont":
            plain = msgspec.structs.replace(plain, fabric_classes=0)
        return [
            results.of(msgspec.structs.replace(base, config=plain, policy=name, seed=seed))
            for seed in range(1, seeds + 1)
        ]

    mine, static, bound = met(policy), met("static"), met("nocont")
    gains = [100 * (a["slo_attainment"] - b["slo_attainment"]) for a, b in zip(mine, static, strict=True)]
    error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
    rest = 100 * statistics.mean(b["slo_attainment"] for b in bound) - 100 * statistics.mean(
        s["slo_attainment"] for s in static
    )
    ttft = sum(a["ttft_s"]["mean"] for a in mine) / sum(s["ttft_s"]["mean"] for s in static)
    closed = f"{statistics.mean(gains) / rest:4.0%}" if rest > 0.5 else "   -"
    return f"{statistics.mean(gains):+6.1f} +- {error:3.1f}  x{ttft:4.2f}  {closed}"


def main(arguments: list[str]) -> int:
    p = argparse.ArgumentParser(
        prog="python -m bench sim sensitivity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("file", type=Path)
    p.add_argument("--what", default="k,drop,class0,error,delay", help=f"of {', '.join(WHAT)} (default all but e, u)")
    p.add_argument("--policy", default="mfs")
    p.add_argument("--model", default="dbrx", help="one or more, with commas")
    p.add_argument("--workload", default="qwen-a", help="one or more, with commas")
    p.add_argument("--setting", default="hot,fan-in,egress", help=f"of {', '.join(SETTINGS)}")
    p.add_argument("--load", type=float, default=1.0, help="relative to the rate at which nocont meets 90 %%")
    p.add_argument("--seeds", type=int, default=5)
    p.add_argument("--requests", type=int, default=300)
    options = p.parse_args(arguments)
    unknown = sorted({*options.what.split(",")} - {*WHAT, "none"})
    if unknown:
        p.error(f"--what {','.join(unknown)}: use {', '.join(WHAT)}, or none for the default parameters alone")
    results = Results(options.file)
    chosen: list[tuple[str, dict[str, Any]]] = [("defaults", {})] + [
        row for name in options.what.split(",") if name != "none" for row in WHAT[name]
    ]
    for model in options.model.split(","):
        for workload in options.workload.split(","):
            for setting in options.setting.split(","):
                config = Config(model=model, gpus=GPUS, **SETTINGS[setting])
                base = Point(config=config, workload=workload, requests=options.requests, warmup=options.requests // 3)
                name = f"{model} {workload} {setting}"
                top = knee_of(options.file.with_suffix(".knees.json"), base, name)
                print(f"{name}, {options.load:g} of {top:.3f} requests/s per GPU: {options.policy} against static")
                for label, change in chosen:
                    point = msgspec.structs.replace(
                        base, config=msgspec.structs.replace(config, **change), rate=round(options.load * top, 4)
                    )
                    print(f"  {label:34} {compare(results, point, options.policy, options.seeds)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
