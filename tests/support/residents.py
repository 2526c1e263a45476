"""Stand-ins of engines that a gateway starts itself."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from bench.ports import free_port
from tests.support.gateway import GatewayProcess
from tests.support.openai_engine import StandIn

FAST = "[state]\npoll_ms = 50\n"
ENGINE = "tests.support.openai_engine"


class Resident(StandIn):
    """A stand-in that the gateway starts; it notes its processes."""

    def __init__(self, folder: Path, model: str, before: str = "") -> None:
        self.port, self.model, self.pids_file = free_port(), model, folder / f"{model}.pids"
        self.url = f"http://127.0.0.1:{self.port}"
        start = f"echo $$ >>{self.pids_file}; {before} exec {sys.executable} -m {ENGINE} {self.port}"
        self.command = ["sh", "-c", start]

    def table(self, **more: object) -> str:
        fields = {"name": self.model, "url": self.url, "models": [self.model], "command": self.command, **more}
        return "[[replicas]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())

    def pids(self) -> list[int]:
        return [int(line) for line in self.pids_file.read_text().split()] if self.pids_file.exists() else []


def lives(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def body(model: str, **more: object) -> dict[str, Any]:
    return {"model": model, "prompt": "one two three", **more}


def stages(front: GatewayProcess) -> dict[str, str]:
    return {replica["name"]: replica["stage"] for replica in front.status()["replicas"]}
