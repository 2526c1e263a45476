"""A real Envoy in a separate process, which asks the gateway's endpoint picker for the endpoint of each request."""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.envoy import FULL, command, configuration
from bench.ports import free_port
from tests.support.gateway import Front
from tests.support.waiting import eventually


class EnvoyProcess(Front):
    def __init__(
        self, folder: Path, picker: int, engines: Sequence[int], mode: dict[str, str], names_served: bool
    ) -> None:
        super().__init__(free_port())
        self.admin = free_port()
        file, self.log = folder / f"envoy-{self.port}.json", folder / f"envoy-{self.port}.log"
        file.write_text(json.dumps(configuration(self.port, self.admin, picker, engines, mode, names_served)))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command(file), stderr=log)

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/ready", timeout=5).status == 200)
        return False


@contextlib.contextmanager
def envoy(
    folder: Path,
    picker: int,
    engines: Sequence[int],
    mode: dict[str, str] | None = None,
    names_served: bool = True,
) -> Iterator[EnvoyProcess]:
    made = EnvoyProcess(folder, picker, engines, mode or FULL, names_served)
    try:
        eventually(made.answers, "Envoy", pause_s=0.02)
        yield made
    finally:
        made.process.kill()
        made.process.wait()
