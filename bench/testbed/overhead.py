"""What MFS costs when little competes: the same few requests without daemons and with MFS, TTFT and processor time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from bench.testbed import show
from bench.testbed.leg import LegResult
from bench.testbed.measure import Result, change, over_seeds
from bench.testbed.modes import MODES
from bench.testbed.rounds import Moment, ResultFile, run_rounds
from bench.testbed.scale import Scale
from bench.testbed.scenario import RATES, Scenario

LOAD = 0.1
"""Of the rate at which fifo meets half of the deadlines."""
TTFT_MOST = 0.01
CPU_MOST = 0.05


def run(console: Console, scenario: Scenario, scale: Scale, seeds: Sequence[int], json_file: Path | None) -> int:
    """0 when MFS costs at most 1 % of TTFT, its daemons and coordinator at most 5 % of the workers' processor time."""
    low = msgspec.structs.replace(scenario, rate=LOAD * RATES.get(scenario.workload, scenario.rate))
    file = ResultFile(json_file, low, scale)

    def tell(moment: Moment) -> None:
        if moment.served == 0:
            console.print(
                f"[{moment.leg + 1}/{moment.legs}] {moment.mode}, {moment.requests} requests", highlight=False
            )

    def keep(result: Result, _: LegResult) -> None:
        file.add(result)
        console.print(show.line(result), highlight=False)

    run_rounds(low, seeds, [MODES["fifo"], MODES["dscp"], MODES["mfs"]], scale, tell, keep)
    ttft = change(file.results, "mfs", "dscp", "ttft_s.mean")
    shares = [{**r, "share": r["mfs_cpu_s"] / r["workers_cpu_s"]} for r in file.results if r["mode"] == "mfs"]
    share = over_seeds(shares, "mfs", "share")
    holds = ttft.mean <= TTFT_MOST and share.mean <= CPU_MOST
    console.print(
        f"TTFT {ttft.show(2, 100, sign=True)} % against fixed priorities (at most {TTFT_MOST:.0%}); MFS used "
        f"{share.show(1, 100)} % of the workers' processor time (at most {CPU_MOST:.0%}).",
        style="bold green" if holds else "bold red",
        highlight=False,
    )
    return 0 if holds else 1
