"""python -m bench sim moves FILE [--page docs/results/moves.md]: measures what moves of weights and swapped KV cost the
requests that are served.

A share of the prefill NICs' rate is taken by moves of gigabytes between units (bench/sim/moves.py). `mfs` (eight
classes, the production queue) sends them in the background class with their deadlines, or as loads, as a program does
that marks all KV alike; `dscp-size` does both without a daemon. Each policy is compared with itself without moves,
paired by seed, and so are the loads that the policies of --capacity-policy carry. FILE keeps every point; --page writes
the tables between the page's marks, and the figures as JSON beside it."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from bench.sim import settings, study
from bench.sim.capacity import Capacity, carried_against
from bench.sim.compare import Results, compare, half_width
from bench.sim.moves import MARKS
from bench.sim.point import Point, under

POLICIES = ("mfs", "dscp-size")
SETTINGS = "base,fan-in,egress"


class Cost(msgspec.Struct, frozen=True):
    """A policy with moves against itself without, paired by seed; halves are of 95 % intervals."""

    gain: float  # points of requests in time
    gain_half: float | None
    ttft_ratio: float
    p99_ratio: float  # of p99 TTFT
    collective_ratio: float  # mean completion time
    collective_half: float | None
    collective_p99_ratio: float
    collective_p99_half: float | None
    in_time: float  # percent of the moves
    move_s: float  # mean


def cost(mine: Sequence[dict[str, Any]], without: Sequence[dict[str, Any]]) -> Cost:
    def slower(figure: str) -> list[float]:
        return [a["cct_s"][figure] / b["cct_s"][figure] for a, b in zip(mine, without, strict=True)]

    requests = compare(mine, without)
    return Cost(
        gain=requests.gain,
        gain_half=requests.gain_half,
        ttft_ratio=requests.ttft_ratio,
        p99_ratio=requests.p99_ratio,
        collective_ratio=statistics.fmean(slower("mean")),
        collective_half=half_width(slower("mean")),
        collective_p99_ratio=statistics.fmean(slower("p99")),
        collective_p99_half=half_width(slower("p99")),
        in_time=100 * statistics.fmean(row["moves"]["in_time"] for row in mine),
        move_s=statistics.fmean(row["moves"]["mean_s"] for row in mine),
    )


def with_moves(point: Point, share: float, mark: str) -> Point:
    config = msgspec.structs.replace(point.config, moves_share=share, moves_as=mark)
    return msgspec.structs.replace(point, config=config)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Runs what is missing. Returns {"what", "rows": {label: {setting: Cost}}, "capacity": {setting: {label:
    Capacity}}}."""
    results = Results(options.file)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    rows: dict[str, dict[str, Any]] = {}
    carried: dict[str, Any] = {}
    tried = seeds[: options.capacity_seeds]
    carry_in = settings.named(options.capacity_setting or options.setting)
    carriers = options.capacity_policy.split(",") if options.capacity_policy else ()
    for setting in settings.named(options.setting):
        base = settings.base_of(setting, "dbrx", "qwen-a", options.requests, 8)
        top = results.knee(base, study.knee_name(setting, base), settings.SETTINGS[setting].knee_seeds)
        point = msgspec.structs.replace(base, rate=round(options.load * top, 4))
        for policy in POLICIES:
            without = results.of_seeds(point, policy, seeds)
            for mark in MARKS:
                mine = results.of_seeds(with_moves(point, options.share, mark), policy, seeds)
                label = labelled(policy, mark)
                rows.setdefault(label, {})[setting] = msgspec.to_builtins(found := cost(mine, without))
                print(f"{setting}, {label}: {cell(found)}", flush=True)
        for policy in carriers if setting in carry_in else ():
            of = carried.setdefault(setting, {})
            of |= msgspec.to_builtins(carries(results, under(base, policy), options.share, tried, top))
            print(f"{setting}, {policy}: {of}", flush=True)
    what = {
        "simulated": True, "share": options.share, "load": options.load, "requests": options.requests,
        "warmup": options.requests // 3, "gpus": settings.GPUS, "seeds": list(seeds),
        "capacity_seeds": list(tried) if carried else [],
        "revisions": sorted({r["revision"] for r in results.rows.values()}),
    }  # fmt: skip
    return {"what": what, "rows": rows, "capacity": carried}


def labelled(policy: str, mark: str) -> str:
    return f"`{policy}`, moves as {mark}"


def unmoved(policy: str) -> str:
    return f"`{policy}`, no moves"


def carries(results: Results, point: Point, share: float, seeds: Sequence[int], knee: float) -> dict[str, Capacity]:
    """Compares what the point's policy carries with moves and without."""
    points = {labelled(point.policy, mark): with_moves(point, share, mark) for mark in MARKS}
    without = unmoved(point.policy)
    return carried_against(results, {without: point, **points}, seeds, knee, without)


def cell(found: Cost) -> str:
    def of(value: float, half: float | None, digits: int, sign: str = "") -> str:
        return f"{value:{sign}.{digits}f}" + ("" if half is None else f"±{half:.{digits}f}")

    return (
        f"{of(found.gain, found.gain_half, 1, '+')} x{found.ttft_ratio:.2f} x{found.p99_ratio:.2f}; "
        f"x{of(found.collective_ratio, found.collective_half, 3)} "
        f"x{of(found.collective_p99_ratio, found.collective_p99_half, 3)}; "
        f"{found.in_time:.0f} % {found.move_s:.2f} s"
    )


def table(data: dict[str, Any]) -> str:
    what, rows = data["what"], data["rows"]
    names = list(next(iter(rows.values())))
    lines = [
        f"Simulated, not measured. DBRX, QwenA, {what['gpus']} GPUs, {what['warmup']} + {what['requests']} requests, "
        f"seeds {what['seeds'][0]}-{what['seeds'][-1]} (paired), load {what['load']:g} of the knee without moves, "
        f"which take {100 * what['share']:g} % of the prefill NICs; eight classes; rules of commit "
        f"{', '.join(what['revisions'])}. Cells, each against the same policy without moves: points of requests in "
        "time, mean and p99 TTFT; mean and p99 completion time of collectives; moves in time and their mean duration. "
        "With half of the 95 % interval.",
        "",
        "| | " + " | ".join(names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for label, of in rows.items():
        lines.append(f"| {label} | " + " | ".join(cell(msgspec.convert(of[name], Cost)) for name in names) + " |")
    if data["capacity"]:
        lines += [
            "",
            f"The load up to which 90 % are met, {study.seed_words(what['capacity_seeds'])}: relative to the knee "
            "without moves, and in brackets to the same policy without moves.",
            "",
            *study.capacity_lines(data["capacity"], [unmoved(policy) for policy in POLICIES]),
        ]
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m bench sim moves", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    study.seeded_options(p, SETTINGS, first_seed=791)
    study.capacity_options(p)
    p.add_argument("--capacity-setting", metavar="A,B", help="with --capacity-policy: settings (default all)")
    p.add_argument(
        "--share", type=float, default=0.2, help="share of the prefill NICs' rate that moves take (default 0.2)"
    )
    return p


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    study.check_seeded(options)
    study.check_capacity_seeds(options)
    if options.capacity_policy:
        study.check_names(options.capacity_policy, POLICIES, "--capacity-policy")
    if options.capacity_setting:
        study.check_names(options.capacity_setting, settings.named(options.setting), "--capacity-setting")
    data = run(options)
    if options.page:
        study.publish(options.page, table(data), data)
    return 0
