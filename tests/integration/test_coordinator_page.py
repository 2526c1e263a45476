"""The page of a real coordinator with real daemons behind it, in a real browser; and what outlives a leader."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mfsd.client import Stage
from tests.integration.test_node_ctl import mfsctl
from tests.support.browser import Browser
from tests.support.cluster import Coordinator, Node, etcd, in_loop, until
from tests.support.daemon import Daemon
from tests.support.engine import Engine
from tests.support.waiting import eventually

FAST = '[coordinator]\nheartbeat = "100ms"\nweb = "127.0.0.1:0"\n[policy]\ndrop_budget = 0.5\n'
NODE = """
[nic."slow"]
rate = "8mbit"
address = "10.7.0.{n}"
[arbiter]
stale_after = "10s"
[cluster]
node = "node-{n}"
"""


@contextmanager
def two_nodes(folder: Path, coordinator: Coordinator) -> Iterator[tuple[Engine, Engine]]:
    """A daemon and an engine on each: one that prefills on node-1, one that stores on node-2."""
    folders = [folder / "a", folder / "b"]
    for path in folders:
        path.mkdir()
    with (
        Daemon(folders[0], NODE.format(n=1), "--coordinator-address", coordinator.address) as first,
        Daemon(folders[1], NODE.format(n=2), "--coordinator-address", coordinator.address) as second,
        Engine(first.socket, "slow", "prefill") as prefill,
        Engine(second.socket, "slow", "store") as store,
    ):
        eventually(lambda: len(coordinator.status().nodes) == 2, "both nodes")
        yield prefill, store


def page_of(coordinator: Coordinator) -> str:
    return f"http://127.0.0.1:{coordinator.wait_line('event=web').rpartition('port=')[2]}/"


def fetch(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=200) as answer:
        return json.loads(answer.read())


@in_loop
async def test_the_page_shows_order_nodes_and_what_is_pruned(tmp_path: Path) -> None:
    with Coordinator(tmp_path, config=FAST) as coordinator:
        url = page_of(coordinator)
        async with Node("node-a", coordinator.address) as a, Node("node-b", coordinator.address) as b:
            a.arrive(2**53 + 1, 1000, port="node-b/in", size=900 * 10**9)  # a browser's numbers end below
            b.arrive(4, 1200, port="node-b/in", size=400 * 10**9)
            await until(lambda: a.received.pruned, "pruned")
            for request_id, met in ((2**53 + 1, True), (2, True), (3, True), (2, False)):
                a.link.request_ended(request_id, met)
            b.link.request_ended(3, True)
            await until(lambda: coordinator.status().attainment.missed == 1, "the ends")
            seen = await asyncio.to_thread(fetch, f"{url}status.json")
            assert [row["batch_id"] for row in seen["batches"]] == ["9007199254740993", "4"]
            assert (seen["attainment"]["met"], seen["attainment"]["missed"]) == (2, 1), "each request once"

            def poll() -> str:
                with Browser(tmp_path) as browser:
                    browser.open(f"{url}#batch=9007199254740993", 1280, 900)
                    browser.until(
                        "document.querySelector('#detail table tbody tr') && document.querySelector('#attainment path')"
                    )
                    assert not browser.problems
                    return browser.text("body")

            page = await asyncio.to_thread(poll)
        for word in (
            "9007199254740993",
            "node-a",
            "node-b",
            "node-b/in",
            "leader",
            "66.6 %",
            "1 of 3 missed",
            "would be late at node-b/in",
        ):
            assert word in page, word


def test_the_life_of_a_request_is_asked_of_every_node(tmp_path: Path, folder: Path) -> None:
    """Its batch runs on one node, and on the other one it fetches."""
    with Coordinator(tmp_path, config=FAST) as coordinator, two_nodes(folder, coordinator) as (prefill, store):
        url = page_of(coordinator)
        due_ns = time.monotonic_ns() + 3600 * 10**9
        prefill("batch", batch_id=5, layers=2, requests=[{"request_id": 4711, "deadline_ns": due_ns}])
        for layer in (0, 1):
            task = f"kv{layer}"
            prefill("submit", task=task, size_bytes=1000, stage=Stage.P2D, batch=5, request_id=4711, layer=layer)
            prefill("wait", task=task)
            prefill("complete", task=task)
        store("submit", task="r", size_bytes=500, stage=Stage.REUSE, request_id=4711)
        store("wait", task="r")
        store("complete", task="r")
        eventually(lambda: len(fetch(f"{url}request.json?id=4711")["nodes"]) == 2, "what both know")
        life = fetch(f"{url}request.json?id=4711")
        stages = {(n["node"], s["stage"], s["layer"], s["done"]) for n in life["nodes"] for s in n["stages"]}
        assert stages == {
            ("node-1", "p2d", 0, True),
            ("node-1", "p2d", 1, True),
            ("node-2", "reuse", 0, True),
        }
        assert all(s["first_ago_s"] >= s["last_ago_s"] >= 0 for n in life["nodes"] for s in n["stages"])
        assert "2 nodes" in fetch(f"{url}request.json?id=5")["problem"]
        with Browser(tmp_path) as browser:
            browser.open(url, 1280, 900)
            browser.until("document.querySelector('#nodes tbody tr')")
            browser.click("#request")
            browser.call("Input.insertText", text="4711")
            browser.click("#find button")
            browser.until("document.querySelectorAll('svg.life rect').length === 3")
            assert "node-2: store" in browser.text("#detail") and not browser.problems


def verdicts(coordinator: str) -> dict[str, dict[str, Any]] | None:
    """What each node says of itself, once all have answered in time."""
    verdict = mfsctl(None, "cluster", "--address", coordinator, "--json")
    if verdict.returncode != 0:
        return None
    nodes = json.loads(verdict.stdout)["nodes"]
    return {n["node"]: n for n in nodes} if all(n["mode"] for n in nodes) else None


def test_flows_of_all_nodes_are_followed_through_the_coordinator(tmp_path: Path, folder: Path) -> None:
    with Coordinator(tmp_path, config=FAST) as coordinator, two_nodes(folder, coordinator) as (prefill, store):

        def flows(*arguments: str) -> list[dict[str, Any]]:
            """What ends while it polls, of tasks that come all the time."""
            done = False

            def move(engine: Engine, stage: Stage, request_id: int) -> None:
                number = 0
                while not done:
                    engine("submit", task=str(number), size_bytes=100, stage=stage, request_id=request_id)
                    engine("wait", task=str(number))
                    engine("complete", task=str(number))
                    number += 1

            threads = [
                threading.Thread(target=move, args=(prefill, Stage.P2D, 11)),
                threading.Thread(target=move, args=(store, Stage.REUSE, 22)),
            ]
            for thread in threads:
                thread.start()
            try:
                seen = mfsctl(None, "flows", "--cluster", "--address", coordinator.address, *arguments)
            finally:
                done = True
                for thread in threads:
                    thread.join()
            if "timed out before receiving SETTINGS" in seen.stderr:
                return []  # gRPC gave up on a connection that a busy machine did not accept in time
            assert seen.returncode == 0, seen.stderr
            return [json.loads(line) for line in seen.stdout.splitlines()]

        def whole(seen: list[dict[str, Any]]) -> list[dict[str, Any]]:
            """Where a flood is cut, only a flow's end is known."""
            return [f for f in seen if f["took_s"] is not None]

        def mostly_whole() -> list[dict[str, Any]] | None:
            """A busy machine may move nothing of a node in these seconds, or be too late for what begins."""
            seen = flows("--seconds", "3", "--json")
            both = {f["node"] for f in whole(seen)} == {"node-1", "node-2"}
            return seen if both and len(whole(seen)) > len(seen) / 2 else None

        seen = eventually(mostly_whole, "flows of both nodes")
        assert {(f["node"], f["process"], f["stage"], f["request_id"]) for f in seen} == {
            ("node-1", "prefill", "p2d", 11),
            ("node-2", "store", "reuse", 22),
        }
        assert {f["end"] for f in seen} == {"done"}
        assert all(f["took_s"] >= 0 for f in whole(seen))
        of_node = eventually(lambda: flows("--seconds", "3", "--json", "--node", "node-2"), "flows of the node")
        assert {f["node"] for f in of_node} == {"node-2"}
        of_stage = eventually(lambda: flows("--seconds", "3", "--json", "--stage", "p2d"), "flows of the stage")
        assert {f["stage"] for f in of_stage} == {"p2d"}
        nodes = eventually(lambda: verdicts(coordinator.address), "an answer of each node")
        assert set(nodes) == {"node-1", "node-2"}
        for one in nodes.values():
            assert one["mode"] == "enforce" and one["doctor"] in ("scheduled", "not scheduled", "cannot tell")
            assert abs(one["clock_s"]) < 30, "the same machine"
        none = mfsctl(None, "flows", "--cluster", "--address", coordinator.address, "--node", "node-9")
        assert none.returncode == 3 and "no node has node-9 in its name" in none.stderr


def test_what_links_carry_is_on_the_page_and_in_the_status(tmp_path: Path, folder: Path) -> None:
    """A megabyte a second fits this link: what tasks move is reported by class, and is over when they are."""
    with Coordinator(tmp_path, config=FAST) as coordinator:
        url = page_of(coordinator)
        with (
            Daemon(folder, NODE.format(n=1), "--coordinator-address", coordinator.address) as daemon,
            Engine(daemon.socket, "slow", "prefill") as prefill,
        ):
            eventually(lambda: fetch(f"{url}view.json")["nodes"], "the node", pause_s=0.1)

            def used() -> dict[str, int] | None:
                prefill("submit", task="t", size_bytes=40_000, stage=Stage.P2D)
                prefill("wait", task="t")
                prefill("complete", task="t")
                port = fetch(f"{url}port.json?name=10.7.0.1%2Fout")
                return {row["name"]: row["permille"] for row in port["shares"]} or None

            shares = eventually(used, "what is used", pause_s=0.1)
            assert all(name.startswith("class ") for name in shares), shares
            assert any(p.used.permille for node in coordinator.status().nodes for p in node.ports)
            reported = mfsctl(None, "coordinator", "status", "--address", coordinator.address).stdout
            assert "USED" in reported
            eventually(lambda: not fetch(f"{url}port.json?name=10.7.0.1%2Fout")["shares"], "the end", pause_s=0.1)


@in_loop
async def test_the_history_outlives_the_leader(tmp_path: Path) -> None:
    with etcd(tmp_path) as (endpoint, _):
        one = Coordinator(tmp_path, etcd=endpoint, config=FAST)
        with one:
            await asyncio.to_thread(one.wait_lead)
            with Coordinator(tmp_path, etcd=endpoint, config=FAST) as two:
                async with Node("node-a", one.address, two.address) as a:
                    await until(lambda: a.link.status().connected, "the link")
                    for request_id in range(10):
                        a.link.request_ended(request_id, request_id > 0)
                    url = page_of(two)

                    def reported(met: int) -> bool:
                        return bool(fetch(f"{url}view.json")["attainment"]["recent_met"] == met)

                    await until_thread(lambda: reported(9), "the leader's view at the one that stands by")
                    # Only what it has asked itself outlives the leader; it asks every few seconds.
                    await until_thread(lambda: history_of(two), "the leader's history")
                    one.process.kill()
                    await asyncio.to_thread(two.wait_lead)
                    await until_thread(lambda: reported(9), "what the former leader counted")
                    a.link.request_ended(77, True)
                    await until_thread(lambda: reported(10), "the count goes on")
                    assert [
                        row["request_id"] for row in (await asyncio.to_thread(fetch, f"{url}view.json"))["missed"]
                    ] == ["0"]


def history_of(coordinator: Coordinator) -> int:
    """Requests in its own memory of the last hour."""
    import grpc

    from mfsd.proto import mfs_pb2 as pb
    from mfsd.proto.wire import STATUS

    with grpc.insecure_channel(coordinator.address) as channel:
        call = channel.unary_unary(
            STATUS,
            request_serializer=pb.StatusRequest.SerializeToString,
            response_deserializer=pb.StatusReply.FromString,
        )
        reply = call(pb.StatusRequest(history_max=360), timeout=100)
    return sum(row.met for row in reply.history.intervals)


async def until_thread(poll: Any, what: str) -> None:
    await asyncio.to_thread(eventually, poll, what, pause_s=0.1)


def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        coordinator = Coordinator(tmp_path, config=f'[coordinator]\nweb = "{address}"\n')
        assert coordinator.wait_end() == 1
        assert any(f"coordinator.web = {address}" in line for line in coordinator.lines), coordinator.lines
