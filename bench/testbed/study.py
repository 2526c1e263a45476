"""python -m bench.testbed.study: measures what docs/testbed.md shows, and writes it there.

It runs what docs/testbed-plan.json (written before by bench.testbed.plan) contains: both workloads in every mode over
ten seeds, with the simulator for comparison, and the overhead at a low load. This takes an hour and a half. Run it
once, on a machine with nothing else to do. Results go to docs/testbed-results.json (finished legs meanwhile to
build/testbed); `--from-results` only writes the page, `--trial` only shows that everything runs.
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

from bench.testbed import figures, overhead, sandboxed
from bench.testbed.build import PROGRAM
from bench.testbed.command import run
from bench.testbed.measure import Result, change, difference, machine, over_seeds
from bench.testbed.modes import MODES
from bench.testbed.plan import RECORD, Plan, load_plan, measured_gain
from bench.testbed.rounds import ResultFile
from bench.testbed.scale import Scale
from bench.testbed.show import picture
from bench.testbed.simulate import simulated

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, RESULTS, PICTURE = DOCS / "testbed.md", DOCS / "testbed-results.json", DOCS / "testbed.png"
BEGIN, END = "<!-- written by bench.testbed.study -->", "<!-- end -->"
TRIAL_SEEDS, TRIAL_S = [1], 2.0
# For runs before there was a plan: mean TTFT and CCT against fifo.
BARS = {"conversation": (-0.20, -0.30), "agent": (-0.30, -0.40)}


def measure(console: Console, plan: Plan, trial: bool) -> dict[str, Any]:
    scale, seeds = plan.scale, TRIAL_SEEDS if trial else plan.run_seeds
    modes = [MODES[name] for name in plan.modes]
    duration_s = TRIAL_S if trial else next(iter(plan.workloads.values())).scenario.duration_s * scale.time
    found: dict[str, Any] = {
        "machine": machine(),
        "day": time.strftime("%Y-%m-%d"),
        "scale": msgspec.to_builtins(scale),
        "duration_s": duration_s,
        "plan": msgspec.to_builtins(plan),
        "workloads": {},
    }
    for workload, part in plan.workloads.items():
        scenario = msgspec.structs.replace(part.scenario, duration_s=duration_s / scale.time)
        file = ResultFile(PROGRAM.with_name(f"{workload}.json"), scenario, scale)
        legs = run(console, scenario, scale, modes, seeds, file)
        rounds = [msgspec.structs.replace(scenario, seed=seed) for seed in seeds]
        found["workloads"][workload] = {
            "scenario": msgspec.to_builtins(scenario),
            "results": file.results,
            "simulated": [simulated(r, scale, MODES[mode]) for r in rounds for mode in plan.modes],
        }
        if workload == "conversation":
            drawn = PROGRAM.with_name(PICTURE.name) if trial else PICTURE
            picture(drawn, sorted(legs, key=lambda leg: plan.modes.index(leg.mode)), scale)
    low = msgspec.structs.replace(plan.workloads["conversation"].scenario, duration_s=duration_s / scale.time)
    file = ResultFile(PROGRAM.with_name("overhead.json"), low, scale)
    found["overhead"] = overhead.measure(console, low, scale, seeds, file)
    return found


def page(found: dict[str, Any]) -> str:
    """Returns the measured part of docs/testbed.md."""
    lines = [
        BEGIN,
        "",
        f"Machine: {found['machine']}; {found['day']}. {Scale(**found['scale']).describe()}. Arrivals for "
        f"{found['duration_s']:g} s in each leg.",
        "",
    ]
    for workload, part in found["workloads"].items():
        lines += _workload(workload, part, _bars_planned(found, workload, part["results"]))
    lines += ["### Overhead at a low load", "", *overhead.sentences(found["overhead"]), ""]
    lines += [overhead.at_real_rates(found["overhead"]["ttft"], found["workloads"]["conversation"]["results"]), "", END]
    return "\n".join(lines)


def _bars_planned(found: dict[str, Any], workload: str, results: list[Result]) -> list[str] | None:
    """Returns what was to be shown, as recorded before; None for a run that had no plan."""
    if "plan" not in found:
        return None
    rows = []
    for bar in msgspec.convert(found["plan"], Plan).workloads[workload].bars:
        gain = measured_gain(results, bar.figure, bar.base)
        unit = "points of requests in time" if bar.figure == "slo_attainment" else f"% of {bar.figure}"
        wanted = "" if bar.wanted is None else f"{bar.wanted * 100:+.1f}"
        rows.append(
            f"| {unit} against `{bar.base}` | {bar.expected * 100:+.1f}±{bar.half * 100:.1f} | {wanted} | "
            f"{gain.show(1, 100, sign=True)} | {bar.verdict(gain)} |"
        )
    return ["| `mfs` | expected | asked for | measured | |", "|---|---|---|---|---|", *rows]


def _workload(workload: str, part: dict[str, Any], planned_bars: list[str] | None) -> list[str]:
    results: list[Result] = part["results"]
    expected: list[Result] = part["simulated"]
    seeds = sorted({r["seed"] for r in results})
    lines = [
        f"### {workload}",
        "",
        f"{part['scenario']['rate']:g} requests/s per GPU (load {over_seeds(results, 'fifo', 'load').mean:.2f} of what "
        f"the GPUs can compute), {len(seeds)} seeds of {results[0]['requests']} requests, isolated TTFT "
        f"{over_seeds(results, 'fifo', 'isolated_s').mean * 1e3:.0f} ms. Mean ± half of its 95 % interval over the "
        "seeds; changes against `fifo`, seed by seed. In brackets: the simulator.",
        "",
        *figures.table(results, expected),
    ]
    return [*lines, "", *(planned_bars or _bars(workload, results)), ""]


def _bars(workload: str, results: list[Result]) -> list[str]:
    """Returns what the comparison must show, and whether it does."""
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
@click.option("--trial", is_flag=True, help="One seed, two seconds a leg: does everything run? The page stays.")
@click.option("--from-results", is_flag=True, help=f"Only write the page from {RESULTS.name}.")
def main(trial: bool, from_results: bool) -> None:
    """Measures what docs/testbed-plan.json says, beside the simulator, and writes docs/testbed.md's figures."""
    console = Console()
    if from_results:
        write_page(json.loads(RESULTS.read_text()))
        return
    try:
        plan = load_plan()
    except (OSError, msgspec.MsgspecError) as error:
        sys.exit(f"study: {RECORD}: {error}; write it first: python -m bench.testbed.plan")

    def work() -> None:
        found = measure(console, plan, trial)
        if trial:
            console.print(page(found), highlight=False, markup=False)
        else:
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")
            write_page(found)

    sandboxed.run("study", work)


if __name__ == "__main__":
    main()
