"""What MFS costs when little competes: the same few requests without daemons and with MFS, TTFT and processor time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.console import Console

from bench.testbed import show
from bench.testbed.leg import LegResult
from bench.testbed.measure import Result, Spread, change
from bench.testbed.modes import MODES
from bench.testbed.rounds import Moment, ResultFile, run_rounds
from bench.testbed.scale import Scale
from bench.testbed.scenario import RATES, Scenario

LOAD = 0.1
"""Of the rate at which fifo meets half of the deadlines."""
TTFT_MOST = 0.01
CPU_MOST = 0.05


def measure(console: Console, scenario: Scenario, scale: Scale, seeds: Sequence[int], file: ResultFile) -> list[Result]:
    """Figures of dscp (the same priorities, no daemons) and mfs at a tenth of the usual load."""
    low = msgspec.structs.replace(scenario, rate=LOAD * RATES.get(scenario.workload, scenario.rate))

    told: set[int] = set()

    def tell(moment: Moment) -> None:
        if moment.served == 0 and moment.leg not in told:
            told.add(moment.leg)
            which = f"{moment.leg + 1}/{moment.legs} {moment.mode}, seed {moment.seed}"
            console.print(f"{which}, {moment.requests} requests", highlight=False)

    def keep(result: Result, _: LegResult) -> None:
        file.add(result)
        console.print(show.line(result), highlight=False)

    run_rounds(low, seeds, [MODES["dscp"], MODES["mfs"]], scale, tell, keep)
    return file.results


def costs(results: Sequence[Result]) -> tuple[Spread, Spread, Spread]:
    """Change of mean TTFT; processor time of daemons and coordinator as a share of the workers' and of a core."""
    mfs = [r for r in results if r["mode"] == "mfs"]
    return (
        change(results, "mfs", "dscp", "ttft_s.mean"),
        Spread.of([r["mfs_cpu_s"] / r["workers_cpu_s"] for r in mfs]),
        Spread.of([r["mfs_cpu_s"] / r["wall_s"] for r in mfs]),
    )


def sentences(results: Sequence[Result]) -> list[str]:
    ttft, share, core = costs(results)
    requests = sum(r["requests"] for r in results if r["mode"] == "mfs")
    return [
        f"{requests} requests at a tenth of the load above. Mean TTFT with `mfs` against `dscp` (same priorities, no "
        f"daemon): {ttft.show(2, 100, sign=True)} % (at most +{TTFT_MOST:.0%}: {_word(ttft.mean <= TTFT_MOST)}). "
        f"Four daemons and the coordinator used {core.show(2, 100)} % of a core, {share.show(0, 100)} % of what the "
        f"workers used (at most {CPU_MOST:.0%}: {_word(share.mean <= CPU_MOST)}).",
    ]


def _word(holds: bool) -> str:
    return "holds" if holds else "**missed**"


def run(console: Console, scenario: Scenario, scale: Scale, seeds: Sequence[int], file: ResultFile) -> int:
    """0 when MFS costs at most 1 % of TTFT, its daemons and coordinator at most 5 % of the workers' processor time."""
    ttft, share, _ = costs(measure(console, scenario, scale, seeds, file))
    holds = ttft.mean <= TTFT_MOST and share.mean <= CPU_MOST
    console.print(*sentences(file.results), style="bold green" if holds else "bold red", highlight=False)
    return 0 if holds else 1
