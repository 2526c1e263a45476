"""What KV gets of a link beside the real NCCL, and what NCCL's messages pay for it: alone, in observe, in enforce.

Two hosts with links of one rate that their daemons know. On each is a rank that sends messages through the InfiniBand
transport of a published NCCL wheel at a pace, in both directions at once, so that every rank also sends what a receiver
sends: its clear-to-send writes, of which NCCL signals one in 256. KV goes in one direction: writes of the Mooncake
wheel, or `ib_write_bw`, which a rule holds as p2d. With lanes the daemons know the DSCP of eight classes, NCCL and KV
travel in two of them, and the links have strict priorities; without, all travel alike.

A message's time is from when the transport is asked to send it until it says that it arrived. What the link has left in
enforce is what KV moves alone less what the collectives moved. Where MFS is sound, KV gets at least 0.9 of that, or of
what it gets in observe if that is less; the messages' median is at most 1.15 of their median alone, and not above that
in observe. Each case with lanes has a leg without MFS more, in which both programs mark their own packets: what the
links' strict priorities alone leave a message waiting for.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from bench.micro.link import COLLECTIVE_CLASS, KV_CLASS, PERFTEST_RULE, Rig, perftest_version
from bench.micro.link_command import (
    ALMOST,
    chosen,
    measure_all,
    numbers,
    rate,
    seconds,
    size_text,
    sizes,
    tally,
    verdict,
)
from bench.micro.loads import Collectives, Perftest, mooncake
from bench.micro.nccl_wheel import nccl_net_arguments

CAGED = True
SENDER, RECEIVER = "node1", "node2"
NCCL_VERSIONS = ("2.28.9", "2.30.7", "2.32.3")
KV = ("perftest", "mooncake")
LANES = ("no", "yes")
PERFTEST_BYTES, PERFTEST_PAIRS, MOONCAKE_MIB = 262_144, 2, 8
COLLECTIVE_RATIO_MOST = 1.15
OBSERVE_RATIO_MOST = 1.05
"""Not above observe, where two medians of one thing differ by so much."""
LEFT_LEAST = 0.1
"""Of the link: below this there is nothing that KV could have."""
KV_FLOWS_BYTES = 1_000_000
SETTLE_S = 0.5
LEGS = ("alone", "observe", "enforce")


class Case(NamedTuple):
    nccl: str
    pace_ms: float
    """0: back to back."""
    lanes: bool
    kv_program: str
    message_bytes: int

    @property
    def name(self) -> str:
        pace = f"every {self.pace_ms:g} ms" if self.pace_ms else "back to back"
        lanes = "lanes" if self.lanes else "no lanes"
        return f"NCCL {self.nccl}, {size_text(self.message_bytes)} {pace}, {lanes}, {self.kv_program}"


class Figures(NamedTuple):
    kv_mb_s: float = 0.0
    collective_mb_s: float = 0.0
    times_ms: tuple[float, ...] = ()

    def times(self) -> dict[str, float | None]:
        """Of messages, ms."""
        if not self.times_ms:
            return {"p50": None, "p99": None}
        ordered = sorted(self.times_ms)
        return {
            "p50": round(statistics.median(ordered), 3),
            "p99": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 3),
        }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nccl",
        type=lambda text: text.split(","),
        default=list(NCCL_VERSIONS),
        metavar="V,V",
        help=f"versions of the NCCL wheel, 2.28 or later; each is downloaded once (default {','.join(NCCL_VERSIONS)})",
    )
    parser.add_argument(
        "--pace-ms",
        type=numbers,
        default=[1.0, 5.0, 20.0, 0.0],
        metavar="N,N",
        help="a message is due every so many ms; 0: back to back (default 1,5,20,0)",
    )
    parser.add_argument(
        "--lanes", type=chosen(LANES), default=list(LANES), metavar="yes,no", help="(default both, no first)"
    )
    parser.add_argument("--kv", type=chosen(KV), default=list(KV), metavar="A,B", help=f"(default {','.join(KV)})")
    parser.add_argument(
        "--message", type=sizes, default=[262_144], metavar="SIZE,SIZE", help="NCCL's messages (default 256kib)"
    )
    parser.add_argument("--seconds", type=seconds, default=3.0, metavar="S", help="measured of each leg (default 3)")
    parser.add_argument("--rate", type=rate, default=2e9, metavar="RATE", help="of the links (default 2gbit)")
    parser.add_argument(
        "--quick", action="store_true", help="one NCCL version, 5 and 20 ms, one second a leg, where not set otherwise"
    )


def cases_of(options: argparse.Namespace) -> list[Case]:
    return [
        Case(nccl, pace_ms, lanes == "yes", kv, message_bytes)
        for kv in options.kv
        for nccl in options.nccl
        for message_bytes in options.message
        for lanes in options.lanes
        for pace_ms in options.pace_ms
    ]


def quicker(options: argparse.Namespace) -> argparse.Namespace:
    """The options with what `--quick` says in place of defaults."""
    defaults, quick = argparse.ArgumentParser(), argparse.Namespace(**vars(options))
    add_options(defaults)
    for name, value in (("nccl", ["2.30.7"]), ("pace_ms", [5.0, 20.0]), ("seconds", 1.0)):
        if getattr(options, name) == defaults.get_default(name):
            setattr(quick, name, value)
    return quick


def leg(
    rig: Rig, case: Case, mode: str | None, seconds: float, *, kv: bool, nccl: bool, marked: bool = False
) -> Figures:
    """KV first, so that it flows when the collectives begin, whatever happens to it then. `marked`: programs set the
    classes of their packets themselves."""
    with rig.leg(mode, PERFTEST_RULE, case.lanes) as leg:
        of_kv, of_nccl = (leg.traffic_class(c) if marked else None for c in (KV_CLASS, COLLECTIVE_CLASS))
        peer, program, collectives = rig.hosts.address(RECEIVER), None, None

        def moved() -> int:
            found = leg.moved(SENDER, program).get(peer) if program else None
            return found.sent if found else 0

        if kv and case.kv_program == "mooncake":
            program = mooncake(leg, SENDER, RECEIVER, MOONCAKE_MIB, traffic_class=of_kv)
        elif kv:
            pair = Perftest(leg, "ib_write_bw", SENDER, RECEIVER, PERFTEST_BYTES, PERFTEST_PAIRS, of_kv)
            program = pair.start_client()
        if program:
            leg.wait(lambda: moved() >= KV_FLOWS_BYTES, program, "send KV")
        if nccl:
            collectives = Collectives(leg, case.nccl, case.message_bytes, round(case.pace_ms * 1000), of_nccl)
        time.sleep(SETTLE_S)
        before, began_ns = moved(), time.monotonic_ns()
        time.sleep(seconds)
        after, ended_ns = moved(), time.monotonic_ns()
        leg.check(*leg.programs)
        took_s = (ended_ns - began_ns) / 1e9
        done = [(a, b) for a, b in collectives.times() if began_ns <= b < ended_ns] if collectives else []
        return Figures(
            (after - before) / took_s / 1e6,
            len(done) * case.message_bytes / took_s / 1e6,
            tuple((b - a) / 1e6 for a, b in done),
        )


def row(
    case: Case, kv_alone_mb_s: float, alone: Figures, observe: Figures, enforce: Figures, marked: Figures | None = None
) -> dict[str, Any]:
    """A case's figures and what they say. `marked`: without MFS, in classes of the links."""
    left_mb_s = max(0.0, kv_alone_mb_s - enforce.collective_mb_s)
    could_mb_s = min(left_mb_s, observe.kv_mb_s)
    enough_left = could_mb_s >= LEFT_LEAST * kv_alone_mb_s
    medians = [figures.times()["p50"] for figures in (alone, observe, enforce)]
    of_alone = medians[2] / medians[0] if medians[2] and medians[0] else None
    of_observe = medians[2] / medians[1] if medians[2] and medians[1] else None
    share = enforce.kv_mb_s / could_mb_s if enough_left else None
    fast = (
        None
        if of_alone is None or of_observe is None
        else of_alone <= COLLECTIVE_RATIO_MOST and of_observe <= OBSERVE_RATIO_MOST
    )
    with_marks = {"kv_mb_s_marked": round(marked.kv_mb_s, 2), "collective_ms_marked": marked.times()} if marked else {}
    return {
        **case._asdict(),
        **with_marks,
        "kv_mb_s_alone": round(kv_alone_mb_s, 2),
        "kv_mb_s_observe": round(observe.kv_mb_s, 2),
        "kv_mb_s_enforce": round(enforce.kv_mb_s, 2),
        "collective_ms_alone": alone.times(),
        "collective_ms_observe": observe.times(),
        "collective_ms_enforce": enforce.times(),
        "collective_mb_s_alone": round(alone.collective_mb_s, 2),
        "collective_mb_s_observe": round(observe.collective_mb_s, 2),
        "collective_mb_s_enforce": round(enforce.collective_mb_s, 2),
        "left_mb_s": round(left_mb_s, 2),
        "kv_of_left": round(enforce.kv_mb_s / left_mb_s, 3) if left_mb_s else None,
        "kv_share": None if share is None else round(share, 3),
        "collective_p50_of_alone": None if of_alone is None else round(of_alone, 3),
        "collective_p50_of_observe": None if of_observe is None else round(of_observe, 3),
        "kv_verdict": verdict(None if share is None else share >= ALMOST),
        "collectives_verdict": verdict(fast),
    }


def line_of(row: dict[str, Any]) -> str:
    """A row in a line."""
    kv = " ".join(f"{row[f'kv_mb_s_{leg}']:.1f}" for leg in LEGS)
    p50 = " ".join(str(row[f"collective_ms_{leg}"]["p50"]) for leg in LEGS)
    marked = row.get("collective_ms_marked")
    without_mfs = f"; {marked['p50']} in marked classes without MFS" if marked else ""
    return (
        f"KV {kv} MB/s, {row['left_mb_s']:.1f} left: {row['kv_verdict']}; "
        f"messages {p50} ms: {row['collectives_verdict']} (alone, observe, enforce){without_mfs}"
    )


def summary(rows: dict[str, Any]) -> dict[str, Any]:
    """The worst of all cases that could be decided, and how many met their bars."""

    def worst(key: str, choose: Callable[[list[float]], float]) -> float | None:
        found = [row[key] for row in rows.values() if row.get(key) is not None]
        return choose(found) if found else None

    return {
        "kv_share_min": worst("kv_share", min),
        "collective_p50_of_alone_max": worst("collective_p50_of_alone", max),
        "collective_p50_of_observe_max": worst("collective_p50_of_observe", max),
        **tally(rows, ("kv_verdict", "collectives_verdict")),
        "cases": rows,
    }


def prepare(options: argparse.Namespace) -> None:
    """Downloads what is missing, while there is a network."""
    for version in (quicker(options) if options.quick else options).nccl:
        nccl_net_arguments(version)


def run(options: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    options = quicker(options) if options.quick else options
    versions = {"nccl": options.nccl, "perftest": perftest_version()}
    shape = {"rate_mb_s": options.rate / 8e6, "seconds": options.seconds, "versions": versions}
    with Rig([SENDER, RECEIVER], options.rate) as rig:

        def measured(case: Case) -> dict[str, Any]:
            kv_alone = leg(rig, case, None, options.seconds, kv=True, nccl=False)
            alone, observe, enforce = (
                leg(rig, case, mode, options.seconds, kv=mode is not None, nccl=True)
                for mode in (None, "observe", "enforce")
            )
            marks = leg(rig, case, None, options.seconds, kv=True, nccl=True, marked=True) if case.lanes else None
            return row(case, kv_alone.kv_mb_s, alone, observe, enforce, marks)

        cases = {case.name: partial(measured, case) for case in cases_of(options)}
        rows = measure_all(cases, line_of, lambda rows: keep(shape | summary(rows)))
    return shape | summary(rows)
