"""python -m bench sim linearity [--out DIR]: measures how the work of the rate allocator grows with the number of
flows.

It counts the flows that the allocator evaluates, not seconds, so the result is the same on every machine. JSON, PNG and
SVG go to DIR."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bench.micro.fluid import full_mesh, poisson

FLOWS = (10_000, 30_000, 100_000, 300_000)  # over 2,000 NICs, which 30,000 flows fill
INSTANCES = (2, 4, 8, 16, 32)


def measure() -> dict[str, list[dict[str, float]]]:
    """Returns the number of flows, and of flows evaluated in all, by trace."""
    traces: dict[str, list[Any]] = {
        "NIC-only, load 0.5": [poisson(flows, 0.5, 1) for flows in FLOWS],
        "NIC-only, load 0.5, 8 classes": [poisson(flows, 0.5, 8) for flows in FLOWS],
        "full-mesh collectives, 8 classes": [full_mesh(count, 2, per_flow_class=False) for count in INSTANCES],
    }
    result: dict[str, list[dict[str, float]]] = {}
    for name, runs in traces.items():
        result[name] = []
        for trace in runs:
            figures = trace.run()
            visits = figures["flows_visited_per_event"] * 2 * figures["flows"]  # one event for each begin and end
            result[name].append({"flows": figures["flows"], "flows_visited": round(visits)})
    return result


def plot(data: dict[str, list[dict[str, float]]], stem: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(4.4, 3.2), layout="constrained")
    for (name, rows), (colour, marker) in zip(
        data.items(), (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^")), strict=True
    ):
        axis.loglog(
            [r["flows"] for r in rows], [r["flows_visited"] for r in rows], label=name, color=colour, marker=marker
        )
    ends = [min(r[0]["flows"] for r in data.values()), max(r[-1]["flows"] for r in data.values())]
    axis.loglog(ends, [10 * end for end in ends], color="#999999", linestyle=":", label="10 for each flow")
    axis.set_xlabel("flows")
    axis.set_ylabel("flows evaluated")
    axis.legend(fontsize=7)
    for ending in ("png", "svg"):
        figure.savefig(stem.with_suffix(f".{ending}"), dpi=110)
    pyplot.close(figure)


def main(arguments: list[str]) -> int:
    p = argparse.ArgumentParser(
        prog="python -m bench sim linearity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="folder for the files (default out/)")
    options = p.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    data = measure()
    stem = options.out / "linearity"
    stem.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")
    plot(data, stem)
    for name, rows in data.items():
        print(name + ": " + ", ".join(f"{r['flows']:,} {r['flows_visited'] / r['flows']:.1f}" for r in rows))
    return 0
