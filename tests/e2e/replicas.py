"""Replicas of vLLM behind one gateway on loopback, one of which is killed while requests stream."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from bench.ports import free_port
from tests.e2e.cluster import MODEL, PYTHON, ROOT, START_S
from tests.support.waiting import eventually

NAMES = ("a", "b", "c")
TOKENS = 48
RECEIVED = re.compile(r"Received request cmpl-(demo-\d+)-0\b")


class Outcome(NamedTuple):
    number: int
    session: str
    status: int
    replica: str
    events: int
    """That arrived; one of a busy engine may carry several tokens."""
    end: str
    """"done", or the code of the error."""


class Engine(NamedTuple):
    name: str
    served: str = "tiny"
    """Its model's name."""
    model: Path = MODEL
    more: tuple[str, ...] = ()
    """Arguments."""


class Replicas:
    """The processes, and the gateway's address."""

    def __init__(self, folder: Path, engines: Sequence[Engine] = tuple(map(Engine, NAMES)), config: str = "") -> None:
        """config: of the gateway, beside its replicas."""
        self.folder, self.gateway_port, self.config = folder, free_port(), config
        self.pages = f"127.0.0.1:{free_port()}"
        """Where the gateway shows itself."""
        self.engines = {engine.name: engine for engine in engines}
        self.ports = {name: free_port() for name in self.engines}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        for name in self.engines:
            self._process(name, self.command(name))
        for name in self.engines:
            eventually(lambda name=name: self._answers(name, self.ports[name]), f"vLLM {name}", START_S, pause_s=0.2)
        self.start_gateway()
        eventually(self.all_up, "all replicas in the gateway", START_S, pause_s=0.2)

    def table(self, name: str) -> str:
        """Of the gateway's configuration."""
        return f'[[replicas]]\nname = "{name}"\nurl = "http://127.0.0.1:{self.ports[name]}"\n'

    def start_gateway(self) -> None:
        config = self.folder / "gateway.toml"
        tables = "".join(map(self.table, self.engines))
        shows = f'[metrics]\nlisten = "{self.pages}"\n'
        config.write_text(f'listen = "127.0.0.1:{self.gateway_port}"\n{tables}{self.config}{shows}')
        self._process("gateway", [sys.executable, "-m", "mfsd.cli.daemon", "--gateway", "--config", str(config)])
        eventually(lambda: self._answers("gateway", self.gateway_port), "the gateway", START_S, pause_s=0.2)

    def command(self, name: str) -> list[str]:
        engine = self.engines[name]
        return [
            *(str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(engine.model)),
            *("--served-model-name", engine.served, "--dtype", "bfloat16", "--enforce-eager"),
            *("--host", "127.0.0.1", "--port", str(self.ports[name]), "--max-model-len", "1024"),
            *("--max-num-seqs", "16", "--enable-log-requests", *engine.more),
        ]

    def _process(self, name: str, command: list[str]) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # each instance would take the first cores for its own
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "MFS_SERVE_STATUS": str(self.status_folder),
        }
        with self.log(name).open("wb") as log:
            self.processes[name] = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    @property
    def status_folder(self) -> Path:
        """Where engines with MfsScheduler write their status."""
        return self.folder / "status"

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _answers(self, name: str, port: int) -> bool:
        assert self.processes[name].poll() is None, f"{name} ended: {self.log(name)}"
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5).status == 200)
        return False

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.shown("/status.json"))
        return found

    def shown(self, path: str) -> str:
        """By the gateway, of itself."""
        with urllib.request.urlopen(f"http://{self.pages}{path}", timeout=20) as answer:
            return str(answer.read().decode())

    def up(self) -> set[str]:
        return {replica["name"] for replica in self.status()["replicas"] if replica["healthy"]}

    def all_up(self) -> bool:
        return self.up() == set(self.engines)

    def kill(self, name: str) -> None:
        """With all of its processes."""
        os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait()

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in reversed(self.processes.values()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def received(self) -> dict[str, Counter[str]]:
        """By replica, how often each request has reached it, by vLLM's own log."""
        return {name: Counter(RECEIVED.findall(self.log(name).read_text(errors="replace"))) for name in self.engines}

    def stream(
        self, number: int, session: str, first: threading.Semaphore | None = None, model: str = "tiny"
    ) -> Outcome:
        """One request through the gateway; `first` is released as its first token is there."""
        connection = http.client.HTTPConnection("127.0.0.1", self.gateway_port, timeout=300)
        body = {
            "model": model,
            "prompt": [3 + (number * 7 + i) % 900 for i in range(32)],
            "stream": True,
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        }
        headers = {"x-request-id": f"demo-{number}", "x-session-id": session, "content-type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        events, end = 0, "no end"
        for line in answer:
            if line.startswith(b"data: [DONE]"):
                end = "done"
            elif line.startswith(b"data: "):
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    end = event["error"]["code"]
                else:
                    events += 1
                    if first is not None and events == 1:
                        first.release()
        connection.close()
        return Outcome(number, session, answer.status, answer.headers.get("x-mfs-replica", ""), events, end)


@contextlib.contextmanager
def running(made: Replicas) -> Iterator[Replicas]:
    try:
        made.start()
        yield made
    finally:
        made.stop()


def with_a_death(made: Replicas, killed: str, before: int, after: int) -> list[Outcome]:
    """`before` requests at a time, each of a session of its own; once all of them have a first token the replica is
    killed, and `after` more of these sessions come."""
    first = threading.Semaphore(0)
    with ThreadPoolExecutor(before + after) as pool:
        streams = [pool.submit(made.stream, number, f"chat-{number}", first) for number in range(before)]
        for _ in streams:
            while not first.acquire(timeout=1):
                for failed in (stream for stream in streams if stream.done()):
                    failed.result()
        made.kill(killed)
        streams += [pool.submit(made.stream, before + number, f"chat-{number % before}") for number in range(after)]
        return [stream.result() for stream in streams]
