"""python -m bench sim orders FILE [--page docs/results/batches.md]: holds the meta controller against the orders that
it chooses from, while the rate or the mix of requests drifts.

Units form batches by one order throughout, or by the one that production's controller chooses once a second for each
unit (bench/sim/controller.py). Drifting workloads are those of bench/sim/drift.py. Each is compared with the best fixed
order of the controller's pool, paired by seed. FILE keeps every point; --page writes the table between marks of its
own, and the figures as JSON beside it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec

from bench.sim import controller, drift, settings, study
from bench.sim.cluster import ConfigError
from bench.sim.compare import Comparison, Results, compare
from bench.sim.point import Point

GPUS = 128
"""Two units, so that each has enough requests to judge."""
REQUESTS = {"drift-rate": 900, "drift-mix": 1800}
"""Two to three minutes of each at its knee."""
FIXED = tuple(order.value for order in controller.ORDERS)
OUTSIDE = "fit"
"""A fixed order that production's pool does not have."""
SWITCHED = ("meta-rules", "meta-bandit", "meta-rules-fit", "meta-bandit-fit")
BEGIN, END = "<!-- begin of generated table: orders -->", "<!-- end of generated table: orders -->"


def base_of(workload: str, requests: int) -> Point:
    base = settings.base_of("base", "dbrx", workload, requests)
    return msgspec.structs.replace(
        base, policy="mfs", warmup=requests // 10, config=msgspec.structs.replace(base.config, gpus=GPUS)
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Runs what is missing. Returns {"what", "rows": {workload: {scheduler: {"figures", "switches", "orders"}}}}."""
    results = Results(options.file)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    rows: dict[str, dict[str, Any]] = {}
    for workload in drift.NAMES:
        base = base_of(workload, options.requests or REQUESTS[workload])
        top = results.knee(base, study.knee_name(f"base {GPUS}", base))
        point = msgspec.structs.replace(base, rate=round(options.load * top, 4))
        found = {name: results.of_seeds(point, f"mfs+{name}", seeds) for name in (*FIXED, OUTSIDE, *SWITCHED)}
        best = max(FIXED, key=lambda name: sum(row["slo_attainment"] for row in found[name]))
        rows[workload] = {}
        for name, of in found.items():
            control = [row["control"] for row in of if "control" in row]
            rows[workload][name] = {
                "figures": msgspec.to_builtins(compare(of, found[best])),
                "best": name == best,
                "switches": sum(one["switches"] for one in control) / len(control) if control else None,
            }
            print(f"{workload}, {name}: {cell(rows[workload][name])}", flush=True)
    what = {
        "simulated": True, "load": options.load, "gpus": GPUS, "seeds": list(seeds), "tick_s": controller.TICK_S,
        "every_s": controller.TIMES.every_s, "revisions": sorted({r["revision"] for r in results.rows.values()}),
    }  # fmt: skip
    return {"what": what, "rows": rows}


def cell(row: dict[str, Any]) -> str:
    figures = msgspec.convert(row["figures"], Comparison)
    text = f"{study.plain(figures)} (best of the pool)" if row["best"] else study.cell(figures)
    return text if row["switches"] is None else f"{text}; {row['switches']:.0f} switches"


def table(data: dict[str, Any]) -> str:
    what, rows = data["what"], data["rows"]
    lines = [
        f"Simulated, not measured. DBRX, base of `stress`, {what['gpus']} GPUs, `mfs` in exact order, "
        f"{study.seed_words(what['seeds'])} (paired), load {what['load']:g} of the knee; a tick every "
        f"{what['tick_s']:g} s, a decision every {what['every_s']:g} s; rules of commit "
        f"{', '.join(what['revisions'])}. "
        "The best fixed order of the pool: requests in time, mean and p99 TTFT. Others against it: points of requests "
        "in time with half of the 95 % interval, mean and p99 TTFT; switches of a run, of all units.",
        "",
        "| | " + " | ".join(rows) + " |",
        "|---" * (len(rows) + 1) + "|",
        *(
            f"| `{name}` | " + " | ".join(cell(of[name]) for of in rows.values()) + " |"
            for name in next(iter(rows.values()))
        ),
    ]
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m bench sim orders", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("file", type=Path)
    p.add_argument("--load", type=float, default=1.0, help="load relative to the knee (default 1)")
    p.add_argument("--first-seed", type=int, default=841, help="first seed (default 841: earlier seeds chose)")
    p.add_argument("--seeds", type=int, default=3, help="number of seeds (default 3)")
    p.add_argument(
        "--requests", type=int, help="measured requests, after a tenth as many (default two to three minutes)"
    )
    p.add_argument("--page", type=Path, metavar="FILE", help="page whose table to write again, with a .json beside")
    return p


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    if options.seeds < 1:
        raise ConfigError(f"--seeds {options.seeds}: use at least 1")
    data = run(options)
    if options.page:
        study.publish(options.page, table(data), data, BEGIN, END, "orders")
    return 0
