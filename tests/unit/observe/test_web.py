"""The coordinator's page, in a real browser: everything is shown, nothing foreign is executed or fetched."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from mfsd.observe.web import PAGE, serve

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
STATUS: dict[str, Any] = {
    "address": "coord-1:7400",
    "leads": True,
    "leader": "coord-1:7400",
    "term": 12,
    "epoch": 3456,
    "uptime_ns": 86_400_000_000_000,
    "batches_active": 2,
    "requests_active": 9,
    "drop_budget": 3,
    "ports": 2,
    "attainment": {"met": 970, "missed": 30, "recent_met": 9, "recent_missed": 1, "window_ns": 300_000_000_000},
    "batches": [
        {
            "batch_id": "18446744073709551615",
            "unit": "unit-a",
            "requests": 4,
            "red_left_ns": 250_000_000,
            "nodes": ["a", "b"],
        },
        {"batch_id": "7", "unit": HOSTILE, "requests": 5, "red_left_ns": -20_000_000, "nodes": ["a"]},
    ],
    "pruned": [{"batch_id": "7", "request_id": "99", "for_batch": "7", "port": "10.0.0.1/in"}],
    "nodes": [
        {
            "node": "a",
            "version": "0.1.0",
            "connected": True,
            "batches": 2,
            "lag_ns": 300_000,
            "silent_ns": 1000,
            "epochs_behind": 0,
            "ports": [{"name": "10.0.0.1/in", "rate_bytes_per_s": 50_000_000_000, "rho": 0.93}],
        },
        {
            "node": "b",
            "version": "0.1.0",
            "connected": False,
            "batches": 0,
            "lag_ns": 0,
            "silent_ns": 7_000_000_000,
            "epochs_behind": 4,
            "ports": [{"name": "10.0.0.2/in", "rate_bytes_per_s": 50_000_000_000, "rho": 0.1}],
        },
    ],
}


async def browse(status: Any, folder: Path) -> str:
    """The page's elements after its scripts have run."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    assert browser, "no browser: apt-get install chromium"
    with serve("127.0.0.1", 0, lambda: json.dumps(status).encode()) as port:
        process = await asyncio.create_subprocess_exec(
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *(f"--user-data-dir={folder}", "--virtual-time-budget=2000", "--dump-dom", f"http://127.0.0.1:{port}/"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        output, _ = await process.communicate()
    return output.decode()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return asyncio.run(browse(STATUS, tmp_path_factory.mktemp("browser")))


def text_of(page: str, table: str) -> list[str]:
    (body,) = re.findall(rf'<table id="{table}">.*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    return [
        " | ".join(re.sub(r"<[^>]*>", "", c) for c in re.findall(r"<td.*?</td>", row))
        for row in body.split("</tr>")[:-1]
    ]


def test_the_order_is_shown_with_whole_numbers(page: str) -> None:
    first, second = text_of(page, "batches")
    assert first.startswith("1 | 18446744073709551615 | unit-a | a, b | 4 | 250.0 ms")
    assert "20.0 ms late" in second


def test_pruned_requests_nodes_and_ports_are_shown(page: str) -> None:
    assert text_of(page, "pruned") == ["99 | 7 | its own batch | 10.0.0.1/in"]
    assert [row.split(" | ")[:2] for row in text_of(page, "nodes")] == [["a", "connected"], ["b", "gone"]]
    assert [row.split(" | ")[3] for row in text_of(page, "ports")] == ["93 %", "10 %"], "the busiest first"
    assert "leader coord-1:7400" in page and "1 (1 gone)" in page


def tiles(page: str) -> dict[str, str]:
    return {name: value for value, name in re.findall(r'class="tile"><b>(.*?)</b><span>(.*?)</span>', page)}


def test_attainment_is_shown_of_late_and_since_the_start(page: str) -> None:
    shown = tiles(page)
    assert shown["in time, last 5 min, of 10"] == "90 %"
    assert shown["in time since start, of 1000"] == "97 %"


def test_before_a_request_has_ended_there_is_no_share(tmp_path: Path) -> None:
    none = {"met": 0, "missed": 0, "recent_met": 0, "recent_missed": 0, "window_ns": 300_000_000_000}
    shown = tiles(asyncio.run(browse({**STATUS, "attainment": none}, tmp_path)))
    assert shown["in time since start"] == "-"


def test_what_programs_say_is_text(page: str) -> None:
    assert "owned" not in re.findall(r"<title>(.*?)</title>", page)[0]
    assert "&lt;img src=x" in page and "<img" not in page


def test_an_idle_cluster_says_what_to_do(tmp_path: Path) -> None:
    idle = {**STATUS, "batches": [], "pruned": [], "nodes": [], "batches_active": 0}
    page = asyncio.run(browse(idle, tmp_path))
    assert text_of(page, "batches") == ["no batch is active"]
    assert "name this coordinator to them in [cluster]" in text_of(page, "nodes")[0]


def test_nothing_is_fetched_from_elsewhere() -> None:
    assert not re.findall(r"https?://|url\(|@import|src=", PAGE.read_text())


def test_only_reading_is_served() -> None:
    async def ask() -> dict[str, int]:
        found = {}
        with serve("127.0.0.1", 0, lambda: b"{}") as port:
            for method, path in (("GET", "/"), ("GET", "/status.json"), ("GET", "/etc/passwd"), ("POST", "/")):
                request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
                try:
                    answer = await asyncio.to_thread(urllib.request.urlopen, request, timeout=100)
                    found[f"{method} {path}"] = answer.status
                    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
                except urllib.error.HTTPError as error:
                    found[f"{method} {path}"] = error.code
        return found

    assert asyncio.run(ask()) == {"GET /": 200, "GET /status.json": 200, "GET /etc/passwd": 404, "POST /": 405}
