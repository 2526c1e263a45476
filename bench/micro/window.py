"""What a slow destination costs the free ones: KV to both from the same NICs, in observe and in enforce.

Every sender writes to a node whose path is slow and to one whose path is free, or reads from both (`ib_write_bw`,
`ib_read_bw`; a rule holds them as p2d). Beyond the sender's NIC the path of the slow one has a part of the links' rate,
or loses all (0), or several senders meet there (fan-in), each of which has a free node of its own. What waits for a
slow path holds a queue pair, not a NIC: so MFS must leave the free ones what they get in observe, and the slow ones,
too. Once more with the shipped NCCL wheel's messages between the sender and its free node.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from bench.micro.link import PERFTEST_RULE, Rig, perftest_version
from bench.micro.link_command import (
    ALMOST,
    chosen,
    counts,
    measure_all,
    numbers,
    rate,
    seconds,
    size_text,
    sizes,
    tally,
    verdict,
)
from bench.micro.loads import Collectives, Perftest
from bench.micro.nccl_wheel import nccl_net_arguments
from mfsd.playground.program import Program

CAGED = True
SLOW = "slow"
OPERATIONS = ("write", "read")
SLOW_PAIRS, FREE_PAIRS = 4, 2
"""Queue pairs."""
TOTAL_BITS_PER_S = 2e9
"""Of all senders together: what two cores carry. The rate of one is this over their number, at most `--rate`."""
FLOWS_BYTES = 100_000
FILL_S = 1.0
"""From when the path becomes slow until it is measured: what is on its way has filled by then."""
NCCL, NCCL_MESSAGE_BYTES = "2.30.7", 262_144
MEASURED_LEAST = 0.002
"""Of a link: less than that in observe is nothing that could be kept."""


class Case(NamedTuple):
    operation: str
    senders: int
    slow_share: float | None
    """Of the link's rate; None: the senders share the slow node's whole link."""
    message_bytes: int
    nccl_pace_ms: float | None = None
    """A message of NCCL's is due every so many ms; None: there is no NCCL."""

    @property
    def name(self) -> str:
        where = f"slow path {self.slow_share:g} of the rate" if self.slow_share is not None else "fan-in"
        many = f"{self.senders} senders, " if self.senders > 1 else ""
        beside = f", NCCL every {self.nccl_pace_ms:g} ms" if self.nccl_pace_ms is not None else ""
        return f"{self.operation}, {many}{where}, {size_text(self.message_bytes)}{beside}"


class Figures(NamedTuple):
    """MB/s, of all senders together."""

    free_mb_s: float
    slow_mb_s: float
    collective_mb_s: float = 0.0
    collective_ms: float | None = None
    """NCCL's messages, median."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--operation", type=chosen(OPERATIONS), default=list(OPERATIONS), metavar="A,B", help="(default write,read)"
    )
    parser.add_argument(
        "--slow",
        type=numbers,
        default=[0.1, 0.01, 0.0],
        metavar="N,N",
        help="share of the rate that the slow path has, one sender; 0: it loses all (default 0.1,0.01,0)",
    )
    parser.add_argument(
        "--fan-in", type=counts, default=[2, 4, 8], metavar="N,N", help="senders that meet; 0: none (default 2,4,8)"
    )
    parser.add_argument(
        "--message",
        type=sizes,
        default=[256 << 10, 1 << 20, 16 << 20],
        metavar="SIZE",
        help="(default 256kib,1mib,16mib)",
    )
    parser.add_argument(
        "--nccl-pace-ms",
        type=numbers,
        default=[20.0, 5.0],
        metavar="N,N",
        help=f"the slow paths once more beside NCCL {NCCL}, of which a message of {size_text(NCCL_MESSAGE_BYTES)} is "
        "due every so many ms (default 20,5)",
    )
    parser.add_argument("--seconds", type=seconds, default=3.0, metavar="S", help="measured of each leg (default 3)")
    parser.add_argument("--rate", type=rate, default=1e9, metavar="RATE", help="of a link, at most (default 1gbit)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a tenth and nothing of the rate, two senders, 256 KiB, NCCL every 20 ms, one second a leg, "
        "where not set otherwise",
    )


def quicker(options: argparse.Namespace) -> argparse.Namespace:
    """The options with what `--quick` says in place of defaults."""
    defaults, quick = argparse.ArgumentParser(), argparse.Namespace(**vars(options))
    add_options(defaults)
    for name, value in (
        *(("slow", [0.1, 0.0]), ("fan_in", [2]), ("message", [256 << 10])),
        *(("nccl_pace_ms", [20.0]), ("seconds", 1.0)),
    ):
        if getattr(options, name) == defaults.get_default(name):
            setattr(quick, name, value)
    return quick


def cases_of(options: argparse.Namespace) -> list[Case]:
    many = [(1, share) for share in options.slow] + [(n, None) for n in options.fan_in if n]
    return [
        Case(operation, senders, share, message_bytes)
        for operation in options.operation
        for senders, share in many
        for message_bytes in options.message
    ] + [
        Case(options.operation[0], 1, share, options.message[0], pace_ms)
        for share in options.slow
        for pace_ms in options.nccl_pace_ms
    ]


def nodes(senders: int) -> list[str]:
    """The senders, each before its free one, and the slow one. NCCL's ranks are on the first two."""
    return [*(f"{kind}{n}" for n in range(1, senders + 1) for kind in ("sender", "free")), SLOW]


class Flow(NamedTuple):
    """One sender's perftest to one node."""

    sender: str
    node: str
    program: Program


def leg(rig: Rig, case: Case, mode: str, seconds: float) -> Figures:
    """The slow path is slow once everything flows: programs could not connect over one that carries nothing."""
    senders = [f"sender{n}" for n in range(1, case.senders + 1)]
    slow = rig.slow_path_to if case.operation == "write" else rig.slow_path_from
    rig.set_rate(rig.rate_bits_per_s)
    nccl = case.nccl_pace_ms is not None
    with rig.leg(mode, PERFTEST_RULE, on=[*senders, "free1"] if nccl else senders) as leg:

        def moved(flow: Flow) -> int:
            found = leg.moved(flow.sender, flow.program).get(rig.hosts.address(flow.node))
            return 0 if found is None else found.sent if case.operation == "write" else found.received

        def flows_now(flow: Flow) -> bool:
            return moved(flow) >= FLOWS_BYTES

        paths = [(sender, sender.replace("sender", "free"), FREE_PAIRS) for sender in senders]
        paths += [(sender, SLOW, SLOW_PAIRS) for sender in senders]
        program = f"ib_{case.operation}_bw"
        begun = [
            (sender, node, Perftest(leg, program, sender, node, case.message_bytes, pairs))
            for sender, node, pairs in paths
        ]
        flows = [Flow(sender, node, pair.start_client()) for sender, node, pair in begun]
        for flow in flows:
            leg.wait(partial(flows_now, flow), flow.program, "move bytes")
        collectives = None
        if case.nccl_pace_ms is not None:
            collectives = Collectives(leg, NCCL, NCCL_MESSAGE_BYTES, round(case.nccl_pace_ms * 1e3))
        if case.slow_share is not None:
            slow(SLOW, case.slow_share)
        time.sleep(FILL_S)
        before, began_ns = [moved(flow) for flow in flows], time.monotonic_ns()
        time.sleep(seconds)
        after, ended_ns = [moved(flow) for flow in flows], time.monotonic_ns()
        times = collectives.times() if collectives else []
        leg.check(*leg.programs)

    def sum_of(slow: bool) -> float:
        parts = zip(flows, before, after, strict=True)
        return sum(b - a for flow, a, b in parts if (flow.node == SLOW) is slow) / (ended_ns - began_ns) * 1e3

    times_ms = [(arrived - asked) / 1e6 for asked, arrived in times if began_ns <= arrived < ended_ns]
    return Figures(
        sum_of(slow=False),
        sum_of(slow=True),
        len(times_ms) * NCCL_MESSAGE_BYTES / (ended_ns - began_ns) * 1e3,
        statistics.median(times_ms) if times_ms else None,
    )


def row(case: Case, rate_mb_s: float, observe: Figures, enforce: Figures) -> dict[str, Any]:
    """A case's figures and what they say. `rate_mb_s`: of one link. The free ones could have what they have in observe,
    less what NCCL has more than there."""

    def share(observed: float, enforced: float) -> float | None:
        return enforced / observed if observed >= MEASURED_LEAST * rate_mb_s else None

    could_mb_s = observe.free_mb_s - max(0.0, enforce.collective_mb_s - observe.collective_mb_s)
    free, slow = share(could_mb_s, enforce.free_mb_s), share(observe.slow_mb_s, enforce.slow_mb_s)
    collectives: dict[str, float | None] = {}
    if case.nccl_pace_ms is not None:
        for mode, figures in (("observe", observe), ("enforce", enforce)):
            collectives[f"collective_mb_s_{mode}"] = round(figures.collective_mb_s, 2)
            median_ms = figures.collective_ms
            collectives[f"collective_ms_{mode}"] = None if median_ms is None else round(median_ms, 3)
    return {
        **case._asdict(),
        "rate_mb_s": rate_mb_s,
        **collectives,
        "free_mb_s_observe": round(observe.free_mb_s, 2),
        "free_mb_s_enforce": round(enforce.free_mb_s, 2),
        "slow_mb_s_observe": round(observe.slow_mb_s, 3),
        "slow_mb_s_enforce": round(enforce.slow_mb_s, 3),
        "free_share": None if free is None else round(free, 3),
        "slow_share_kept": None if slow is None else round(slow, 3),
        "free_verdict": verdict(None if free is None else free >= ALMOST),
        "slow_verdict": verdict(None if slow is None else slow >= ALMOST),
    }


def line_of(row: dict[str, Any]) -> str:
    """A row in a line."""
    return (
        f"free {row['free_mb_s_observe']:.1f} {row['free_mb_s_enforce']:.1f} MB/s: {row['free_verdict']}; "
        f"slow {row['slow_mb_s_observe']:.2f} {row['slow_mb_s_enforce']:.2f} MB/s: {row['slow_verdict']} "
        "(observe, enforce)"
    )


def summary(rows: dict[str, Any]) -> dict[str, Any]:
    """The worst of all cases, and how many met their bars."""

    def worst(key: str) -> float | None:
        return min((row[key] for row in rows.values() if row.get(key) is not None), default=None)

    return {
        "free_share_min": worst("free_share"),
        "slow_share_min": worst("slow_share_kept"),
        **tally(rows, ("free_verdict", "slow_verdict")),
        "cases": rows,
    }


def prepare(options: argparse.Namespace) -> None:
    """Outside of the namespaces, from which no wheel can be downloaded."""
    if options.nccl_pace_ms:
        nccl_net_arguments(NCCL)


def run(options: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    options = quicker(options) if options.quick else options
    shape = {"seconds": options.seconds, "versions": {"perftest": perftest_version(), "nccl": NCCL}}
    all_cases = cases_of(options)
    with Rig(nodes(max(case.senders for case in all_cases)), options.rate) as rig:

        def measured(case: Case) -> dict[str, Any]:
            rig.set_rate(min(options.rate, TOTAL_BITS_PER_S / case.senders))
            figures = (leg(rig, case, mode, options.seconds) for mode in ("observe", "enforce"))
            return row(case, rig.rate_mb_s, *figures)

        rows = measure_all(
            {case.name: partial(measured, case) for case in all_cases},
            line_of,
            lambda rows: keep(shape | summary(rows)),
        )
    return shape | summary(rows)
