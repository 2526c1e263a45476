"""python -m bench requests capacity: finds the most requests/s of which at most 1 % are late, for each policy and seed.

The search bisects the rate. It starts from the bracket 0 to --highest, tries the rate in the middle with the seed's own
draw of requests, and keeps the half that holds the answer, until that is narrower than --step. The answer is the
highest rate tried that met the bound, 0 if none did. If the answer is within a step of --highest, the bracket was too
low. The number of late requests is not quite monotonic in the rate: another bracket may end a step or two away.

Run long enough: requests that wait at the end of a short run are not late yet where deadlines are long, so an
overloaded policy that serves by deadline seems to carry more. The paper ran 4 hours (--seconds 14400)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import msgspec
from rich.console import Console
from rich.table import Table

from bench.requests import options as opt
from bench.requests import point as points
from bench.requests import rows
from bench.requests.errors import UsageError
from bench.requests.point import Point, Result

LATE = 0.01
HIGHEST = {"azure-code": 8.0, "sharegpt": 4.0}
"""Requests/s of one replica at which every policy is overloaded: the upper end of the bracket, multiplied by the
replicas."""
STEP = 0.05
"""Width at which the bisection ends, multiplied by the replicas."""


class Found(msgspec.Struct, frozen=True):
    """A capacity, and the rates that were tried with the share of late requests at each."""

    qps: float
    tried: tuple[tuple[float, float], ...]


def bisect(late_at: Callable[[float], float], highest: float, step: float, bound: float = LATE) -> Found:
    """Returns the highest rate tried at which at most `bound` are late."""
    low, high = 0.0, highest
    tried: list[tuple[float, float]] = []

    def meets(qps: float) -> bool:
        tried.append((qps, late_at(qps)))
        return tried[-1][1] <= bound

    while high - low > step:
        middle = round((low + high) / 2, 4)
        if not low < middle < high:
            break
        if meets(middle):
            low = middle
        else:
            high = middle
    return Found(low, tuple(tried))


class Search(msgspec.Struct, frozen=True):
    """One row to find; the point's own rate is not used."""

    point: Point
    highest: float
    step: float


def search(wanted: Search) -> Result:
    cpu_s = 0.0

    def late_at(qps: float) -> float:
        nonlocal cpu_s
        row = points.run(msgspec.structs.replace(wanted.point, qps=qps))
        cpu_s += row["cpu_s"]
        return float(row["violations"]["all"])

    found = bisect(late_at, wanted.highest, wanted.step)
    return {
        "policy": wanted.point.policy,
        "workload": wanted.point.workload,
        "seed": wanted.point.seed,
        "capacity_qps": found.qps,
        "reached_highest": found.qps + wanted.step >= wanted.highest,
        "tried": [{"qps": qps, "late": late} for qps, late in sorted(found.tried)],
        "cpu_s": round(cpu_s, 2),
    }


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m bench requests capacity",
        description=__doc__,
        epilog="""examples:
  python -m bench requests capacity --policy fcfs,edf,srpf,qoserve --json capacity.json --figure
  python -m bench requests capacity --workload sharegpt --policy fcfs,edf,qoserve --seed 11,12 --seconds 14400
  python -m bench requests capacity --policy silo,qoserve --set replicas=13 --seconds 3600

Rows: policy workload seed capacity_qps reached_highest tried cpu_s.
To resume a stopped search, give the same command again with the same --json FILE.""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    opt.add_workload(p, ("tiers",))
    group = p.add_argument_group("comparison")
    group.add_argument("--policy", default="fcfs,edf,srpf,qoserve", metavar="A,B", help="default %(default)s")
    group.add_argument("--seed", default="1", metavar="S[,S...]", help="default %(default)s")
    group.add_argument(
        "--highest",
        type=float,
        metavar="Q",
        help="upper end of the bracket (default per replica: "
        + ", ".join(f"{name} {qps:g}" for name, qps in HIGHEST.items())
        + ")",
    )
    group.add_argument(
        "--step", type=float, metavar="Q", help=f"width of the bracket at which to stop (default {STEP:g} per replica)"
    )
    opt.add_settings(group)
    opt.add_output(p)
    p.add_argument("--figure", action="store_true", help="also draw FILE.png and FILE.svg beside --json FILE")
    return p


def searches_of(options: argparse.Namespace) -> list[Search]:
    chosen = opt.chosen_policies(options)
    seeds = opt.numbers(options.seed, "--seed", int, -1)
    if options.requests is not None:
        raise UsageError(f"--requests {options.requests}: a capacity is found over a time; use --seconds instead")
    base = opt.base(options, 1.0)
    replicas = points.replicas(base)
    highest = HIGHEST[base.workload] * replicas if options.highest is None else options.highest
    step = STEP * replicas if options.step is None else options.step
    if not 0 < step < highest < 1e6:
        raise UsageError(f"--step {step:g} --highest {highest:g}: use a step above 0 and below the highest rate")
    return [
        Search(msgspec.structs.replace(base, policy=name, seed=seed), highest, step)
        for seed in seeds
        for name in chosen
    ]


def progress(done: int, total: int, row: Result) -> None:
    print(
        f"[{done}/{total}] {row['policy']} seed {row['seed']}: {row['capacity_qps']:.2f} requests/s "
        f"({len(row['tried'])} rates tried, {row['cpu_s']:.0f} s)",
        file=sys.stderr,
        flush=True,
    )


def show(results: list[Result]) -> None:
    table = Table("policy", "workload", "seed", "requests/s at 1 % late", "")
    for row in results:
        note = "raise --highest" if row["reached_highest"] else ""
        table.add_row(row["policy"], row["workload"], str(row["seed"]), f"{row['capacity_qps']:.2f}", note)
    Console().print(table)


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    if options.figure and options.json is None:
        raise UsageError("--figure: needs --json FILE, beside which it is drawn")
    wanted = searches_of(options)
    config = {**points.common([w.point for w in wanted]), "highest": wanted[0].highest, "step": wanted[0].step}
    results = rows.collect(
        wanted,
        lambda w: (w.point.policy, w.point.seed),
        lambda row: (row["policy"], row["seed"]),
        config,
        search,
        options.json,
        progress,
        options.engine,
    )
    show(results)
    if options.figure:
        from bench.requests import figures

        print(*figures.capacities(results, options.json))
    return 0
