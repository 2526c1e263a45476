"""The page of a real coordinator, with a real daemon's link behind it, in a real browser."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import urllib.request
from pathlib import Path

from tests.support.cluster import Coordinator, Node, in_loop, until

FAST = '[coordinator]\nheartbeat = "100ms"\nweb = "127.0.0.1:0"\n[policy]\ndrop_budget = 0.5\n'


@in_loop
async def test_the_page_shows_order_nodes_and_what_is_pruned(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    assert browser, "no browser: apt-get install chromium"
    with Coordinator(tmp_path, config=FAST) as coordinator:
        port = coordinator.wait_line("event=web").rpartition("port=")[2]
        async with Node("node-a", coordinator.address) as a, Node("node-b", coordinator.address) as b:
            a.arrive(2**53 + 1, 1000, port="node-b/in", size=900 * 10**9)  # a browser's numbers end below
            b.arrive(4, 1200, port="node-b/in", size=400 * 10**9)
            await until(lambda: a.heard.pruned, "pruned")

            for request_id, met in ((2**53 + 1, True), (2, True), (3, True), (2, False)):
                a.link.judged(request_id, met)
            b.link.judged(3, True)
            await until(lambda: coordinator.status().attainment.missed == 1, "the ends")

            def status() -> bytes:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/status.json", timeout=200) as answer:
                    return answer.read()

            seen = json.loads(await asyncio.to_thread(status))
            assert [row["batch_id"] for row in seen["batches"]] == ["9007199254740993", "4"]
            assert (seen["attainment"]["met"], seen["attainment"]["missed"]) == (2, 1), "each request once"
            process = await asyncio.create_subprocess_exec(
                *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *(f"--user-data-dir={tmp_path}/browser", "--virtual-time-budget=2000"),
                *("--dump-dom", f"http://127.0.0.1:{port}/"),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            page = (await process.communicate())[0].decode()
        for word in (
            "9007199254740993",
            "node-a",
            "node-b",
            "batch 4",
            "node-b/in",
            "leader",
            "66.7 %",
            "in time since start, of 3",
        ):
            assert word in page, word


def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        coordinator = Coordinator(tmp_path, config=f'[coordinator]\nweb = "{address}"\n')
        assert coordinator.wait_end() == 1
        assert any(f"coordinator.web = {address}" in line for line in coordinator.lines), coordinator.lines
