"""A real daemon and engine processes with batches: who goes first, what is explained, what is reclaimed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mfsd.client import Stage
from mfsd.node.control import ExplainReply, ExplainRequest, TraceReply, TraceRequest, WaitSeen, WhyReply, WhyRequest
from mfsd.node.control_client import ask
from tests.support.daemon import Daemon
from tests.support.engine import Engine
from tests.support.waiting import eventually

CONFIG = """
[policy]
early_order = "rank"
[arbiter]
max_hold = "5s"
stale_after = "10s"
window_min = "1gib"
[nic."slow"]
rate = "8mbit"
address = "10.7.0.1"
"""
FULL = 900_000_000
"""Most of the window, and 900 s of its NIC: one task of this size keeps all others waiting, and is not soon
overdue."""


@pytest.fixture
def daemon(folder: Path) -> Iterator[Daemon]:
    with Daemon(folder, CONFIG) as one:
        yield one


@pytest.fixture
def engines(daemon: Daemon) -> Iterator[tuple[Engine, Engine]]:
    with ExitStack() as stack:
        yield (
            stack.enter_context(Engine(daemon.socket, "slow", "first")),
            stack.enter_context(Engine(daemon.socket, "slow", "second")),
        )


def due_in(seconds: float) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)


def trace(daemon: Daemon) -> TraceReply:
    reply = ask(daemon.control, TraceRequest(), 20)
    assert isinstance(reply, TraceReply)
    return reply


def held(daemon: Daemon) -> list[tuple[str, int | None, int | None]]:
    """(process, rank, RLI) of the tasks that wait, first to go first."""
    return [(t.process, t.rank, t.rli) for t in trace(daemon).tasks if t.state == "held"]


def wait_for_order(daemon: Daemon, *order: tuple[str, int | None, int | None]) -> None:
    eventually(lambda: held(daemon) == list(order) or None, f"the order {order}, last seen {held(daemon)}")


def test_batches_of_two_processes_go_by_red(daemon: Daemon, engines: tuple[Engine, Engine]) -> None:
    first, second = engines
    first("submit", task="fill", size_bytes=FULL, stage=Stage.REUSE)
    first("wait", task="fill")
    first("batch", batch_id=1, layers=8, requests=[{"request_id": 11, "deadline_ns": due_in(2000)}])
    first("submit", task="a", size_bytes=FULL, stage=Stage.REUSE, batch=1, layer=2)
    wait_for_order(daemon, ("first", 0, 2))
    second("batch", batch_id=2, layers=8, requests=[{"request_id": 21, "deadline_ns": due_in(1000)}])
    second("submit", task="b", size_bytes=FULL, stage=Stage.REUSE, batch=2, layer=2)
    wait_for_order(daemon, ("second", 0, 2), ("first", 1, 2))
    first("complete", task="fill")
    second("wait", task="b")
    assert first("ready") == []
    second("end", batch_id=2)
    wait_for_order(daemon, ("first", 0, 2))
    second("complete", task="b")
    first("wait", task="a")


def test_a_layer_boundary_promotes(daemon: Daemon, engines: tuple[Engine, Engine]) -> None:
    first, second = engines
    first("submit", task="fill", size_bytes=FULL, stage=Stage.REUSE)
    first("wait", task="fill")
    first("batch", batch_id=1, layers=8, requests=[{"request_id": 11, "deadline_ns": due_in(2000)}])
    second("batch", batch_id=2, layers=8, requests=[{"request_id": 21, "deadline_ns": due_in(1000)}])
    first("submit", task="a", size_bytes=FULL, stage=Stage.REUSE, batch=1, layer=5)
    second("submit", task="b", size_bytes=FULL, stage=Stage.REUSE, batch=2, layer=3)
    wait_for_order(daemon, ("second", 0, 3), ("first", 1, 5))
    first("layer", batch_id=1, n=4)
    wait_for_order(daemon, ("first", 1, 1), ("second", 0, 3))
    first("complete", task="fill")
    first("wait", task="a")
    assert second("ready") == []


def test_a_killed_engines_batches_and_bytes_are_taken_back(daemon: Daemon, engines: tuple[Engine, Engine]) -> None:
    first, second = engines
    first("batch", batch_id=1, layers=8, requests=[{"request_id": 11, "deadline_ns": due_in(1000)}])
    first("submit", task="fill", size_bytes=FULL, stage=Stage.REUSE, batch=1)
    first("wait", task="fill")
    first("submit", task="more", size_bytes=FULL, stage=Stage.REUSE, batch=1)
    second("batch", batch_id=2, layers=8, requests=[{"request_id": 21, "deadline_ns": due_in(2000)}])
    second("submit", task="b", size_bytes=FULL, stage=Stage.REUSE, batch=2)
    wait_for_order(daemon, ("first", 0, 0), ("second", 1, 0))
    first.kill()
    second("wait", task="b")
    (left,) = eventually(lambda: [t for t in trace(daemon).tasks if t.rank == 0] or None)
    assert left.process == "second"


def mfsctl(daemon: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mfsd.cli.ctl", "--socket", str(daemon.socket), *arguments],
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_a_place_is_explained(daemon: Daemon, engines: tuple[Engine, Engine]) -> None:
    first, second = engines
    assert "No task" in mfsctl(daemon, "trace").stdout
    first("submit", task="fill", size_bytes=FULL, stage=Stage.REUSE)
    first("wait", task="fill")
    second("batch", batch_id=2, layers=8, requests=[{"request_id": 21, "deadline_ns": due_in(1000)}])
    second("submit", task="b", size_bytes=200_000_000, stage=Stage.REUSE, batch=2, layer=3)
    flow = {"stage": Stage.P2D, "peer": "10.7.0.9", "size_bytes": 1_000_000, "layer": 7}
    due = due_in(100)
    request = {"request_id": 31, "deadline_ns": due, "budget_ns": 100 * 10**9, "flows": [flow]}
    first("batch", batch_id=3, layers=8, requests=[request])
    first("submit", task="c", size_bytes=131_072, stage=Stage.P2D, batch=3, request_id=31, deadline_ns=due)
    last = eventually(lambda: next((t for t in trace(daemon).tasks if t.stage == "p2d"), None))
    reply = ask(daemon.control, ExplainRequest(last.id), 20)
    assert isinstance(reply, ExplainReply)
    assert reply.facts["bytes_left"] == 1_000_000
    assert reply.facts["rate_bytes_per_s"] == 1_000_000
    assert (reply.ahead_tasks, reply.ahead_bytes) == (1, 200_000_000)
    assert reply.ahead[0].why == "tier early goes before last"
    text = mfsctl(daemon, "trace", "--explain", last.id.rpartition(":")[0]).stdout
    assert "to the deadline" in text and "this node's own RED order" in text and "It waits for those before it." in text
    shown = json.loads(mfsctl(daemon, "trace", "--explain", last.id, "--json").stdout)
    assert shown["task"]["request_id"] == 31
    listed = mfsctl(daemon, "trace")
    assert last.id in listed.stdout and "last" in listed.stdout
    assert len(json.loads(mfsctl(daemon, "trace", "--json").stdout)["tasks"]) == 3


@pytest.mark.parametrize("task", ["nonsense", "1:2:3:4", "77:0", "1:4095", "1:99999999999999999999"])
def test_a_task_that_is_not_there_is_said_so(daemon: Daemon, engines: tuple[Engine, Engine], task: str) -> None:
    done = mfsctl(daemon, "trace", "--explain", task)
    assert done.returncode == 1
    assert "mfsctl trace" in done.stderr


def why(daemon: Daemon, number: int = 0, **more: object) -> WhyReply:
    reply = ask(daemon.control, WhyRequest(number, **more), 20)  # type: ignore[arg-type]
    assert isinstance(reply, WhyReply)
    return reply


def test_what_waits_and_what_waited_is_explained(daemon: Daemon, engines: tuple[Engine, Engine]) -> None:
    """By request, by process, and the slowest; while it waits, and when it is over."""
    first, second = engines
    pids = {client.process: client.pid for client in daemon.wait_clients(2)}
    first("submit", task="fill", size_bytes=FULL, stage=Stage.REUSE)
    first("wait", task="fill")
    first("batch", batch_id=1, layers=8, requests=[{"request_id": 11, "deadline_ns": due_in(2000)}])
    second("batch", batch_id=2, layers=8, requests=[{"request_id": 21, "deadline_ns": due_in(1000)}])
    first("submit", task="a", size_bytes=FULL, stage=Stage.REUSE, batch=1, layer=5, request_id=11)
    second("submit", task="b", size_bytes=FULL, stage=Stage.REUSE, batch=2, layer=3, request_id=21)
    wait_for_order(daemon, ("second", 0, 3), ("first", 1, 5))

    for asked in (why(daemon, 11), why(daemon, 11, kind="request"), why(daemon, slowest=True)):
        assert (asked.about, asked.state) == ("request 11", "waiting")
        assert asked.task is not None and asked.task.ahead_tasks == 1 and "RLI 3 before 5" in asked.task.ahead[0].why
        assert "Its batch 1 is number 2 of 2 in this node's own order" in asked.cluster[0]
    program = why(daemon, pids["second"], kind="pid")
    assert program.about == f"second, process {pids['second']}" and program.state == "waiting"
    text = mfsctl(daemon, "explain", "--slowest").stdout
    assert "request 11: waiting" in text and "RLI 3 before 5" in text and "number 2 of 2" in text

    eventually(lambda: any(w.request_id == 11 and w.ahead_tasks == 1 for w in daemon_seen(daemon, pids["first"])))
    first("complete", task="fill")
    second("wait", task="b")
    second("complete", task="b")
    first("wait", task="a")
    first("complete", task="a")
    first("end", batch_id=1)
    second("end", batch_id=2)
    over = eventually(lambda: (why(daemon, 11),) if why(daemon, 11).state == "ended" else None)[0]
    assert over.task is None and over.reasons[0].startswith("It ended ")
    assert any(reason.startswith("reuse: 858.3") for reason in over.reasons), over.reasons
    (wait,) = over.seen
    assert (wait.request_id, wait.ahead_tasks, wait.rule) == (11, 1, "RLI 3 before 5") and "second" in wait.first
    idle = why(daemon, slowest=True)
    assert idle.state == "ended" and idle.seen[0].waited_s >= idle.seen[-1].waited_s > 0
    first.kill()
    gone = eventually(lambda: (why(daemon, pids["first"]),) if why(daemon, pids["first"]).state == "ended" else None)[0]
    assert "It ended" in gone.reasons[0] and gone.seen[0].request_id == 11
    nothing = mfsctl(daemon, "explain", "99")
    assert nothing.returncode == 1 and "no request or program is known" in nothing.stderr


def daemon_seen(daemon: Daemon, pid: int) -> list[WaitSeen]:
    return why(daemon, pid, kind="pid").seen
