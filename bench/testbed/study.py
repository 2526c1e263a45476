"""python -m bench.testbed.study: measures what docs/testbed.md shows, and writes it there.

Both workloads in every mode over five seeds, beside the simulator, and the overhead at a low load: about 45 minutes.
Run it on a machine with nothing else to do. Results go to docs/testbed-results.json (finished legs meanwhile to
build/testbed); `--from-results` only writes the page.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from bench.sim.cluster import ConfigError
from bench.testbed import overhead
from bench.testbed.build import PROGRAM, BuildError
from bench.testbed.command import run
from bench.testbed.measure import Result, change, difference, machine, over_seeds
from bench.testbed.modes import MODES
from bench.testbed.processes import LegError
from bench.testbed.rounds import ResultFile, parse_seeds
from bench.testbed.scale import Scale
from bench.testbed.scenario import RATES, WORKLOADS, Scenario
from bench.testbed.show import picture
from bench.testbed.simulate import simulated
from mfsd.playground.cage import CageError, run_caged

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, RESULTS, PICTURE = DOCS / "testbed.md", DOCS / "testbed-results.json", DOCS / "testbed.png"
BEGIN, END = "<!-- written by bench.testbed.study -->", "<!-- end -->"
# The bars: mean TTFT and CCT against fifo.
BARS = {"conversation": (-0.20, -0.30), "agent": (-0.30, -0.40)}


def measure(console: Console, seeds: list[int], duration_s: float) -> dict[str, Any]:
    scale = Scale()
    found: dict[str, Any] = {
        "machine": machine(),
        "day": time.strftime("%Y-%m-%d"),
        "scale": msgspec.to_builtins(scale),
        "duration_s": duration_s,
        "workloads": {},
    }
    for workload in WORKLOADS:
        scenario = Scenario(workload=workload, rate=RATES[workload], duration_s=duration_s / scale.time)
        file = ResultFile(PROGRAM.with_name(f"{workload}.json"), scenario, scale)
        legs = run(console, scenario, scale, list(MODES.values()), seeds, file)
        rounds = [msgspec.structs.replace(scenario, seed=seed) for seed in seeds]
        found["workloads"][workload] = {
            "scenario": msgspec.to_builtins(scenario),
            "results": file.results,
            "simulated": [simulated(r, scale, mode) for r in rounds for mode in MODES],
        }
        if workload == "conversation":
            picture(PICTURE, sorted(legs, key=lambda leg: list(MODES).index(leg.mode)), scale)
    low = Scenario(rate=RATES["conversation"], duration_s=duration_s / scale.time)
    file = ResultFile(PROGRAM.with_name("overhead.json"), low, scale)
    found["overhead"] = overhead.measure(console, low, scale, seeds, file)
    return found


def page(found: dict[str, Any]) -> str:
    """The measured part of docs/testbed.md."""
    lines = [
        BEGIN,
        "",
        f"Machine: {found['machine']}; {found['day']}. {Scale(**found['scale']).describe()}. Arrivals for "
        f"{found['duration_s']:g} s in each leg.",
        "",
    ]
    for workload, part in found["workloads"].items():
        lines += _workload(workload, part)
    lines += ["### Overhead at a low load", "", *overhead.sentences(found["overhead"]), "", END]
    return "\n".join(lines)


def _workload(workload: str, part: dict[str, Any]) -> list[str]:
    results: list[Result] = part["results"]
    expected: list[Result] = part["simulated"]
    seeds = sorted({r["seed"] for r in results})
    lines = [
        f"### {workload}",
        "",
        f"{part['scenario']['rate']:g} requests/s per GPU (load {over_seeds(results, 'fifo', 'load').mean:.2f} of what "
        f"the GPUs can compute), {len(seeds)} seeds of {results[0]['requests']} requests, isolated TTFT "
        f"{over_seeds(results, 'fifo', 'isolated_s').mean * 1e3:.0f} ms. Mean ± standard deviation over the seeds; "
        "changes against `fifo`, seed by seed. In brackets: the simulator.",
        "",
        "| mode | TTFT, ms | change, % | p99, ms | in time, % | points | CCT, ms | change, % | early, ms | CPU, % |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for mode in MODES:
        first = mode == "fifo"

        def beside(figure: str, factor: float, digits: int, mode: str = mode) -> str:
            here, there = over_seeds(results, mode, figure), over_seeds(expected, mode, figure).mean
            return f"{here.show(digits, factor)} ({there * factor:.{digits}f})"

        share = over_seeds(results, mode, "mfs_cpu_s").mean / over_seeds(results, mode, "workers_cpu_s").mean
        cells = [
            f"`{mode}`",
            beside("ttft_s.mean", 1e3, 0),
            "" if first else change(results, mode, "fifo", "ttft_s.mean").show(0, 100, sign=True),
            over_seeds(results, mode, "ttft_s.p99").show(0, 1e3),
            beside("slo_attainment", 100, 0),
            "" if first else difference(results, mode, "fifo", "slo_attainment").show(0, 100, sign=True),
            beside("cct_s.mean", 1e3, 1),
            "" if first else change(results, mode, "fifo", "cct_s.mean").show(0, 100, sign=True),
            over_seeds(results, mode, "earliness_s.non_negative_mean").show(0, 1e3),
            f"{share * 100:.0f}" if share else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", *_bars(workload, results), ""]


def _bars(workload: str, results: list[Result]) -> list[str]:
    """What the comparison must show, and whether it does."""
    ttft_most, cct_most = BARS[workload]
    ttft = change(results, "mfs", "fifo", "ttft_s.mean").mean
    cct = change(results, "mfs", "fifo", "cct_s.mean").mean
    rows = [
        (f"mean TTFT against fifo, at most {ttft_most:+.0%}", f"{ttft:+.0%}", ttft <= ttft_most),
        (f"mean CCT against fifo, at most {cct_most:+.0%}", f"{cct:+.0%}", cct <= cct_most),
    ]
    for base in ("fifo", "dscp", "static"):
        points = difference(results, "mfs", base, "slo_attainment")
        holds = points.mean >= 0 if base == "static" else points.mean > 0
        wanted = "not below" if base == "static" else "above"
        rows.append((f"requests in time {wanted} {base}", f"{points.show(1, 100, sign=True)} points", holds))
    return [
        "| `mfs` must show | measured | |",
        "|---|---|---|",
        *(f"| {what} | {value} | {'holds' if holds else '**missed**'} |" for what, value, holds in rows),
    ]


def write_page(found: dict[str, Any]) -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + page(found) + after)


@click.command()
@click.option("--seed", default="1,2,3,4,5", show_default=True)
@click.option("--duration", default=30.0, show_default=True, help="Seconds in which requests arrive, each leg.")
@click.option("--from-results", is_flag=True, help=f"Only write the page from {RESULTS.name}.")
def main(seed: str, duration: float, from_results: bool) -> None:
    """Measures both workloads in every mode beside the simulator, and writes docs/testbed.md's figures."""
    console = Console()

    def inside() -> int:
        try:
            found = measure(console, parse_seeds(seed), duration)
        except (LegError, BuildError, ConfigError, OSError) as error:
            print(f"study: {error}", file=sys.stderr)
            return 2
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        write_page(found)
        return 0

    if from_results:
        write_page(json.loads(RESULTS.read_text()))
        return
    try:
        sys.exit(run_caged(inside))
    except CageError as error:
        sys.exit(f"study: {error}")


if __name__ == "__main__":
    main()
