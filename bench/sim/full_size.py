"""python -m bench sim full-size FILE [--page docs/results/full-size.md]: compares policies at 2,048 GPUs, where
requests contend.

Policies run in exact order on every link, and those that --policy-on-classes names also run on eight classes with the
production queue. Loads are relative to the rate at which `nocont` meets 90 % of the deadlines in the same setting;
seeds are paired, and every policy is compared with `static`. Half as many requests as are measured come before them.
FILE keeps every point (JSON lines); a stopped study goes on from there. --page writes the tables of one --fetch between
the page's marks for it, and the same figures as JSON beside it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.sim import policies, study
from bench.sim.capacity import carried_against
from bench.sim.cluster import FETCH, Config, ConfigError
from bench.sim.compare import Comparison, Results, compare
from bench.sim.point import Point, under
from bench.sim.settings import OWNERS

GPUS, CLASSES = 2048, 8
HOT = 0.09375  # of the prefixes on one NIC: the same bytes for it from each unit as half of them at 384 GPUs
SETTINGS: dict[str, dict[str, Any]] = {
    "hot": {"hot_fraction": HOT, "kv_scale": 4.0},
    "fan-in": {"decode_nics": 42, "kv_scale": 6.0},
    "egress": {"kv_scale": 32.0},
    "bursts": {"hot_fraction": HOT, "kv_scale": 12.0, "burst": 4.0},
}
AGAINST = "static"
POLICIES = "nocont,mfs"
ON_CLASSES = "dscp-size"


class Row(NamedTuple):
    """A policy, and the number of classes that its links know; 0: exact order."""

    policy: str
    classes: int

    @property
    def label(self) -> str:
        return f"`{self.policy}`" + (f" on {self.classes} classes" if self.classes else "")


def base_of(setting: str, requests: int, fetch: str, classes: int = 0) -> Point:
    config = Config(model="dbrx", gpus=GPUS, fetch=fetch, fabric_classes=classes, **OWNERS, **SETTINGS[setting])
    return Point(config=config, requests=requests, warmup=requests // 2)


def loads_of(options: argparse.Namespace) -> list[float]:
    try:
        loads = [float(load) for load in options.load.split(",")]
    except ValueError:
        loads = []
    if not loads or not all(0 < load < float("inf") for load in loads):
        raise ConfigError(f"--load {options.load}: use numbers above 0, separated by commas")
    return list(dict.fromkeys(loads))


def rows_of(options: argparse.Namespace) -> list[Row]:
    exact = dict.fromkeys([AGAINST, *options.policy.split(",")])
    on_classes = dict.fromkeys(options.policy_on_classes.split(",") if options.policy_on_classes else ())
    return [*(Row(name, 0) for name in exact), *(Row(name, CLASSES) for name in on_classes)]


def carriers_of(options: argparse.Namespace) -> list[Row]:
    """Returns the rows whose capacity is found: `static`, and those of the policies in --capacity-policy."""
    if not options.capacity_policy:
        return []
    asked = options.capacity_policy.split(",")
    return [row for row in rows_of(options) if row == Row(AGAINST, 0) or row.policy in asked]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Runs what is missing. Returns {"what", "columns": {"SETTING, LOAD": {"rate", "rows": {label: Comparison}}},
    "capacity": {setting: {label: Capacity}}}."""
    results = Results(options.file)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    columns: dict[str, Any] = {}
    carried: dict[str, Any] = {}
    revisions: dict[str, None] = {}
    for setting in options.setting.split(","):
        base = base_of(setting, options.requests, options.fetch)
        top = results.knee(base, f"{setting} {options.requests} {options.fetch}")
        for load in loads_of(options):
            rate = round(load * top, 4)
            found: dict[str, Comparison] = {}
            for row in rows_of(options):
                point = msgspec.structs.replace(
                    base_of(setting, options.requests, options.fetch, row.classes), rate=rate
                )
                mine = results.of_seeds(point, row.policy, seeds)
                against = results.of_seeds(msgspec.structs.replace(base, rate=rate), AGAINST, seeds)
                revisions |= dict.fromkeys(one["revision"] for one in mine)
                found[row.label] = compare(mine, against)
                print(f"{setting}, {load:g}, {row.label}: {study.cell(found[row.label])}", file=sys.stderr, flush=True)
            columns[f"{setting}, {load:g}"] = {"rate": rate, "rows": msgspec.to_builtins(found)}
        if carriers := carriers_of(options):
            points = {
                row.label: under(base_of(setting, options.requests, options.fetch, row.classes), row.policy)
                for row in carriers
            }
            tried = seeds[: options.capacity_seeds]
            carried[setting] = msgspec.to_builtins(carried_against(results, points, tried, top, f"`{AGAINST}`"))
            print(f"{setting}: {carried[setting]}", file=sys.stderr, flush=True)
    return {
        "what": {
            "simulated": True, "gpus": GPUS, "requests": options.requests, "warmup": options.requests // 2,
            "seeds": list(seeds), "capacity_seeds": list(seeds[: options.capacity_seeds]) if carried else [],
            "against": AGAINST, "fetch": options.fetch, "revisions": list(revisions),
        },
        "columns": columns,
        "capacity": carried,
    }  # fmt: skip


def table(data: dict[str, Any]) -> str:
    """Formats the page's tables: a row for each policy, a column for each setting and load; then the capacities."""
    what, columns = data["what"], data["columns"]
    figures = {
        name: {label: msgspec.convert(one, Comparison) for label, one in column["rows"].items()}
        for name, column in columns.items()
    }
    against = f"`{AGAINST}`"
    lines = [
        f"Simulated, not measured. DBRX, QwenA, {what['gpus']:,} GPUs, {what['warmup']} + {what['requests']} requests, "
        f"seeds {what['seeds'][0]}-{what['seeds'][-1]} (paired), loads relative to the knee; reuse asked for "
        f"{FETCH[what['fetch']]}; exact order on every link where no classes are named; rules of commit "
        f"{', '.join(what['revisions'])}. Cells: points of requests in time against {against} with half of the 95 % "
        f"interval over seeds, mean TTFT and p99 TTFT relative to it.",
        "",
        "| | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
        "| requests/s per GPU | " + " | ".join(f"{column['rate']:g}" for column in columns.values()) + " |",
        f"| {against}: % met, mean and p99 TTFT | "
        + " | ".join(study.plain(of[against]) for of in figures.values())
        + " |",
    ]
    lines += [
        f"| {label} | " + " | ".join(study.cell(of[label]) for of in figures.values()) + " |"
        for label in next(iter(figures.values()))
        if label != against
    ]
    lines += shares(figures)
    if data["capacity"]:
        lines += ["", *capacity_lines(what, data["capacity"])]
    return "\n".join(lines)


def shares(figures: dict[str, dict[str, Comparison]]) -> Iterator[str]:
    """Yields how much of the gap between `static` and a bound `mfs` closes."""
    for bound in ("`nocont`", "`alone`"):
        if all("`mfs`" in of and bound in of for of in figures.values()):
            closed = [of["`mfs`"].share_of(of[bound]) for of in figures.values()]
            cells = ["-" if share is None else f"{share:.0%}" for share in closed]
            yield f"| `mfs`: share of the gap to {bound} | " + " | ".join(cells) + " |"


def capacity_lines(what: dict[str, Any], carried: dict[str, Any]) -> Iterator[str]:
    yield (
        f"The load up to which 90 % are met, {study.seed_words(what['capacity_seeds'])}: relative to "
        f"the knee, and in brackets to `{AGAINST}`."
    )
    yield ""
    yield from study.capacity_lines(carried, (f"`{AGAINST}`",))


def marks(fetch: str) -> tuple[str, str]:
    """Returns the marks of the page between which the tables of one --fetch stand."""
    begin, end = (mark.replace("table", f"tables, reuse {fetch}") for mark in (study.BEGIN, study.END))
    return begin, end


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m bench sim full-size", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("file", type=Path)
    p.add_argument(
        "--setting", default=",".join(SETTINGS), metavar="A,B", help=f"settings, of {', '.join(SETTINGS)} (default all)"
    )
    p.add_argument("--load", default="0.6,0.8", metavar="L[,L...]", help="loads relative to the knee (default 0.6,0.8)")
    p.add_argument("--policy", default=POLICIES, metavar="A,B", help=f"policies in exact order (default {POLICIES})")
    p.add_argument(
        "--policy-on-classes",
        default=ON_CLASSES,
        metavar="A,B",
        help=f"policies on {CLASSES} classes (default {ON_CLASSES})",
    )
    p.add_argument("--fetch", default="loaded", choices=FETCH, help="when units ask for reused KV (default loaded)")
    p.add_argument("--first-seed", type=int, default=11, help="first seed (default 11: seeds below chose the defaults)")
    p.add_argument("--seeds", type=int, default=5, help="number of seeds (default 5)")
    p.add_argument("--requests", type=int, default=1024, help="measured requests, after half as many (default 1024)")
    study.capacity_options(p)
    p.add_argument("--page", type=Path, metavar="FILE", help="page whose tables to write again, with a .json beside")
    return p


def check(options: argparse.Namespace) -> None:
    """Raises ConfigError or LookupError for what cannot be run."""
    study.check_names(options.setting, list(SETTINGS), "--setting")
    loads_of(options)
    for row in rows_of(options):
        policies.find(row.policy)
    if options.capacity_policy:
        names = list(dict.fromkeys(row.policy for row in rows_of(options)))
        study.check_names(options.capacity_policy, names, "--capacity-policy")
    if options.seeds < 1:
        raise ConfigError(f"--seeds {options.seeds}: use at least 1")
    study.check_capacity_seeds(options)


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    check(options)
    data = run(options)
    text = table(data)
    print(text)
    if options.page:
        begin, end = marks(options.fetch)
        study.publish(options.page, text, {**study.published(options.page), options.fetch: data}, begin, end)
    return 0
