"""python -m bench.testbed.plan: fixes what the testbed serves and what MFS must show there, before it is measured.

It uses the simulator alone, on seeds that no run of the testbed uses. For each workload it fixes the rate, by a rule
that knows nothing of MFS (`fifo` meets half of the deadlines), the limits of mode dscp-size, and the bars, from what
the simulator then expects of every mode. The record is docs/testbed-plan.json; bench.testbed.study runs what is
recorded there, once, on seeds 1 to 10.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from bench.testbed.marks import PLANNING_SEEDS, marks_of
from bench.testbed.measure import Result, Spread, change, difference, over_seeds
from bench.testbed.modes import MODES
from bench.testbed.scale import Scale
from bench.testbed.scenario import RATES, WORKLOADS, Scenario
from bench.testbed.simulate import simulated
from mfsd.policy.types import Stage

RECORD = Path(__file__).resolve().parents[2] / "docs" / "testbed-plan.json"
RUN_SEEDS = list(range(1, 11))
DURATION_S = 30.0
IN_TIME = 0.5
RATE_STEPS = (0.8, 0.9, 1.0, 1.1, 1.2)
"""Multiples of the approximate rate: the one at which fifo comes nearest to IN_TIME is taken."""
FIGURES = ("ttft_s.mean", "ttft_s.p99", "slo_attainment", "cct_s.mean")
BASES = ("fifo", "dscp", "dscp-size", "static")
LEAST_SHARE = 0.5
"""Share of the simulator's expectation that the testbed must show, because its links and cores are not ideal."""


class Bar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `mfs` must show against one mode: a relative change of a figure or, for attainment, a difference."""

    figure: str
    base: str
    expected: float
    """By the simulator, mean over the planning seeds."""
    half: float
    """Half of its 95 % interval."""
    wanted: float | None
    """None: the simulator's own interval contains 0, so nothing is claimed."""

    def verdict(self, measured: Spread) -> str:
        """holds: the whole interval reaches what is wanted. holds by the mean: the interval is on that side of 0, and
        its mean reaches it. open: the interval contains 0."""
        if self.wanted is None:
            return "nothing claimed"
        side = 1 if self.wanted > 0 else -1
        if side * measured.mean < side * self.wanted:
            return "**missed**"
        if measured.count < 2 or side * measured.mean <= measured.half:
            return "open"
        return "holds" if side * (measured.mean - self.wanted) >= measured.half else "holds by the mean"


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One workload."""

    scenario: Scenario
    reuse_edges_bytes: list[int]
    """Limits of mode dscp-size, in the cluster's bytes."""
    p2d_edges_bytes: list[int]
    fifo_in_time: dict[str, float]
    """By rate; the rate was chosen by it."""
    expected: dict[str, dict[str, float]]
    """Mode -> figure -> mean over the planning seeds, in the testbed's seconds."""
    bars: list[Bar]


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is run, and what it must show."""

    day: str
    planning_seeds: list[int]
    run_seeds: list[int]
    scale: Scale
    modes: list[str]
    workloads: dict[str, Part]


def measured_gain(results: Sequence[Result], figure: str, base: str) -> Spread:
    """Returns the gain of `mfs` against a mode, seed by seed."""
    return (difference if figure == "slo_attainment" else change)(results, "mfs", base, figure)


def bars_of(results: Sequence[Result]) -> list[Bar]:
    """Returns the bars: for attainment against every mode; for TTFT and collectives against fifo."""
    wanted = [("slo_attainment", base) for base in BASES] + [("ttft_s.mean", "fifo"), ("cct_s.mean", "fifo")]
    found = []
    for figure, base in wanted:
        gain = measured_gain(results, figure, base)
        good = 1 if figure == "slo_attainment" else -1
        clear = good * gain.mean > gain.half
        found.append(Bar(figure, base, gain.mean, gain.half, LEAST_SHARE * gain.mean if clear else None))
    return found


def planned(seeds: Sequence[int], duration_s: float, say: Callable[[str], None]) -> Plan:
    scale = Scale()
    parts = {}
    for workload in WORKLOADS:
        scenario, in_time = _with_rate(workload, seeds, duration_s, scale, say)
        rounds = [msgspec.structs.replace(scenario, seed=seed) for seed in seeds]
        results: list[Result] = []
        for mode in MODES:
            results += [simulated(one, scale, MODES[mode]) for one in rounds]
            say(f"{workload}, {mode}: {over_seeds(results, mode, 'slo_attainment').show(1, 100)} % in time")
        marks = marks_of(scenario)
        parts[workload] = Part(
            scenario=scenario,
            reuse_edges_bytes=list(marks.sizes[Stage.REUSE]),
            p2d_edges_bytes=list(marks.sizes[Stage.P2D]),
            fifo_in_time=in_time,
            expected={m: {f: over_seeds(results, m, f).mean for f in FIGURES} for m in MODES},
            bars=bars_of(results),
        )
    return Plan(time.strftime("%Y-%m-%d"), list(seeds), RUN_SEEDS, scale, list(MODES), parts)


def _with_rate(
    workload: str, seeds: Sequence[int], duration_s: float, scale: Scale, say: Callable[[str], None]
) -> tuple[Scenario, dict[str, float]]:
    found: dict[float, float] = {}
    for step in RATE_STEPS:
        rate = round(step * RATES[workload], 2)
        scenario = Scenario(workload=workload, rate=rate, duration_s=duration_s / scale.time)
        rounds = [msgspec.structs.replace(scenario, seed=seed) for seed in seeds]
        found[rate] = Spread.of([simulated(one, scale, MODES["fifo"])["slo_attainment"] for one in rounds]).mean
        say(f"{workload}, fifo at {rate:g} requests/s per GPU: {found[rate]:.1%} in time")
    best = min(found, key=lambda rate: abs(found[rate] - IN_TIME))
    chosen = Scenario(workload=workload, rate=best, duration_s=duration_s / scale.time)
    return chosen, {f"{rate:g}": share for rate, share in found.items()}


def load_plan(file: Path = RECORD) -> Plan:
    """Reads the record. Raises FileNotFoundError or msgspec.MsgspecError."""
    return msgspec.json.decode(file.read_bytes(), type=Plan)


def save_plan(plan: Plan, file: Path = RECORD) -> None:
    content: dict[str, Any] = msgspec.to_builtins(plan)
    file.write_text(json.dumps(content, indent=1) + "\n")


@click.command()
@click.option("--output", default=RECORD, show_default=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--duration", default=DURATION_S, show_default=True, help="Seconds in which requests arrive, each leg.")
@click.option("--seeds", default=len(PLANNING_SEEDS), show_default=True, type=click.IntRange(2, len(PLANNING_SEEDS)))
def main(output: Path, duration: float, seeds: int) -> None:
    """Plans the testbed's run by the simulator alone, on seeds 1001 to 1010, and records it."""
    os.nice(10)
    plan = planned(PLANNING_SEEDS[:seeds], duration, lambda text: click.echo(text, err=True))
    save_plan(plan, output)
    for workload, part in plan.workloads.items():
        click.echo(f"{workload}: {part.scenario.rate:g} requests/s per GPU")
        for bar in part.bars:
            claimed = "nothing is claimed" if bar.wanted is None else f"at least {bar.wanted * 100:+.1f} is asked for"
            click.echo(
                f"  {bar.figure} against {bar.base}: {bar.expected * 100:+.1f}±{bar.half * 100:.1f} expected, {claimed}"
            )


if __name__ == "__main__":
    main()
