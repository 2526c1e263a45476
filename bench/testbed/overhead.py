"""What MFS costs when little competes: two questions, each at the scale that can answer it.

TTFT: the same few requests without daemons and with MFS, where times are nearest to the cluster's. Processor time: as
many requests with the cluster's bytes. MFS works for each message and the workers for each byte, so its share cannot be
measured with small messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import msgspec
from rich.console import Console

from bench.testbed import show
from bench.testbed.leg import LegResult
from bench.testbed.measure import Result, Spread, change
from bench.testbed.modes import MODES, Mode
from bench.testbed.rounds import Moment, ResultFile, run_rounds
from bench.testbed.scale import Scale
from bench.testbed.scenario import RATES, Scenario

LOAD = 0.1
"""Share of the rate at which fifo meets half of the deadlines."""
LARGE = Scale(link_bits_per_s=5e9, time=10.0)
"""Messages have the cluster's bytes. They keep two cores busy, so collectives take longer than they should."""
TTFT_MOST = 0.01
CPU_MOST = 0.05


class Found(TypedDict):
    ttft: list[Result]
    """Results of dscp and mfs."""
    cpu: list[Result]
    """Results of mfs, at the scale LARGE."""


def measure(console: Console, scenario: Scenario, scale: Scale, seeds: Sequence[int], file: ResultFile) -> Found:
    """Measures at a tenth of the usual load."""
    low = msgspec.structs.replace(scenario, rate=LOAD * RATES.get(scenario.workload, scenario.rate))
    console.print(scale.describe(), highlight=False)
    ttft = _legs(console, low, scale, seeds, [MODES["dscp"], MODES["mfs"]], file)
    console.print(LARGE.describe(), highlight=False)
    return {"ttft": ttft, "cpu": _legs(console, low, LARGE, seeds, [MODES["mfs"]], file)}


def _legs(
    console: Console, scenario: Scenario, scale: Scale, seeds: Sequence[int], modes: list[Mode], file: ResultFile
) -> list[Result]:
    announced: set[int] = set()
    found: list[Result] = []

    def tell(moment: Moment) -> None:
        if moment.served == 0 and moment.leg not in announced:
            announced.add(moment.leg)
            which = f"{moment.leg + 1}/{moment.legs} {moment.mode}, seed {moment.seed}"
            console.print(f"{which}, {moment.requests} requests", highlight=False)

    def keep(result: Result, _: LegResult) -> None:
        found.append(result)
        file.add(result)
        console.print(show.line(result), highlight=False)

    run_rounds(scenario, seeds, modes, scale, tell, keep)
    return found


def costs(found: Found) -> tuple[Spread, float, Spread]:
    """Returns the change of mean TTFT; the processor time of daemons and coordinator as a share of the workers' over
    all legs; and the same as a share of a core."""
    return (
        change(found["ttft"], "mfs", "dscp", "ttft_s.mean"),
        sum(r["mfs_cpu_s"] for r in found["cpu"]) / sum(r["workers_cpu_s"] for r in found["cpu"]),
        Spread.of([r["mfs_cpu_s"] / r["wall_s"] for r in found["cpu"]]),
    )


def sentences(found: Found) -> list[str]:
    ttft, share, core = costs(found)
    legs = [r["mfs_cpu_s"] / r["workers_cpu_s"] for r in found["cpu"]]
    requests, large = (sum(r["requests"] for r in part if r["mode"] == "mfs") for part in (found["ttft"], found["cpu"]))
    return [
        f"{requests} requests at a tenth of the load above. Mean TTFT with `mfs` against `dscp` (same priorities, no "
        f"daemon): {ttft.show(2, 100, sign=True)} % (at most +{TTFT_MOST:.0%}: {_word(ttft.mean <= TTFT_MOST)}).",
        "",
        f"{large} requests at the same load with the cluster's bytes ({LARGE.describe()}): four daemons and "
        f"the coordinator used {core.show(2, 100)} % of a core, {share:.1%} of what the workers used ({min(legs):.1%} "
        f"to {max(legs):.1%} by leg; in all at most {CPU_MOST:.0%}: {_word(share <= CPU_MOST)}).",
    ]


MESSAGE_BYTES = LARGE.message_bytes
"""The cluster's."""
REAL_GBIT_PER_S = (50, 100, 400)


def per_message_and_at_rest(low: Sequence[Result], high: Sequence[Result]) -> tuple[float, float]:
    """Returns seconds of a core of all daemons and the coordinator for one more message, and for a second without any,
    by the line through legs of two loads that are otherwise alike."""

    def rates(results: Sequence[Result]) -> tuple[float, float]:
        own = [r for r in results if r["mode"] == "mfs"]
        wall_s = sum(r["wall_s"] for r in own)
        return sum(r["permits"]["submitted"] for r in own) / wall_s, sum(r["mfs_cpu_s"] for r in own) / wall_s

    (few, little), (many, much) = rates(low), rates(high)
    each_s = (much - little) / (many - few)
    return each_s, little - few * each_s


def at_real_rates(low: Sequence[Result], high: Sequence[Result]) -> str:
    each_s, rest_s = per_message_and_at_rest(low, high)
    shares = ", ".join(
        f"{each_s * rate * 1e9 / 8 / MESSAGE_BYTES * 100:.0f} % at {rate} Gbit/s" for rate in REAL_GBIT_PER_S
    )
    return (
        f"MFS works for messages, not for bytes: between the two loads {each_s * 1e6:.0f} us of a core of this machine "
        f"for one more message, on all nodes together, and {rest_s * 1e3:.1f} ms a second at rest. With the cluster's "
        f"messages of {MESSAGE_BYTES / 1e6:.0f} MB that is {each_s / MESSAGE_BYTES * 1e12:.1f} ms for each GB of KV: "
        f"of a core {shares}, if nothing became cheaper as messages come closer together. It does: most of it is "
        "threads that wake up (46 us each here), and an arbiter that is awake answers in 0.6 us (`python -m bench "
        "micro permit`)."
    )


def _word(holds: bool) -> str:
    return "holds" if holds else "**missed**"


def run(console: Console, scenario: Scenario, scale: Scale, seeds: Sequence[int], file: ResultFile) -> int:
    """Returns 0 if MFS costs at most 1 % of TTFT, and its daemons and coordinator at most 5 % of the workers' processor
    time."""
    found = measure(console, scenario, scale, seeds, file)
    ttft, share, _ = costs(found)
    holds = ttft.mean <= TTFT_MOST and share <= CPU_MOST
    console.print(*sentences(found), sep="\n", style="bold green" if holds else "bold red", highlight=False)
    return 0 if holds else 1
