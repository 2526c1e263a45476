"""What each request has moved, as a real daemon shows it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from mfsd._native import Client
from mfsd.client import Flow, Request, Session, Stage
from tests.integration.test_node_ctl import mfsctl
from tests.support.daemon import Daemon
from tests.support.waiting import eventually

CONFIG = '[cluster]\nunit = "prefill-1"\n'


def requests(daemon: Daemon, *arguments: str) -> list[dict[str, object]]:
    result = mfsctl(daemon.socket, "status", "--json", *arguments)
    assert result.returncode == 0, result.stderr
    found: list[dict[str, object]] = json.loads(result.stdout)["requests"]
    return found


def test_every_byte_has_its_request_stage_and_layer(folder: Path) -> None:
    with (
        Daemon(folder, CONFIG) as daemon,
        Session.open(socket_path=str(daemon.socket), process="engine") as session,
    ):
        eventually(lambda: session.scheduled, "the session")
        nic = session.nic("rdma0", rate_bytes_per_s=125_000_000)
        deadline_ns = time.monotonic_ns() + 3600 * 10**9
        flows = (Flow(Stage.P2D, "", 3000, nic, 0), Flow(Stage.P2D, "", 3000, nic, 1))
        batch = session.batch(11, layers=2, requests=[Request(7, deadline_ns, flows=flows), Request(8)])
        with session.submit(500, stage=Stage.REUSE, nic=nic, request_id=7, batch=batch, layer=1):
            pass
        for layer in range(2):
            batch.layer(layer)
            for _ in range(3):
                with session.submit(1000, stage=Stage.P2D, nic=nic, request_id=7, batch=batch, layer=layer):
                    pass
        open_task = session.submit(64, stage=Stage.P2D, nic=nic, request_id=8, batch=batch)
        open_task.wait()
        seven = eventually(
            lambda: [r for r in requests(daemon, "--request", "7") if r["completed_bytes"] == 6500], "the bytes"
        )[0]
        assert (seven["processes"], seven["unit"], seven["batch_id"], seven["state"]) == (
            ["engine"],
            "prefill-1",
            11,
            "open",
        )
        assert [(s["stage"], s["layer"], s["tasks"], s["completed_bytes"]) for s in seven["stages"]] == [  # type: ignore[attr-defined]
            ("reuse", 1, 1, 500),
            ("p2d", 0, 3, 3000),
            ("p2d", 1, 3, 3000),
        ]
        assert 3500 < float(str(seven["deadline_left_s"])) < 3600
        total = daemon.client(os.getpid())
        assert total is not None
        by_stage = {"reuse": 500, "p2d": 6000}
        assert {k: v for k, v in total.completed_bytes.items() if k in by_stage} == by_stage
        assert [r["request_id"] for r in requests(daemon, "--requests")] == [8, 7], "most recently used first"
        batch.end()
        ended = eventually(lambda: [r for r in requests(daemon, "--request", "7") if r["state"] == "ended"], "the end")[
            0
        ]
        assert ended["outcome"] == "met"
        assert requests(daemon, "--request", "8")[0]["state"] == "open", "a task of it is still in flight"
        open_task.complete()
        eventually(lambda: requests(daemon, "--request", "8")[0]["state"] == "ended", "its end")
        assert daemon.status().deadlines.met == 1
        assert daemon.status().events["ended"] == {"met": 1, "none": 1}
        text = mfsctl(daemon.socket, "status", "--requests").stdout
        assert max(map(len, text.splitlines())) <= 80
        assert "reuse" in text and "met" in text and "5.9 KiB" in text
        unknown = mfsctl(daemon.socket, "status", "--request", "99")
        assert (unknown.returncode, unknown.stdout) == (1, "") and "request 99 is not known" in unknown.stderr


def test_a_request_is_known_after_its_process(folder: Path) -> None:
    with Daemon(folder, CONFIG) as daemon:
        client = Client.attach(str(daemon.socket), process="short-lived", timeout_ms=100_000)
        client.submit(100, stage=Stage.P2D, nic=client.nic("rdma0"), request_id=3, layer=2)
        eventually(lambda: requests(daemon, "--request", "3"), "the request")
        client.detach()
        daemon.wait_clients(0)
        (row,) = requests(daemon, "--request", "3")
        assert (row["processes"], row["unit"], row["state"]) == (["short-lived"], "prefill-1", "named")
        assert (row["submitted_bytes"], row["dropped_bytes"]) == (100, 100)


def test_two_processes_of_one_request_are_one_row(folder: Path) -> None:
    with (
        Daemon(folder) as daemon,
        Session.open(socket_path=str(daemon.socket), process="rank0") as a,
        Session.open(socket_path=str(daemon.socket), process="rank1") as b,
    ):
        now_ns = time.monotonic_ns()
        batches = []
        for session, deadline_ns in ((a, now_ns + 3600 * 10**9), (b, 1)):
            eventually(lambda: session.scheduled, "the session")  # noqa: B023
            nic = session.nic("rdma0")
            batches.append(session.batch(1, layers=1, requests=[Request(5, deadline_ns)]))
            with session.submit(100, stage=Stage.P2D, nic=nic, request_id=5, batch=batches[-1]):
                pass
        row = eventually(
            lambda: [r for r in requests(daemon, "--request", "5") if r["completed_bytes"] == 200], "both"
        )[0]
        assert (row["processes"], row["state"]) == (["rank0", "rank1"], "open")
        batches[0].end()
        eventually(lambda: daemon.status().deadlines.met == 1, "one end")
        batches[1].end()
        eventually(lambda: daemon.status().deadlines.missed == 1, "the other, which was late")
        now = daemon.status().deadlines
        assert (now.met, now.latest_met, now.latest_missed, now.latest_s) == (0, 0, 1, 20.0), "one request counts once"
        assert "in time: 0% of 1 (20 s), 0% of 1 (5m 0s)" in mfsctl(daemon.socket, "status").stdout
        assert requests(daemon, "--request", "5")[0]["outcome"] == "missed"
