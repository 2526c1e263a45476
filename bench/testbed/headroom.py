"""python -m bench.testbed.headroom FILE [--page]: where order has something to win, by the simulator alone.

The testbed's cluster with other KV, collectives, batches and deadlines. For each it finds the rate at which `fifo`
meets half of the deadlines on seeds 1001 to 1004, and runs every order at that rate on seeds that no other measurement
uses. For the scenario that is measured it also gives what an exact order on every link and no contention at all would
gain. FILE keeps every result; a run that was stopped goes on. --page writes the tables to docs/testbed.md. Takes ten
minutes on two cores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from bench.sim.cluster import ConfigError
from bench.testbed.marks import PLANNING_SEEDS
from bench.testbed.measure import Result, Spread, change, difference, over_seeds
from bench.testbed.modes import MODES, Mode
from bench.testbed.plan import DURATION_S, IN_TIME, load_plan
from bench.testbed.scale import Scale
from bench.testbed.scenario import RATES, WORKLOADS, Scenario
from bench.testbed.simulate import simulated
from mfsd.text import with_part

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testbed.md"
BEGIN, END = "<!-- written by bench.testbed.headroom -->", "<!-- end of headroom -->"
SEEDS = tuple(range(1101, 1113))
"""Used by no other measurement or choice."""
RATE_SEEDS = PLANNING_SEEDS[:4]
RATE_STEPS = tuple(step / 10 for step in range(4, 15))
"""Multiples of the scenario's own rate."""

CLUSTERS: dict[str, dict[str, Any]] = {
    "KV as the model's": {"kv_scale": 1.0},
    "KV x1.5": {"kv_scale": 1.5},
    "**KV x1.8**": {},
    "KV x2.5": {"kv_scale": 2.5},
    "KV x4": {"kv_scale": 4.0},
    "two decode NICs, KV x4": {"kv_scale": 4.0, "decode_hosts": 2},
    "all-to-alls x1.5": {"copies": 1.5},
    "4,096 tokens a batch": {"batch_tokens": 4096},
    "deadlines at five times the isolated TTFT": {"slo_factor": 5.0},
}
"""What differs from the scenario that is measured."""
ORDERS = ("fifo", "dscp", "dscp-size", "static", "mfs")
_MFS = MODES["mfs"].policy or {}
REFERENCES = {
    **{name: MODES[name] for name in ORDERS},
    "mfs+all": Mode(name="mfs+all", says="`mfs` that gives up nothing", policy={**_MFS, "drop_budget": 0.0}),
    "exact": Mode(name="exact", says="`mfs` if every link knew the exact order, not eight classes"),
    "nocont": Mode(name="nocont", says="no contention at all"),
}
MEASURED = "measured"


class Cell(NamedTuple):
    """One cluster with one workload."""

    name: str
    workload: str
    scenario: Scenario
    modes: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"{self.name}, {self.workload}"


def cells() -> Iterator[Cell]:
    """Yields all cells. Raises OSError or msgspec.MsgspecError if the plan cannot be read."""
    plan = load_plan()
    for workload in WORKLOADS:
        yield Cell(MEASURED, workload, plan.workloads[workload].scenario, tuple(REFERENCES))
    duration_s = DURATION_S / Scale().time
    for name, differs in CLUSTERS.items():
        for workload in WORKLOADS:
            scenario = Scenario(workload=workload, rate=RATES[workload], duration_s=duration_s, **differs)
            yield Cell(name, workload, scenario, ORDERS)


def rate_of(scenario: Scenario, seeds: Sequence[int] = RATE_SEEDS) -> float:
    """Returns the rate, of some around the scenario's own, at which `fifo` comes nearest to half of the deadlines."""
    found: dict[float, float] = {}
    for step in RATE_STEPS:
        rate = round(step * scenario.rate, 2)
        rounds = [msgspec.structs.replace(scenario, rate=rate, seed=seed) for seed in seeds]
        try:
            shares = [simulated(one, Scale(), MODES["fifo"])["slo_attainment"] for one in rounds]
        except ConfigError:  # more than the GPUs can compute
            break
        found[rate] = Spread.of(shares).mean
    return min(found, key=lambda rate: abs(found[rate] - IN_TIME))


def play(cell: Cell) -> tuple[str, list[Result]]:
    """Runs every mode of the cell on every seed; returns the figures that the tables have."""
    scenario = cell.scenario
    if cell.name != MEASURED:
        scenario = msgspec.structs.replace(scenario, rate=rate_of(scenario))
    rows = []
    for seed in SEEDS:
        one = msgspec.structs.replace(scenario, seed=seed)
        for mode in cell.modes:
            full = simulated(one, Scale(), REFERENCES[mode])
            ttft = {name: full["ttft_s"][name] for name in ("mean", "p99")}
            rows.append({k: full[k] for k in ("mode", "rate", "seed", "slo_attainment")} | {"ttft_s": ttft})
    return cell.key, rows


def tables(found: dict[str, list[Result]]) -> str:
    """Formats the tables as they are on the page."""
    lines = [
        "Simulated (`python -m bench.testbed.headroom docs/testbed-headroom.json --page`): legs of "
        f"{DURATION_S:g} s, seeds {SEEDS[0]} to {SEEDS[-1]}, at the rate at which `fifo` meets half of the deadlines "
        f"on seeds {RATE_SEEDS[0]} to {RATE_SEEDS[-1]}. Points of requests in time, mean with half of the 95 % "
        "interval; TTFT of `mfs` against `fifo`.",
    ]
    for workload in WORKLOADS:
        lines += [
            "",
            f"| {workload} | requests/s per GPU | `fifo` in time, % | mean TTFT, % | `mfs` - `dscp` | "
            "`mfs` - `dscp-size` | `mfs` - `static` |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [_row(name, found[f"{name}, {workload}"]) for name in CLUSTERS if f"{name}, {workload}" in found]
    lines += [
        "",
        "**How much order can win in the scenario that is measured**, against `static`, points of requests in time:",
        "",
        f"| | {' | '.join(WORKLOADS)} |",
        f"|---|{'---|' * len(WORKLOADS)}",
    ]
    for name, mode in REFERENCES.items():
        if name != "static":
            label = f"`{name}`" if name in MODES else mode.says
            gains = [
                difference(found[f"{MEASURED}, {workload}"], name, "static", "slo_attainment").show(1, 100, sign=True)
                for workload in WORKLOADS
            ]
            lines.append(f"| {label} | {' | '.join(gains)} |")
    return "\n".join(lines)


def _row(name: str, rows: Sequence[Result]) -> str:
    points = [difference(rows, "mfs", base, "slo_attainment").show(1, 100, sign=True) for base in ORDERS[1:-1]]
    met = over_seeds(rows, "fifo", "slo_attainment").show(0, 100)
    ttft = change(rows, "mfs", "fifo", "ttft_s.mean").show(0, 100, sign=True)
    return f"| {name} | {rows[0]['rate']:g} | {met} | {ttft} | {' | '.join(points)} |"


def write(text: str, page: Path = PAGE) -> None:
    page.write_text(with_part(page.read_text(), BEGIN, f"{text}\n", END))


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--processes", default=2, show_default=True, type=click.IntRange(1), help="At once.")
@click.option("--page", is_flag=True, help=f"Write the tables to {PAGE.name}, too.")
def main(file: Path, processes: int, page: bool) -> None:
    """Where order has something to win on the testbed's cluster, by the simulator alone."""
    try:
        wanted = list(cells())
        found: dict[str, list[Result]] = json.loads(file.read_text()) if file.exists() else {}
    except (OSError, msgspec.MsgspecError, json.JSONDecodeError) as error:
        raise click.ClickException(str(error)) from error
    missing = [cell for cell in wanted if cell.key not in found]
    with ProcessPoolExecutor(processes) as pool:
        for done, (key, rows) in enumerate(pool.map(play, missing), 1):
            found[key] = rows
            file.write_text(json.dumps(found) + "\n")
            click.echo(f"{key} ({done} of {len(missing)})", err=True)
    text = tables(found)
    click.echo(text)
    if page:
        write(text)


if __name__ == "__main__":
    main()
