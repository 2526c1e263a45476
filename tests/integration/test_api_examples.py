"""The examples of docs/api.md, run as they stand with and without a daemon."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemon import Daemon

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/api.md").read_text()
CFLAGS = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/csrc/include"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def run(command: list[str], socket: Path) -> str:
    environment = {**os.environ, "MFS_SOCKET": str(socket), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    (source,) = blocks("c")
    (tmp_path / "example.c").write_text(source)
    clients = map(str, sorted((ROOT / "csrc/client").glob("*.c")))
    program = tmp_path / "example"
    subprocess.run(["cc", *CFLAGS, str(tmp_path / "example.c"), *clients, "-o", str(program)], check=True)
    return program


def test_with_a_daemon(folder: Path, compiled: Path) -> None:
    first, known, second, capi = blocks("python")
    with Daemon(folder) as daemon:
        assert run([sys.executable, "-c", first], daemon.socket).splitlines()[-1] == "scheduled"
        run([sys.executable, "-c", known], daemon.socket)
        run([sys.executable, "-c", second], daemon.socket)
        assert re.fullmatch(r"class [0-6]\n", run([sys.executable, "-c", capi], daemon.socket))
        output = run([str(compiled)], daemon.socket)
        assert re.fullmatch(r"class [0-6]\n", output)
        assert {c.process for c in daemon.status().clients} <= {"my-engine", "my-scheduler"}
        assert sum(t.completes for t in daemon.status().totals if t.process == "my-engine") == 5
        daemon.wait_line("why=detached", 5)


def test_without_one(folder: Path, compiled: Path) -> None:
    first, known, second, capi = blocks("python")
    nowhere = folder / "none.sock"
    assert "no daemon" in run([sys.executable, "-c", first], nowhere)
    assert run([sys.executable, "-c", known], nowhere) == ""
    run([sys.executable, "-c", second], nowhere)
    unscheduled = subprocess.run(
        [sys.executable, "-c", capi], env={**os.environ, "MFS_SOCKET": str(nowhere)}, capture_output=True, text=True
    )
    assert unscheduled.stderr.startswith("unscheduled: no daemon")
    assert run([str(compiled)], nowhere).startswith("unscheduled: no daemon")
