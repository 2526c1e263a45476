"""python -m bench sim choose FILE [--setting served] [--write]: finds the settings in which contention costs anything.
It runs only `static` and `nocont`, on seeds that no comparison uses, before any order is compared.

Each setting runs at loads relative to the rate at which `nocont` meets 90 % of the deadlines on those seeds, from the
highest down to the first at which `static` meets half of them: where nearly all requests are late, orders differ
little. It counts as contended when `nocont` is at least --points above `static` there. The other settings stay in the
list: their number shows how often an order of transfers matters. FILE keeps every point (JSON lines); --write puts the
settings found where `study --setting contended` reads them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from bench.sim.cluster import ConfigError
from bench.sim.compare import CHOOSING_SEED, Results, compare, revision
from bench.sim.point import Point
from bench.sim.settings import CHOSEN, SETTINGS, base_of, named

LOADS = (0.9, 0.7, 0.5, 0.3)  # of the knee
LEAST_MET = 50.0  # percent of the deadlines, by `static`


class Found(msgspec.Struct, frozen=True):
    """Results of `static` and `nocont` at one load."""

    knee: float  # requests/s per GPU at which `nocont` meets 90 %; 0: at none
    contended: bool = False
    load: float = 0.0  # of the knee
    static: float = 0.0  # percent of the deadlines
    nocont: float = 0.0
    ttft_ratio: float = 0.0  # mean TTFT, `static` over `nocont`


def contention(results: Results, base: Point, knee: str, seeds: int, points: float) -> Found:
    """Returns whether contention costs `static` this many points, on `seeds` seeds on which nothing is compared.
    `knee`: the name under which that rate is stored."""
    top = results.knee(base, knee, seeds)
    if not top:
        return Found(0.0)
    choosing = range(CHOOSING_SEED, CHOOSING_SEED + seeds)
    for load in LOADS:
        point = msgspec.structs.replace(base, rate=round(load * top, 4))
        static = results.of_seeds(point, "static", choosing)
        free = compare(results.of_seeds(point, "nocont", choosing), static)
        met = free.attainment - free.gain
        if met >= LEAST_MET:
            break
    return Found(
        knee=round(top, 5),
        contended=round(free.gain, 6) >= points,  # a mean of shares: 3 points may be 2.9999999
        load=load,
        static=round(met, 1),
        nocont=round(free.attainment, 1),
        ttft_ratio=round(1 / free.ttft_ratio, 3),
    )


def examine(results: Results, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Examines a setting; returns it as in `chosen.json`. A knee of 0: even `nocont` meets 90 % at no rate."""
    base = base_of(name, "", "", options.requests)
    found = contention(results, base, f"choose {name} {options.requests}", SETTINGS[name].knee_seeds, options.points)
    return dict(msgspec.to_builtins(found)) if found.knee else {"knee": found.knee, "contended": False}


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m bench sim choose", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("file", type=Path)
    p.add_argument(
        "--setting",
        default="served",
        metavar="A,B",
        help="settings among those with a model of their own (default all)",
    )
    p.add_argument(
        "--points", type=float, default=3.0, help="points of attainment that contention must cost (default 3)"
    )
    p.add_argument("--requests", type=int, default=200, help="measured requests, after a third as many (default 200)")
    p.add_argument("--write", action="store_true", help=f"write the settings found to bench/sim/{CHOSEN}")
    return p


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    names = named(options.setting)
    if vague := [name for name in names if SETTINGS[name].model is None]:
        raise ConfigError(f"--setting {','.join(vague)}: names no model; use node or served, or settings of theirs")
    results = Results(options.file)
    found: dict[str, Any] = {}
    for number, name in enumerate(names, 1):
        found[name] = examine(results, name, options)
        print(f"[{number}/{len(names)}] {name}: {json.dumps(found[name])}", file=sys.stderr, flush=True)
    text = {
        "what": {
            "simulated": True, "points": options.points, "requests": options.requests,
            "first_seed": CHOOSING_SEED, "revision": revision(),
        },
        "settings": found,
    }  # fmt: skip
    if options.write:
        (Path(__file__).parent / CHOSEN).write_text(json.dumps(text, indent=1) + "\n")
    show(found)
    return 0


def show(found: dict[str, Any]) -> None:
    print(
        "| setting | knee, requests/s per GPU | load | `static`, % met | `nocont` | mean TTFT, `static` / `nocont` | |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, one in found.items():
        cells = [f"{one[key]:g}" if key in one else "-" for key in ("knee", "load", "static", "nocont", "ttft_ratio")]
        print(f"| {name} | {' | '.join(cells)} | {'contended' if one['contended'] else ''} |")
