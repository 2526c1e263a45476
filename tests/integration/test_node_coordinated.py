"""A daemon under a real coordinator: its order is obeyed, what it prunes goes last, its loss leaves the local order."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mfsd.client import Stage
from mfsd.node.control import ExplainReply, ExplainRequest, TraceReply, TraceRequest
from mfsd.node.control_client import ask
from tests.support.cluster import ask_status
from tests.support.coordinator import Running, running_coordinator
from tests.support.daemon import Daemon
from tests.support.engine import Engine
from tests.support.waiting import eventually

FULL = 900_000_000
"""20 s of its NIC: one task of this size keeps all others waiting, and is not soon overdue."""
CONFIG = """
[nic."slow"]
rate = "8mbit"
address = "10.7.0.1"
[arbiter]
window_min = "1gib"
max_hold = "5s"
stale_after = "10s"
[cluster]
node = "here"
unit = "prefill-1"
ttl = "8s"
"""


@pytest.fixture
def coordinator() -> Iterator[Running]:
    with running_coordinator() as running:
        yield running


def held(daemon: Daemon) -> list[tuple[str, int | None, bool]]:
    """(process, rank, pruned) of what waits, first to go first."""
    reply = ask(daemon.control, TraceRequest(), 20)
    assert isinstance(reply, TraceReply)
    return [(t.process, t.rank, t.pruned) for t in reply.tasks if t.state == "held"]


def explained(daemon: Daemon, task: str) -> str:
    reply = ask(daemon.control, ExplainRequest(task), 20)
    assert isinstance(reply, ExplainReply)
    return "\n".join(reply.reasons)


def test_the_collectives_of_one_batch_are_expected_of_the_next(coordinator: Running, folder: Path) -> None:
    """Its unit's last batch moved 300 s of the port in stage 2. Together with 200 s of KV the next one misses 450 s."""

    def batch(batch_id: int, process: Engine) -> None:
        flow = {"stage": Stage.P2D, "peer": "10.7.0.9", "size_bytes": 2 * 10**8}
        due_ns = time.monotonic_ns() + 450 * 10**9
        process(
            "batch",
            batch_id=batch_id,
            layers=4,
            requests=[{"request_id": batch_id, "deadline_ns": due_ns, "flows": [flow]}],
        )

    _, address = coordinator
    with (
        Daemon(folder, CONFIG, "--coordinator-address", address) as daemon,
        Engine(daemon.socket, "slow", "tells") as tells,
        Engine(daemon.socket, "slow", "moves") as moves,  # another process of the unit
    ):
        batch(1, tells)
        eventually(lambda: ask_status(address).batches_active == 1, "the coordinator knows the batch")
        moves("submit", task="c", size_bytes=3 * 10**8, stage=Stage.COLLECTIVE)
        moves("complete", task="c")
        assert not tells("pruned", request_id=1)
        tells("end", batch_id=1)
        batch(2, tells)
        eventually(lambda: tells("pruned", request_id=2), "the estimate counts")


def test_order_pruning_and_loss(coordinator: Running, folder: Path) -> None:
    process, address = coordinator
    with (
        Daemon(folder, CONFIG, "--coordinator-address", address) as daemon,
        Engine(daemon.socket, "slow", "good") as good,
        Engine(daemon.socket, "slow", "lost") as lost,
    ):
        good("submit", task="fill", size_bytes=FULL, stage=Stage.REUSE)
        good("wait", task="fill")
        # Both want 1 MB/s: 400 s of it within 450 s, and 300 s within 600 s. One must go, and the larger one goes.
        large = {
            "request_id": 9,
            "deadline_ns": time.monotonic_ns() + 450 * 10**9,
            "flows": [{"stage": Stage.P2D, "peer": "10.7.0.9", "size_bytes": 4 * 10**8}],
        }
        lost("batch", batch_id=90, layers=4, requests=[large])
        lost("submit", task="b", size_bytes=FULL, stage=Stage.P2D, batch=90, request_id=9)
        fine = {
            "request_id": 1,
            "deadline_ns": time.monotonic_ns() + 600 * 10**9,
            "flows": [{"stage": Stage.P2D, "peer": "10.7.0.9", "size_bytes": 3 * 10**8}],
        }
        good("batch", batch_id=10, layers=4, requests=[fine])
        good("submit", task="a", size_bytes=FULL, stage=Stage.P2D, batch=10, request_id=1)
        eventually(lambda: lost("pruned", request_id=9), "the judgement")
        eventually(
            lambda: (now := held(daemon)) and [p for p, _, _ in now] == ["good", "lost"] and now[1][2],
            "the order",
        )
        assert [rank for _, rank, _ in held(daemon)] == [1, 0]  # by RED the pruned one would go first
        reply = ask(daemon.control, TraceRequest(), 20)
        assert isinstance(reply, TraceReply)
        why = explained(daemon, next(t.id for t in reply.tasks if t.process == "lost"))
        assert "from the coordinator (term" in why
        assert "Its request is pruned" in why
        good("complete", task="fill")
        good("wait", task="a")
        assert lost("ready") == []
        process.kill()
        eventually(lambda: not lost("pruned", request_id=9), "nothing is pruned any more")
        eventually(lambda: any("by=local" in line for line in daemon.lines), "the loss is logged")
        good("complete", task="a")
        lost("wait", task="b")


def test_the_coordinator_hears_which_deadlines_were_met(coordinator: Running, folder: Path) -> None:
    _, address = coordinator
    now_ns = time.monotonic_ns()
    with (
        Daemon(folder, CONFIG, "--coordinator-address", address) as daemon,
        Engine(daemon.socket, "slow") as engine,
    ):
        deadlines = {1: now_ns + 3600 * 10**9, 2: now_ns + 3600 * 10**9, 3: 1}
        reported = [{"request_id": r, "deadline_ns": d} for r, d in deadlines.items()]
        engine("batch", batch_id=1, layers=1, requests=[*reported, {"request_id": 4}])
        for request in (1, 3, 4):
            engine("submit", task=str(request), size_bytes=10, stage=Stage.P2D, batch=1, request_id=request)
            engine("wait", task=str(request))
            engine("complete", task=str(request))
        engine("end", batch_id=1)
        eventually(lambda: ask_status(address).attainment.missed, "the ends of the requests")
        seen = ask_status(address).attainment
        assert (seen.met, seen.missed, seen.recent_met, seen.recent_missed) == (2, 1, 2, 1)
        assert (daemon.status().deadlines.met, daemon.status().deadlines.missed) == (2, 1)
        printed = subprocess.run(
            [sys.executable, "-m", "mfsd.cli.ctl", "coordinator", "status", "--address", address],
            capture_output=True,
            text=True,
            timeout=200,
            check=True,
        ).stdout
        assert "66.7% of 3 requests met their deadline" in printed
