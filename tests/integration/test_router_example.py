"""The example of docs/coordinator.md, a scorer for pairs of workers, as it stands, with and without a coordinator."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bench.ports import free_port
from mfsd.client import Stage
from tests.support.cluster import Coordinator
from tests.support.daemon import Daemon
from tests.support.engine import Engine
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/coordinator.md").read_text()
CONFIG = '[coordinator]\nweb = "127.0.0.1:0"\n'
NODE = """
[nic."slow"]
rate = "8mbit"
address = "{address}"
[cluster]
node = "{node}"
"""
BUSY, FREE, DECODE = "10.7.0.1", "10.7.0.2", "10.7.0.3"
MB = 10**6
HOUR_MS = 3_600_000


def source() -> str:
    (found,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def pairs(url: str, prefills: list[str], decodes: list[str], **constants: float) -> Any:
    """The example's scorer. `constants` are in the place of the page's, which a busy machine does not keep."""
    made: dict[str, Any] = {"__name__": "router"}
    exec(compile(source(), "docs/coordinator.md", "exec"), made)
    made.update(constants)
    return made["Pairs"](url, prefills, decodes)


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, Engine]]:
    """A coordinator that knows three nodes with a NIC of 1 MB/s each; its address, and an engine on the first."""
    with Coordinator(folder, config=CONFIG) as coordinator:
        url = f"http://127.0.0.1:{coordinator.wait_line('event=web').rpartition('port=')[2]}"
        daemons = []
        try:
            for number, address in enumerate((BUSY, FREE, DECODE)):
                beside = folder / str(number)
                beside.mkdir()
                config = NODE.format(address=address, node=f"node-{number}")
                daemons.append(Daemon(beside, config, "--coordinator-address", coordinator.address).__enter__())
            eventually(lambda: len(coordinator.status().nodes) == 3, "all nodes")
            with Engine(daemons[0].socket, "slow", "prefill") as prefill:
                yield url, prefill
        finally:
            for daemon in daemons:
                daemon.__exit__(None, None, None)


def test_it_goes_round_what_a_port_owes_and_in_turn_where_all_are_in_time(folder: Path) -> None:
    with cluster(folder) as (url, prefill):
        router = pairs(url, [BUSY, FREE], [DECODE], TIMEOUT_S=30.0)
        idle = [router.pick(1000 * MB, HOUR_MS) for _ in range(4)]
        assert idle == [((BUSY, DECODE), 0), ((FREE, DECODE), 0)] * 2, "in time everywhere: in turn"
        flows = [{"stage": Stage.P2D, "peer": "10.7.0.9", "size_bytes": 3000 * MB}]
        due_ns = time.monotonic_ns() + 3600 * 10**9
        prefill("batch", batch_id=1, layers=1, requests=[{"request_id": 7, "deadline_ns": due_ns, "flows": flows}])
        eventually(lambda: not ask(url, BUSY, HOUR_MS + 100_000)["in_time"], "what the port owes")
        assert [router.pick(1000 * MB, HOUR_MS + 100_000) for _ in range(3)] == [((FREE, DECODE), 0)] * 3
        again = [router.pick(1000 * MB, HOUR_MS / 2)[0] for _ in range(2)]
        assert sorted(again) == [(BUSY, DECODE), (FREE, DECODE)], "what is due later does not go before it"
        late = router.pick(5000 * MB, HOUR_MS + 100_000)
        assert late == ((FREE, DECODE), 5000 * 10**9), "nowhere in time: where it comes first"
        patient = source().replace("TIMEOUT_S = 0.05", "TIMEOUT_S = 30")
        line = [sys.executable, "-c", patient, url, f"{BUSY},{FREE}", DECODE, str(1000 * MB), str(HOUR_MS + 100_000)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0 and done.stdout.startswith(f"('{FREE}', '{DECODE}')"), done
        unknown = pairs(url, ["10.7.0.77", FREE], [DECODE], TIMEOUT_S=30.0)
        assert [unknown.pick(MB, HOUR_MS) for _ in range(2)] == [(("10.7.0.77", DECODE), None), ((FREE, DECODE), None)]


def ask(url: str, source_address: str, left_ms: float) -> Any:
    asked = pairs(url, [source_address], [DECODE]).ask
    return asked({"from": source_address, "to": DECODE, "bytes": 1000 * MB, "deadline_ms": left_ms}, 30.0)


WORKERS = ["a", "b"], ["x", "y", "z"]


def turns(router: Any) -> list[Any]:
    found = [router.pick(MB, 500) for _ in range(6)]
    assert len({pair for pair, _ in found}) == 6, "each pair once"
    return [score for _, score in found]


def test_in_turn_where_no_coordinator_is() -> None:
    assert turns(pairs(f"http://127.0.0.1:{free_port()}", *WORKERS)) == [None] * 6


def test_one_that_does_not_answer_is_waited_for_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        router = pairs(f"http://127.0.0.1:{silent.getsockname()[1]}", *WORKERS, PAUSE_S=1000.0)
        begun_s = time.monotonic()
        assert turns(router) == [None] * 6
        assert time.monotonic() - begun_s < 5
        silent.settimeout(10)
        silent.accept()[0].close()
        silent.settimeout(0)
        with pytest.raises(BlockingIOError):
            silent.accept()


@pytest.mark.parametrize("ttl_ms, scores", [(10_000.0, [0] * 6), (1e-6, [None] * 6)])
def test_answers_that_are_too_old_are_not_believed(ttl_ms: float, scores: list[int | None]) -> None:
    body = json.dumps({"bytes_ahead": 0, "time_ns": 5, "in_time": True, "ttl_ms": ttl_ms}).encode()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            with contextlib.suppress(OSError):  # who asked waits no longer
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            assert turns(pairs(f"http://127.0.0.1:{server.server_port}", *WORKERS, TIMEOUT_S=30.0)) == scores
        finally:
            server.shutdown()
            thread.join()
