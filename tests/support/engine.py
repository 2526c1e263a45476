"""An engine process for tests: a separate program that uses mfsd.client, controlled line by line.

As a program it reads lines with a JSON list [verb, arguments] and answers each with a line of JSON. As a module it
starts such programs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[2]


class Engine:
    """A process with one session. Leaving the context ends it."""

    def __init__(self, socket: Path, nic: str, name: str = "engine") -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(socket), nic, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self._answer() == "attached"

    def __call__(self, verb: str, **arguments: object) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([verb, arguments]) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the engine ended with {self.process.wait(100)}"
        return json.loads(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(100)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class _Program:
    def __init__(self, socket: str, nic: str, name: str) -> None:
        from mfsd.client import Session

        self.session = Session.open(socket_path=socket, process=name)
        while not self.session.scheduled:  # the session retries by itself
            time.sleep(0.01)
        self.nic = self.session.nic(nic)
        self.tasks: dict[str, Any] = {}
        self.batches: dict[int, Any] = {}

    def batch(self, batch_id: int, layers: int, requests: list[dict[str, Any]], **more: int) -> bool:
        from mfsd.client import Flow, Request

        reported = [
            Request(**{**r, "flows": tuple(Flow(**{"nic": self.nic, **f}) for f in r.get("flows", ()))})
            for r in requests
        ]
        self.batches[batch_id] = self.session.batch(batch_id, layers=layers, requests=reported, **more)
        return self.batches[batch_id].slot is not None

    def layer(self, batch_id: int, n: int) -> None:
        self.batches[batch_id].layer(n)

    def end(self, batch_id: int) -> None:
        self.batches.pop(batch_id).end()

    def submit(self, task: str, size_bytes: int, stage: int, batch: int | None = None, **more: Any) -> None:
        self.tasks[task] = self.session.submit(
            size_bytes, stage=stage, nic=self.nic, batch=self.batches[batch] if batch is not None else None, **more
        )

    def ready(self) -> list[str]:
        return [name for name, task in self.tasks.items() if task.ready()]

    def wait(self, task: str) -> int:
        return int(self.tasks[task].wait(100))

    def complete(self, task: str) -> None:
        self.tasks.pop(task).complete()

    def pruned(self, request_id: int) -> bool:
        return bool(self.session.pruned(request_id))

    def waiting(self, requests: list[dict[str, Any]]) -> None:
        from mfsd.client import Flow, Waiting

        self.session.waiting(
            [
                Waiting(**{**r, "flows": tuple(Flow(**{"nic": self.nic, **f}) for f in r.get("flows", ()))})
                for r in requests
            ]
        )

    def watch(self, peers: list[str]) -> None:
        self.session.watch(peers, nic=self.nic)

    def fetch_ns(self, size_bytes: int, peer: str = "", deadline_ns: int = 0, **more: Any) -> int | None:
        return self.session.fetch_ns(size_bytes, peer, deadline_ns, nic=self.nic, **more)

    def outlook(self) -> dict[str, Any] | None:
        found = self.session.outlook()
        if found is None:
            return None
        return {
            "in": found.ports[self.nic, True]._asdict(),
            "out": found.ports[self.nic, False]._asdict(),
            "fars": {f"{peer.hex()} {incoming}": far.owed_ns for (peer, incoming), far in found.fars.items()},
            "pruned": sorted(found.pruned),
        }


if __name__ == "__main__":
    program = _Program(*sys.argv[1:])
    print(json.dumps("attached"), flush=True)
    for line in sys.stdin:
        verb, arguments = json.loads(line)
        print(json.dumps(getattr(program, verb)(**arguments)), flush=True)
