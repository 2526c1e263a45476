"""Every command of the documents is run as it stands, in a sandbox where nothing outside can be touched.

There are the default sockets and ports, coordinators by the names in the pages, and stand-ins for engines that need a
GPU. What another test runs with more care is named here, so that no command is left out unseen.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mfsd.playground.network import ip
from mfsd.playground.sandbox import SandboxError, run_sandboxed
from tests.support.cluster import Process
from tests.unit.docs.test_commands import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
MS_BIND = 0x1000
NAMES = ("coord-1", "coord-2", "etcd-1", "etcd-2", "etcd-3", "decode-7")
STAND_INS = ("vllm", "torchrun", "ib_write_bw", "python3")
"""Programs that the pages put under mfs-run and that need a GPU, a NIC or a peer."""
ELSEWHERE = {
    "mfsctl playground": "tests/integration/test_playground.py",
    "mfsctl top": "tests/integration/test_top_screen.py",
    "mfsctl explain": "tests/integration/test_node_contexts.py",
    "mfsctl flows --cluster": "tests/integration/test_coordinator_page.py",
    "mfsctl flows": "tests/integration/test_cli_output.py",
    "mfsctl status --request": "tests/integration/test_cli_output.py",
    "mfsctl host": "tests/integration/test_fabric_host.py",
    "mfsctl fabric": "tests/integration/test_fabric_probe.py",
    "mfsctl switch diff": "tests/unit/fabric/test_diff.py",
}
DOCTOR_ENDS = {0, 1, 4}
"""What it finds depends on the machine."""
NO_ENGINE = 3
"""mfsctl serve's, where no engine plans its steps by MFS: one takes vLLM (tests/e2e/test_scheduler_serves.py)."""


def missing() -> str:
    try:
        return "" if run_sandboxed(lambda: 0) == 0 else "the sandbox is broken"
    except SandboxError as error:
        return str(error)


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def elsewhere(line: str) -> bool:
    return any(line.startswith(beginning) for beginning in ELSEWHERE)


def serves(line: str) -> bool:
    return line.startswith("mfsd") and not {"--check-config", "--print-default-config"} & set(line.split())


def shell(line: str, expected: set[int]) -> None:
    """Runs it as a shell would, without what follows a pipe."""
    result = subprocess.run(["sh", "-c", line.split(" | ")[0]], capture_output=True, text=True, timeout=120)
    assert result.returncode in expected, f"{line}: exit {result.returncode}: {result.stdout}{result.stderr}"
    assert "Traceback" not in result.stderr, f"{line}: {result.stderr}"


def furnish(folder: Path) -> None:
    """Loopback, the pages' host names, the programs, the stand-ins, the pages' files, and requests to learn from."""
    ip("link", "set", "dev", "lo", "up")
    hosts = folder / "hosts"
    hosts.write_text("".join(f"127.0.0.1 {name}\n" for name in ("localhost", *NAMES)))
    assert ctypes.CDLL(None).mount(bytes(hosts), b"/etc/hosts", None, ctypes.c_ulong(MS_BIND), None) == 0
    for name in STAND_INS:
        program = folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text('#!/bin/sh\ncase "$LD_PRELOAD" in *libmfs_shim.so*) ;; *) exit 1 ;; esac\n')
        program.chmod(0o755)
    os.environ["PATH"] = os.pathsep.join([str(folder / "bin"), str(BIN), os.environ["PATH"]])
    os.environ["RUNTIME"] = str(folder)
    (folder / "mfsd.toml").write_text("")
    (folder / "gateway.toml").write_text('[[replicas]]\nurl = "http://127.0.0.1:8001"\n')
    rows = (
        {"session_id": number // 4, "timestamp": number, "input_length": 100 * number, "output_length": number % 90}
        for number in range(400)
    )
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.chdir(folder)


def run_all(folder: Path) -> int:
    furnish(folder)
    lines = list(dict.fromkeys(re.sub(r" \.\.\.", "", line) for _, line in COMMANDS if not elsewhere(line)))
    for line in filter(serves, lines):
        with Process(*shlex.split(os.path.expandvars(line))) as server:
            server.wait_line("event=ready")
            server.process.terminate()
            assert server.wait_end() == 0, f"{line}: {server.lines}"
    with (
        Process("mfsd", "--coordinator") as coordinator,
        Process("mfsd", "--config", "mfsd.toml") as daemon,
        Process("mfsd", "--gateway", "--config", "gateway.toml") as gateway,
    ):
        coordinator.wait_line("event=leads")
        gateway.wait_line("event=ready")
        daemon.wait_line("event=ready")
        for line in lines:
            if line.startswith("mfs-soft-roce") and "ib_write_bw" in line:
                line = line.replace("-- ib", "-- mfs-run -- ib")  # the stand-in asks for the library
            if not serves(line):
                asks_an_engine = line.startswith("mfsctl serve") and not line.startswith("mfsctl serve queue")
                ends = {NO_ENGINE} if asks_an_engine else {0}  # the daemon itself answers what queues
                shell(line, DOCTOR_ENDS if line.startswith("mfsctl doctor") else ends)
    return 0


@pytest.mark.slow
def test_every_command_runs_as_it_stands(folder: Path) -> None:
    """In a process of its own: one that has used gRPC, as other tests here do, must not fork twice."""
    command = (sys.executable, "-c", f"from {__name__} import main; main()", str(folder))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]


def main() -> None:
    sys.exit(run_sandboxed(lambda: run_all(Path(sys.argv[1]))))


def test_commands_that_others_run_are_in_the_pages() -> None:
    for beginning, test in ELSEWHERE.items():
        assert any(line.startswith(beginning) for _, line in COMMANDS), beginning
        words = [f'"{word}"' for word in beginning.split()[1:]]
        text = (ROOT / test).read_text()
        assert all(word in text or word.strip('"') in text for word in words), f"{test} does not run {beginning}"
