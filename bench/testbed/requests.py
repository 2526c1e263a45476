"""python -m bench.testbed.requests FILE [--page]: what requests add to the network, with real bytes.

Four scenarios, chosen by the simulator alone on seeds 1001 to 1010. Conversations, where the choice of who shares a
batch decides. Agents whose reused KV comes from one owner that has too little rate for all of it. And, chosen by
`static` and `mfs` with workers at random, agents whose last stages from four ranks meet at the ports of three decode
workers: once with so much KV that messages wait for longer than daemons hold them, once with less KV and less time.
FILE keeps every leg; a run that was stopped goes on. --page writes the tables between the page's marks, with the
simulator's figures of the same seeds and the error of the outlook page's forecasts. --asked measures legs in which the
coordinator is also asked, only for the error of its answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console

from bench.sim.cluster import ConfigError
from bench.testbed import sandboxed
from bench.testbed.kept import Case, Kept, measure
from bench.testbed.marks import PLANNING_SEEDS
from bench.testbed.measure import Result, difference, forecast_error, over_seeds
from bench.testbed.modes import parse_modes
from bench.testbed.rounds import parse_seeds
from bench.testbed.scale import Scale
from bench.testbed.scenario import RATES, Scenario
from bench.testbed.simulate import simulated
from mfsd.text import with_part

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "outlook.md"
BEGIN, END = "<!-- begin of the testbed's tables -->", "<!-- end of the testbed's tables -->"
SEEDS = "1,2,3,4,5"
ORDER = "mfs"
"""The network's order alone: what requests add is also compared with it."""
ASKED_SIMULATED = "asked in the simulator"
KINDS = ("measured", "simulated", "planned", "asked", ASKED_SIMULATED)


CASES = {
    "conversation": Case(
        Scenario(rate=RATES["conversation"], duration_s=7.0, fetch="loaded"), "dscp,mfs,mfs+fit,mfs+fit+slo"
    ),
    "agent": Case(
        Scenario(workload="agent", rate=2.0, duration_s=6.0, fetch="loaded", kv_scale=10.0, decode_hosts=4),
        "dscp,mfs,mfs+fit+slo,mfs+fit+cost",
    ),
    "fan-in": Case(
        Scenario(
            workload="agent", rate=2.5, duration_s=6.0, fetch="loaded", kv_scale=16.0, decode_hosts=3, pool_hosts=4
        ),
        "dscp,dscp-size,mfs,mfs+backlog,mfs+fit+slo,mfs+fit+slo+backlog",
    ),
    "fan-in-short": Case(
        Scenario(
            workload="agent",
            rate=2.5,
            duration_s=6.0,
            fetch="loaded",
            kv_scale=8.0,
            slo_factor=2.0,
            decode_hosts=3,
            pool_hosts=4,
        ),
        "dscp,dscp-size,mfs,mfs+backlog",
    ),
}


def simulate(kept: Kept, names: Sequence[str], kinds: dict[str, Sequence[int]]) -> None:
    """Simulates the cases. `kinds`: seeds by kind of result."""
    for name in names:
        for mode in parse_modes(CASES[name].modes):
            for kind, many in kinds.items():
                for seed in many:
                    if kept.lacks(kind, name, mode.name, seed):
                        one = msgspec.structs.replace(CASES[name].scenario, seed=seed)
                        kept.add(kind, name, simulated(one, Scale(), mode))


def tables(kept: Kept) -> str:
    names = [name for name in CASES if kept.of("measured", name)]
    lines = [
        "Measured with real bytes (`python -m bench.testbed.requests docs/results/testbed-requests.json --page`): "
        f"{kept.content['machine']}. "
        f"{Scale().describe()}. Mean over the seeds with half of the 95 % interval; points against the first row and "
        f"against `{ORDER}`, seed by seed. In brackets: the simulator on the same seeds; its points also on those that "
        "chose the scenario."
    ]
    for name in names:
        lines += ["", f"### On the testbed: {name}", "", *_case(kept, name)]
    lines += ["", "### How far forecasts are off", "", *_forecasts(kept, names)]
    if asked := [name for name in CASES if kept.of("asked", name)]:
        lines += ["", "### How far the coordinator's answers are off", "", *_answers(kept, asked)]
    return "\n".join(lines)


def _case(kept: Kept, name: str) -> list[str]:
    rows, expected, planned = (kept.of(kind, name) for kind in ("measured", "simulated", "planned"))
    scenario, modes = CASES[name].scenario, CASES[name].modes.split(",")
    seeds = sorted({row["seed"] for row in rows})
    where = kept.content["machines"].get(name, kept.content["machine"])
    places = any(row.get("placed") for row in rows)
    lines = [
        f"{scenario.rate:g} requests/s per GPU, KV x{scenario.kv_scale:g}, {scenario.decode_hosts} decode NIC, "
        f"{len(seeds)} seeds of {rows[0]['requests']} requests"
        + (f"; {where}." if where != kept.content["machine"] else "."),
        "",
        f"| mode | in time, % | points | against `{ORDER}` | simulator: points | on seeds 1001-1010 | TTFT, ms | "
        f"computed again, % |{' worker by what ports owe, % |' if places else ''}",
        f"|---|---|---|---|---|---|---|---|{'---|' if places else ''}",
    ]
    for mode in modes:
        first, added = mode == modes[0], mode.startswith(f"{ORDER}+")

        def gain(of: Sequence[Result], mode: str = mode) -> str:
            return difference(of, mode, modes[0], "slo_attainment").show(1, 100, sign=True)

        again = sum(row.get("recomputed", 0) for row in rows if row["mode"] == mode)
        total = sum(row["requests"] for row in rows if row["mode"] == mode)
        there = {figure: over_seeds(expected, mode, figure).mean for figure in ("slo_attainment", "ttft_s.mean")}
        cells = [
            f"`{mode}`",
            f"{over_seeds(rows, mode, 'slo_attainment').show(0, 100)} ({there['slo_attainment'] * 100:.0f})",
            "" if first else gain(rows),
            difference(rows, mode, ORDER, "slo_attainment").show(1, 100, sign=True) if added else "",
            *("" if first else gain(of) for of in (expected, planned)),
            f"{over_seeds(rows, mode, 'ttft_s.mean').show(0, 1e3)} ({there['ttft_s.mean'] * 1e3:.0f})",
            f"{again / total * 100:.0f}",
            *([share_placed([row for row in rows if row["mode"] == mode])] if places else []),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def share_placed(rows: Sequence[Result]) -> str:
    """Returns the share of requests whose decode worker was chosen by what ports owe; nothing if none was to be."""
    known, unknown = (sum(row.get("placed", {}).get(which, 0) for row in rows) for which in ("known", "unknown"))
    return f"{known / (known + unknown) * 100:.0f}" if known + unknown else ""


HEAD = (
    "",
    "| | loads | took, median | error, median | p90 | share, median | p90 | mean of forecast less taken |",
    "|---|---|---|---|---|---|---|---|",
)


def _forecasts(kept: Kept, names: Sequence[str]) -> list[str]:
    lines = [
        "Of loads that were fetched: the forecast of the reader's outlook page when the request came, against what the "
        "load took. Seconds of the testbed, and shares of what the load took.",
        *HEAD,
    ]
    for name in names:
        for kind, title in (("measured", "testbed"), ("simulated", "simulator")):
            rows = kept.of(kind, name)
            for mode in dict.fromkeys(row["mode"] for row in rows):
                lines += _error_row(f"{name}, `{mode}`, {title}", rows, mode, "loads")
    return lines


def _answers(kept: Kept, names: Sequence[str]) -> list[str]:
    seeds = sorted({row["seed"] for name in names for row in kept.of("asked", name)})
    lines = [
        "Of the same loads in legs of their own: the page's forecast, and what `POST /v1/transfer-time` answers a "
        f"router at the same moment, with the time left until the load is needed (seeds {', '.join(map(str, seeds))}; "
        f"{kept.content.get('asked on', kept.content['machine'])}).",
        *HEAD,
    ]
    for name in names:
        for kind, title in (("asked", "testbed"), (ASKED_SIMULATED, "simulator")):
            rows = kept.of(kind, name)
            for mode in dict.fromkeys(row["mode"] for row in rows):
                for by, field in (("page", "loads"), ("coordinator", "loads_asked")):
                    lines += _error_row(f"{name}, `{mode}`, {title}, {by}", rows, mode, field)
    return lines


def _error_row(title: str, rows: Sequence[Result], mode: str, field: str) -> list[str]:
    """Returns nothing if no load had a forecast."""
    error = forecast_error([pair for row in rows if row["mode"] == mode for pair in row.get(field, [])])
    if error is None:
        return []
    cells = [
        title,
        str(error.loads),
        *(f"{value:.2f} s" for value in (error.took_median_s, error.median_s, error.p90_s)),
        *(f"{share:.0%}" for share in (error.share_median, error.share_p90)),
        f"{error.bias_s:+.2f} s",
    ]
    return [f"| {' | '.join(cells)} |"]


def write(kept: Kept, page: Path) -> None:
    page.write_text(with_part(page.read_text(), BEGIN, f"{tables(kept)}\n", END))


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--what", default=",".join(CASES), show_default=True, help="Which scenarios.")
@click.option("--seed", default=SEEDS, show_default=True, help="A round for each.")
@click.option("--asked", is_flag=True, help="Ask the coordinator, too, in legs that only its answers' error is of.")
@click.option("--page", is_flag=True, help=f"Write the tables to {PAGE.name}, too.")
def main(file: Path, what: str, seed: str, asked: bool, page: bool) -> None:
    """What requests add to the network on the testbed, the simulator beside it."""
    console = Console()
    kept = Kept(file, KINDS)

    def work() -> None:
        names = what.split(",")
        if unknown := [name for name in names if name not in CASES]:
            raise ConfigError(f"--what {','.join(unknown)}: use {', '.join(CASES)}")
        measure(console, kept, {name: CASES[name] for name in names}, parse_seeds(seed), asked)

    sandboxed.run("requests", work)
    if page:
        kept = Kept(file, KINDS)
        seeds = parse_seeds(seed)
        simulate(
            kept,
            what.split(","),
            {ASKED_SIMULATED: seeds} if asked else {"simulated": seeds, "planned": PLANNING_SEEDS},
        )
        write(kept, PAGE)
        console.print(tables(kept), highlight=False, markup=False)


if __name__ == "__main__":
    main()
