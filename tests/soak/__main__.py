"""Moves bytes for long while everything that can die does: ``python -m tests.soak --help``."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.soak.chaos import Chaos
from tests.soak.nodes import Cluster, wait_for
from tests.soak.programs import BANDWIDTH, PINGPONG, RUN_S_MAX, Slot, hostile, nccl, pair, sessions, stress
from tests.soak.tally import Tally, text
from tests.support.under_mfs import build_program

EXAMPLES = """
examples:
  python -m tests.soak                       an hour
  python -m tests.soak --seconds 60 --seed 7 the faults of seed 7, for a minute
  python -m tests.soak --json build/soak.json

Exit code: 0 nothing was lost or corrupted, nothing grew without bound and everything came back; 1 otherwise; 2 for a
mistake in the command. Ctrl-C ends it and reports what was seen so far.
"""
QUIET_S = 30.0
"""In which a daemon must have forgotten the programs that have ended."""
GROWTH_MAX = {"memory_bytes": 64 << 20, "descriptors": 128, "threads": 16}
"""Of a daemon, in one life: four descriptors and a segment's pages a program, a thread for a while where the name
of a coordinator is looked up; and nothing that adds up."""


WAIT_S_MORE = 5.0
"""For a permit, beyond the node's `max_hold`: a program that was stopped, or whose daemon was, looks at its watch 2 s
later, and the machine is busy."""


def make_slots(cluster: Cluster, tally: Tally, folder: Path) -> list[Slot]:
    program = build_program("stress", folder, "-libverbs", "-lpthread")
    transport = build_program("nccl_net", folder, "-ldl", source_folder="tests/native")
    first, *others = cluster.nodes
    last = others[-1] if others else first
    return [
        *(stress(tally, node, program) for node in cluster.nodes),
        pair("pingpong", tally, first, last, PINGPONG, (800, 800 * 65536)),
        pair("write", tally, last, first, BANDWIDTH, (3000, 3000 * 65536)),
        sessions(tally, last),
        nccl(tally, first, transport),
        *(hostile(tally, node, first if node is last else last) for node in cluster.nodes),
    ]


def soak(seconds: float, seed: int, nodes: int, folder: Path) -> dict[str, Any]:
    tally = Tally()
    with Cluster(folder, nodes) as cluster:
        slots = make_slots(cluster, tally, folder)
        chaos = Chaos(cluster, slots, tally, seed)
        for slot in slots:
            slot.start()
        with contextlib.suppress(KeyboardInterrupt):
            run(chaos, tally, seconds)
        finish(cluster, slots, tally)
        growth = {node.name: node.growth.most for node in cluster.nodes}
    for name, most in growth.items():
        for what, allowed in GROWTH_MAX.items():
            if most[what] > allowed:
                tally.problem("growth", f"the daemon of {name}: {what} grew by {most[what]}, at most {allowed}")
    for node in cluster.nodes:
        seen, most_s = node.waits, node.max_hold_s + WAIT_S_MORE
        if seen.longest_s > most_s:
            what = f"for {seen.longest_s:.1f} s ({seen.longest}), at most {most_s:g}"
            tally.problem("wait", f"on {node.name} a task waited {what}")
    return tally.report(seed, growth, {node.name: (node.max_hold_s, node.waits) for node in cluster.nodes})


def run(chaos: Chaos, tally: Tally, seconds: float) -> None:
    began_s, printed_s = time.monotonic(), float("-inf")
    while time.monotonic() - began_s < seconds:
        chaos.once()
        if time.monotonic() - printed_s >= 5.0:
            printed_s = time.monotonic()
            print(f"{printed_s - began_s:6.0f} s: {tally.progress()}", file=sys.stderr, flush=True)


def finish(cluster: Cluster, slots: list[Slot], tally: Tally) -> None:
    """Everything that can serve does; the runs under way end by themselves."""
    for service in cluster.services():
        service.go_on()
        if not service.alive:
            service.start()
    for slot in slots:
        slot.stop()
    until_s = time.monotonic() + RUN_S_MAX + 5
    with contextlib.suppress(KeyboardInterrupt):
        for slot in slots:
            if not slot.join(max(0.1, until_s - time.monotonic())):
                tally.lost(slot.name, "its last run does not end")
        for node in cluster.nodes:
            if not wait_for(lambda node=node: (s := node.status()) and not s.clients, time.monotonic() + QUIET_S):
                tally.problem("growth", f"the daemon of {node.name} still holds programs that have ended")
                continue
            status = node.status()
            if status is not None and any(nic.in_flight_bytes for nic in status.nics):
                tally.problem("growth", f"the daemon of {node.name} still counts bytes of programs that have ended")
    for slot in slots:
        slot.kill()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=3600.0, metavar="S", help="how long (default: 3600)")
    parser.add_argument("--seed", type=int, metavar="N", help="of the faults; default: the time, printed")
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="daemons, 1 to 8 (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the report for machines, beside the one for people")
    asked = parser.parse_args()
    if not asked.seconds > 0:
        parser.error(f"--seconds: {asked.seconds:g} is no time; give 1 or more")
    if not 1 <= asked.nodes <= 8:
        parser.error(f"--nodes: {asked.nodes} daemons; give 1 to 8")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts us in the background has it ignored
    seed = asked.seed if asked.seed is not None else int(time.time())
    print(f"seed {seed}: repeat with --seed {seed}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="mfs-soak-", dir="/tmp") as folder:
        report = soak(asked.seconds, seed, asked.nodes, Path(folder))
    print(text(report))
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if report["held"] else 1


if __name__ == "__main__":
    sys.exit(main())
