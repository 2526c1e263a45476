"""A gateway in a separate process, and its client."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.ports import free_port
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]


class Front:
    """An address to which clients send requests."""

    def __init__(self, port: int, limit_s: float = 60.0) -> None:
        """limit_s: time limit for the answer to a request."""
        self.port, self.limit_s = port, limit_s
        self.url = f"http://127.0.0.1:{port}"

    def post(
        self, body: object, headers: dict[str, str] | None = None, path: str = "/v1/completions"
    ) -> tuple[int, dict[str, str], Any]:
        """Sends a request; returns status, headers, and the answer: JSON, or the text of a stream."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, content, headers or {})
        try:
            with urllib.request.urlopen(request, timeout=self.limit_s) as answer:
                return answer.status, dict(answer.headers), _read(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), _read(error.read())

    def get(self, path: str) -> str:
        return _text(self.url + path)

    def begin(self, body: object) -> http.client.HTTPConnection:
        """Sends a request and returns the connection, from which the answer may be read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps(body))
        return connection


class GatewayProcess(Front):
    def __init__(self, folder: Path, config: str) -> None:
        super().__init__(free_port())
        self.pages = f"http://127.0.0.1:{free_port()}"
        """URL of its own pages."""
        self.file, self.log = folder / f"gateway-{self.port}.toml", folder / f"gateway-{self.port}.log"
        shows = f'[metrics]\nlisten = "{self.pages.removeprefix("http://")}"\n'
        self.file.write_text(f'listen = "127.0.0.1:{self.port}"\n{config}\n{shows}')
        command = (sys.executable, "-m", "mfsd.cli.daemon", "--gateway", "--config", self.file)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stderr=log)

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(self.pages + "/status.json", timeout=5).status == 200)
        return False

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(_text(self.pages + "/status.json"))
        return found

    def metrics(self) -> str:
        return _text(self.pages + "/metrics")


def _text(url: str) -> str:
    return str(urllib.request.urlopen(url, timeout=20).read().decode())


def _read(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content.decode()


@contextlib.contextmanager
def gateway(folder: Path, config: str) -> Iterator[GatewayProcess]:
    made = GatewayProcess(folder, config)
    try:
        eventually(made.answers, "the gateway", pause_s=0.02)
        yield made
    finally:
        made.process.terminate()
        try:
            made.process.wait(20)
        except subprocess.TimeoutExpired:
            made.process.kill()
            made.process.wait()


def replicas(*urls: str, **each: object) -> str:
    """Returns tables of replicas a, b, c, ..., each with the same fields."""
    more = "".join(f"{name} = {json.dumps(value)}\n" for name, value in each.items())
    return "".join(f'[[replicas]]\nname = "{name}"\nurl = "{url}"\n{more}' for name, url in zip("abcdef", urls))  # noqa: B905
