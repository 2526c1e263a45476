"""How long a KV transfer of NIXL takes beside bulk writes of NIXL: without MFS, with marks, observed and enforced.

Three hosts with a link each: KV goes from `prefill` to `decode`, pulled by a read or pushed by a write, with a
deadline, and bulk without one goes from `prefill` to `store`. Every agent is NIXL's over UCX's verbs transport on soft
RoCE. The links have a queue of strict priority for each class; with `--fabric one` the daemons mark nothing, so that
all share the last. Each pair is a leg of new processes with each; what counts is a pair's ratio, and the median of all.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.micro.daemon import ROOT
from bench.micro.link import MARK, Leg, LinkError, Rig
from bench.micro.link_command import chosen, rate, say
from bench.micro.nccl_wheel import unpacked
from mfsd.playground.program import Program

CAGED = True
NIXL = "1.5.1"
PROGRAM = str(ROOT / "bench/programs/nixl_kv.py")
HOSTS = ("prefill", "decode", "store")
LEGS: dict[str, str | None] = {"without": None, "mark": MARK, "observe": "observe", "enforce": "enforce"}
BESIDES = (("enforce", "mark"),)
FABRICS = ("classes", "one")
OPERATIONS = ("READ", "WRITE")
FLOWS_BYTES = 4 << 20
FILL_S = 2.0
"""From when bulk flows until the first transfer is timed."""
LIMIT_S = 200.0
DEADLINE_MS = 500


class Timed(NamedTuple):
    """One leg: its transfers' times, and what bulk had meanwhile."""

    took_s: list[float]
    bulk_mb_s: float


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--operation", type=chosen(OPERATIONS), default=list(OPERATIONS), metavar="A,B", help="(default READ,WRITE)"
    )
    parser.add_argument(
        "--fabric", type=chosen(FABRICS), default=list(FABRICS), metavar="A,B", help="(default classes,one)"
    )
    parser.add_argument(
        "--legs",
        type=chosen(tuple(LEGS)),
        default=list(LEGS),
        metavar="A,B",
        help="(default without,mark,observe,enforce)",
    )
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="(default 5)")
    parser.add_argument("--count", type=int, default=5, metavar="N", help="timed transfers of a leg (default 5)")
    parser.add_argument("--mib", type=int, default=4, metavar="N", help="of a timed transfer (default 4)")
    parser.add_argument("--bulk-mib", type=int, default=64, metavar="N", help="of a bulk write (default 64)")
    parser.add_argument("--bulk", type=int, default=4, metavar="N", help="bulk writes under way (default 4)")
    parser.add_argument("--rate", type=rate, default=1e9, metavar="RATE", help="of a link (default 1gbit)")


def prepare(options: argparse.Namespace) -> None:
    """Outside of the sandbox, where there is a network."""
    unpacked("nixl-cu12", NIXL)


def run(options: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    with Rig(list(HOSTS), options.rate) as rig:
        for fabric in options.fabric:
            for operation in options.operation:
                name = f"{operation.lower()}, {fabric}"
                rows[name] = compared(legs(rig, options, operation, fabric == "classes", name))
                say(f"{name}: {rows[name]}")
                keep(rows)
    return rows


def legs(rig: Rig, options: argparse.Namespace, operation: str, classes: bool, name: str) -> dict[str, list[Timed]]:
    """Each leg as often as there are pairs, in turns. A pair in which one cannot be measured is left out."""
    chosen_legs = [one for one in options.legs if classes or LEGS[one] != MARK]
    found: dict[str, list[Timed]] = {one: [] for one in chosen_legs}
    for pair in range(options.pairs):
        try:
            row = {
                one: measured(rig, options, operation, LEGS[one], classes)
                for one in (chosen_legs if pair % 2 == 0 else chosen_legs[::-1])
            }
        except LinkError as error:
            say(f"{name}, pair {pair + 1}: not measured: {error}")
            continue
        for one, timed in row.items():
            found[one].append(timed)
        say(f"{name}, pair {pair + 1}: " + ", ".join(f"{one} {median_ms(row[one])} ms" for one in chosen_legs))
    return found


def median_ms(timed: Timed) -> float:
    return round(1e3 * statistics.median(timed.took_s), 1)


def compared(found: Mapping[str, list[Timed]]) -> dict[str, Any]:
    """By leg the median of the pairs' medians and what bulk had; the pairs' ratios to the first leg, and of enforce to
    marks alone."""
    first, *others = found
    result: dict[str, Any] = {"pairs": len(found[first])}
    if not found[first]:
        return result
    times = {leg: [statistics.median(one.took_s) for one in timed] for leg, timed in found.items()}
    for leg, timed in found.items():
        result[leg] = {
            "ms": round(1e3 * statistics.median(times[leg]), 1),
            "ms_spread": [round(1e3 * min(times[leg]), 1), round(1e3 * max(times[leg]), 1)],
            "bulk_mb_s": round(statistics.median(one.bulk_mb_s for one in timed), 1),
        }
    for leg, base in [*((leg, first) for leg in others), *BESIDES]:
        if leg in times and base in times and f"{leg}_of_{base}" not in result:
            ratios = sorted(b / a for a, b in zip(times[base], times[leg], strict=True))
            result[f"{leg}_of_{base}"] = round(statistics.median(ratios), 2)
            result[f"{leg}_of_{base}_spread"] = [round(ratios[0], 2), round(ratios[-1], 2)]
    return result


def measured(rig: Rig, options: argparse.Namespace, operation: str, mode: str | None, classes: bool) -> Timed:
    with rig.leg(mode, lanes=classes, sizes=[f"p2d={options.mib}mib"]) as leg:
        kv_from, kv_to = ("decode", "prefill") if operation == "READ" else ("prefill", "decode")
        files = {name: leg.folder / f"{name}.json" for name in ("kv", "bulk", "results")}
        results = files["results"]
        for name, host, mib in (("kv", kv_to, options.mib), ("bulk", "store", options.bulk_mib)):
            target = started(leg, host, mode, "--target", files[name], "--mib", mib)
            leg.wait(files[name].exists, target, "register its memory")
        kv = started(
            *(leg, kv_from, mode, "--peer", files["kv"], "--mib", options.mib, "--operation", operation),
            *("--deadline-ms", DEADLINE_MS, "--count", options.count, "--results", results),
        )
        leg.wait(results.with_suffix(".ready").exists, kv, "warm up")
        bulk = started(
            *(leg, "prefill", mode, "--peer", files["bulk"]), *("--mib", options.bulk_mib, "--bulk", options.bulk)
        )

        def moved() -> int:
            return sum(one.sent for one in leg.moved("prefill", bulk).values())

        leg.wait(lambda: moved() >= FLOWS_BYTES, bulk, "move bytes")
        time.sleep(FILL_S)
        before, began_s = moved(), time.monotonic()
        results.with_suffix(".begin").touch()
        leg.wait(results.exists, kv, "move its memory", LIMIT_S)
        bulk_mb_s = (moved() - before) / (time.monotonic() - began_s) / 1e6
        leg.check(*(program for program in leg.programs if program is not kv))
        return Timed(json.loads(results.read_text()), bulk_mb_s)


def started(leg: Leg, host: str, mode: str | None, *arguments: str | int | Path) -> Program:
    """A NIXL program on the host's device, adapted but in the leg without MFS."""
    wheel = unpacked("nixl-cu12", NIXL)
    environment = {
        "PYTHONPATH": os.pathsep.join((str(wheel), str(ROOT))),
        "XDG_RUNTIME_DIR": str(leg.folder),
        "UCX_TLS": "rc_v",
        "NIXL_LOG_LEVEL": "ERROR",
        **({"MFS_SOCKET": str(leg.socket(host)), "MFS_NIXL": "1"} if mode is not None else {}),
    }
    return leg.start(host, f"nixl_kv on {host}", [sys.executable, PROGRAM, *map(str, arguments)], environment)
