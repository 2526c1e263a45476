"""How old what other nodes owe is on an outlook page: from the call that announces a load at one node until another
node's page shows it.

A real coordinator and real daemons on this machine, one of which announces and withdraws a large load from an owner
that another one watches. Further daemons hold loads from owners of their own, so that the coordinator has a cluster to
keep. What an engine waits before it announces comes on top (`MfsConnector`: 50 ms at most)."""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.micro.daemon import ROOT, mfsd
from bench.ports import free_port
from mfsd.children import python_module
from mfsd.client import Flow, Session, Stage, Waiting

CONFIG = """
[nic."bench0"]
rate = "100gbit"
address = "10.7.{high}.{low}"
[cluster]
node = "node-{number}"
coordinators = ["{coordinator}"]
"""
OWNER = "10.8.0.1"
SIZE_BYTES = 20_000_000_000  # seconds of any port: no step of the coordinator hides it
SHOWN_NS = 100_000_000
ASKED_BYTES = 1_000_000
PAUSE_S = 0.1
"""At most, between one change and the next, so that no clock of a program keeps step with them."""
LOST_S = 20.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--changes", type=int, default=200, help="announced and withdrawn in turn (default 200)")
    parser.add_argument("--others", type=int, default=4, help="daemons beside the two (default 4)")


@contextlib.contextmanager
def coordinator() -> Iterator[str]:
    """Its address. Daemons try again until it listens."""
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [*python_module("mfsd.cli.daemon"), "--coordinator", "--listen", address], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    try:
        yield address
    finally:
        process.terminate()
        process.wait()


def seconds_until(true: Callable[[], bool], what: str) -> float:
    begin_s = time.monotonic()
    while not true():
        if time.monotonic() - begin_s > LOST_S:
            sys.exit(f"outlook_age: {what} did not come within {LOST_S:g} s")
        time.sleep(0.0002)  # the two programs that are measured have the processor meanwhile
    return time.monotonic() - begin_s


def load_of(session: Session, owner: str, size_bytes: int) -> list[Waiting]:
    flow = Flow(Stage.REUSE, owner, size_bytes, session.nic("bench0"), 0, True)
    return [Waiting(1, 1, flows=(flow,))]


def run(options: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Milliseconds: mean, p50, p90, p99 and the longest; announced_p50 and withdrawn_p50 apart."""
    draw = random.Random(1)
    took_s: list[list[float]] = [[], []]  # withdrawn, announced
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(coordinator())
        sessions = []
        for number in range(2 + options.others):
            config = CONFIG.format(high=number // 250, low=number % 250 + 1, number=number, coordinator=address)
            socket, _ = stack.enter_context(mfsd(config=config))
            session = Session.open(socket_path=str(socket), process=f"engine-{number}")
            stack.callback(session.close)
            session.nic("bench0")
            sessions.append(session)
        seconds_until(lambda: all(session.scheduled for session in sessions), "a daemon")
        asks, owes, *others = sessions
        for number, session in enumerate(others):
            session.waiting(load_of(session, f"10.8.1.{number + 1}", ASKED_BYTES))

        def shown() -> bool:
            found = asks.fetch_ns(ASKED_BYTES, OWNER, 1)
            return found is not None and found > SHOWN_NS

        def hidden() -> bool:
            return not shown()

        asks.watch([OWNER])
        owes.waiting(load_of(owes, OWNER, SIZE_BYTES))
        seconds_until(shown, "what the other node owes")
        for change in range(options.changes):
            time.sleep(draw.uniform(0.5, 1.0) * PAUSE_S)
            announced = change % 2 == 1
            owes.waiting(load_of(owes, OWNER, SIZE_BYTES) if announced else [])
            took_s[announced].append(seconds_until(shown if announced else hidden, "a change"))
    every = sorted(took_s[0] + took_s[1])

    def at(share: float) -> float:
        return round(1e3 * every[min(len(every) - 1, int(share * len(every)))], 1)

    return {
        "daemons": len(sessions), "changes": len(every), "mean_ms": round(1e3 * statistics.fmean(every), 1),
        "p50_ms": at(0.5), "p90_ms": at(0.9), "p99_ms": at(0.99), "longest_ms": at(1.0),
        "announced_p50_ms": round(1e3 * statistics.median(took_s[1]), 1),
        "withdrawn_p50_ms": round(1e3 * statistics.median(took_s[0]), 1),
    }  # fmt: skip
