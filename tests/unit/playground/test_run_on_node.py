"""A command in a node of the playground: its exit status, and the signals that are meant for it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ENDS = "import sys; sys.exit(7)"
WAITS = """
import signal, sys

def ended(number, _):
    print("ended by", number, flush=True)
    sys.exit(8)

for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, ended)
print("up", flush=True)
while True:
    signal.pause()
"""
WAITER = """
import os, sys
from mfsd.playground.run_on_node import run

sys.exit(run([sys.executable, "-c", sys.argv[1]], dict(os.environ)))
"""


def start(command: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WAITER, command], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_answers_the_commands_exit_status() -> None:
    assert start(ENDS).wait(60) == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_passes_on_what_would_end_it(number: signal.Signals) -> None:
    program = start(WAITS)
    assert program.stdout is not None and program.stdout.readline() == "up\n"
    program.send_signal(number)
    assert program.communicate(timeout=60)[0] == f"ended by {int(number)}\n"
    assert program.returncode == 8
