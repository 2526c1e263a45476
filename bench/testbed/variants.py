"""python -m bench.testbed.variants FILE [--page]: other fabrics and other collectives, with real bytes.

A fabric without classes (`--no-lanes`), collectives that are signaled as NCCL signals them (`--signals nccl`), and the
paper's rule as the simulator calibrates it. Before them runs the cluster of docs/testbed.md as it is, on the same seeds
and the same machine. Rate and requests are
those of docs/testbed-plan.json. FILE keeps every leg; a run that was stopped goes on. --page writes the tables between
the page's marks, with the simulator's figures of the same seeds where it models the fabric. Run it on a machine with
nothing else to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console

from bench.sim.cluster import ConfigError
from bench.testbed import figures, sandboxed
from bench.testbed.kept import Case, Kept, measure
from bench.testbed.measure import Result, difference
from bench.testbed.modes import MODES
from bench.testbed.plan import DURATION_S, load_plan
from bench.testbed.rounds import parse_seeds
from bench.testbed.scale import Scale
from bench.testbed.simulate import not_simulated, simulated
from mfsd.text import with_part

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testbed.md"
BEGIN, END = "<!-- written by bench.testbed.variants -->", "<!-- end of variants -->"
SEEDS = "1,2,3"
KINDS = ("measured", "simulated")
TITLES = {
    "as it is": "The cluster of the tables above",
    "no-lanes": "A fabric without classes",
    "nccl": "Collectives signaled as NCCL's",
    "paper": "The paper's rule, calibrated and with the daemon's defaults",
}
DOES_NOT_SIGNAL = "the simulator has no work requests: what it says is the same as above"


def cases(duration_s: float = DURATION_S, workload: str = "conversation") -> dict[str, Case]:
    """Returns cases by name, in the testbed's seconds. Raises OSError or msgspec.MsgspecError if the plan cannot be
    read."""
    planned = load_plan().workloads[workload].scenario
    base = msgspec.structs.replace(planned, duration_s=duration_s / Scale().time)
    return {
        "as it is": Case(base, "fifo,dscp-size,static,mfs"),
        "no-lanes": Case(msgspec.structs.replace(base, lanes=False), "fifo,static,mfs"),
        "nccl": Case(msgspec.structs.replace(base, signals="nccl"), "fifo,dscp-size,mfs"),
        "paper": Case(base, "fifo,paper-defaults,paper,mfs"),
    }


def simulate(kept: Kept, found: Mapping[str, Case], seeds: Sequence[int]) -> None:
    """Simulates the cases that the simulator models."""
    for name, case in found.items():
        for mode in [] if not_simulated(case.scenario) else case.modes.split(","):
            for seed in seeds:
                if kept.lacks("simulated", name, mode, seed):
                    one = msgspec.structs.replace(case.scenario, seed=seed)
                    kept.add("simulated", name, simulated(one, Scale(), MODES[mode]))


def tables(kept: Kept, found: Mapping[str, Case]) -> str:
    names = [name for name in found if kept.of("measured", name)]
    rows = {name: kept.of("measured", name) for name in names}
    seeds = sorted({row["seed"] for of in rows.values() for row in of})
    first = next(iter(rows.values()))
    lines = [
        f"Measured with real bytes (`python -m bench.testbed.variants docs/testbed-variants.json --page`): "
        f"{kept.content['machine']}. {Scale().describe()}. Seeds {', '.join(map(str, seeds))}, {first[0]['requests']} "
        f"requests in each leg. Mean with half of the 95 % interval over the seeds; changes against `{figures.FIRST}`, "
        "seed by seed. In brackets: the simulator.",
    ]
    for name in names:
        scenario = found[name].scenario
        lines += ["", f"### {TITLES[name]}", "", *_case(rows[name], kept.of("simulated", name), scenario.lanes)]
        if reason := not_simulated(scenario):
            lines += ["", f"Not simulated: {reason.partition(';')[0]}."]
        if scenario.signals == "nccl":
            lines += ["", f"As for the simulator: {DOES_NOT_SIGNAL}."]
    return "\n".join(lines)


def _case(rows: Sequence[Result], expected: Sequence[Result], lanes: bool) -> list[str]:
    others = [mode for mode in MODES if mode != "mfs" and any(row["mode"] == mode for row in rows)]
    gains = [
        f"{difference(rows, 'mfs', mode, 'slo_attainment').show(1, 100, sign=True)} against `{mode}`" for mode in others
    ]
    lines = figures.table(rows, expected)
    if not any(mode.startswith("dscp") for mode in others):
        reason = "it is in the first of these tables" if lanes else "a fabric without classes has none"
        lines += ["", f"Without static marking: {reason}."]
    return [*lines, "", f"Points of requests in time of `mfs`: {', '.join(gains)}."]


def write(text: str, page: Path = PAGE) -> None:
    page.write_text(with_part(page.read_text(), BEGIN, f"{text}\n", END))


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--what", default=",".join(TITLES), show_default=True, help="Which of them.")
@click.option("--seed", default=SEEDS, show_default=True, help="A round for each.")
@click.option("--duration", default=DURATION_S, show_default=True, help="Seconds in which requests arrive, each leg.")
@click.option("--page", is_flag=True, help=f"Write the tables to {PAGE.name}, too.")
def main(file: Path, what: str, seed: str, duration: float, page: bool) -> None:
    """A fabric without classes, and NCCL's signals, on the testbed."""
    console = Console()
    try:
        found = cases(duration)
        if unknown := [name for name in what.split(",") if name not in found]:
            raise ConfigError(f"--what {','.join(unknown)}: use {', '.join(found)}")
        seeds = parse_seeds(seed)
    except (ConfigError, OSError, msgspec.MsgspecError) as error:
        raise click.UsageError(str(error)) from error
    chosen = {name: found[name] for name in what.split(",")}
    kept = Kept(file, KINDS)
    sandboxed.run("variants", lambda: measure(console, kept, chosen, seeds))
    kept = Kept(file, KINDS)  # another process has written what was measured
    simulate(kept, chosen, seeds)
    text = tables(kept, found)
    console.print(text, highlight=False, markup=False)
    if page:
        write(text)


if __name__ == "__main__":
    main()
