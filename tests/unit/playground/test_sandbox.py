"""Namespaces of one's own: what runs in them leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mfsd.playground.sandbox import SandboxError, run_sandboxed

ROOT = Path(__file__).resolve().parents[3]


def possible() -> str:
    try:
        return "" if run_sandboxed(lambda: 0) == 0 else "the sandbox is broken"
    except SandboxError as error:
        return str(error)


pytestmark = pytest.mark.skipif(bool(possible()), reason=f"{possible()}")


def test_answers_what_the_function_answers() -> None:
    assert run_sandboxed(lambda: 7) == 7


def test_an_exception_is_shown_and_fails(capfd: pytest.CaptureFixture[str]) -> None:
    def raises() -> int:
        raise LookupError("such a thing")

    assert run_sandboxed(raises) == 1
    assert "such a thing" in capfd.readouterr().err


def test_network_processes_and_mounts_are_its_own() -> None:
    def poll() -> int:
        assert os.getpid() == 1 and os.geteuid() == 0
        subprocess.run(["ip", "link", "add", "name", "sandboxbr", "type", "bridge"], check=True)
        subprocess.run(["ip", "netns", "add", "sandboxed"], check=True)
        return 0

    assert run_sandboxed(poll) == 0
    assert "sandboxbr" not in subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
    assert "sandboxed" not in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout


LASTING_S = f"1000.{os.getpid()}"
"""Names the sleepers of this process: those of a failed run beside it are not ours."""
SCRIPT = """
import subprocess, sys
from mfsd.playground.sandbox import run_sandboxed

def wait():
    child = subprocess.Popen(["sleep", sys.argv[1]])
    try:
        print("up", flush=True)
        child.wait()
    finally:
        print("tidied", flush=True)
    return 0

sys.exit(run_sandboxed(wait))
"""


def sleepers() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == f"sleep\0{LASTING_S}\0".encode():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def start(script: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, LASTING_S]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


IN_A_FINALIZER = """
import subprocess, sys
from mfsd.playground.sandbox import run_sandboxed

class Slow:
    def __del__(self):
        print("up", flush=True)
        child.wait()

def wait():
    global child
    child = subprocess.Popen(["sleep", sys.argv[1]])
    try:
        Slow()
        child.wait()
    finally:
        print("tidied", flush=True)
    return 0

sys.exit(run_sandboxed(wait))
"""


MISSES_THE_FIRST = """
import signal, subprocess, sys
from mfsd.playground.sandbox import run_sandboxed

def wait():
    child = subprocess.Popen(["sleep", sys.argv[1]])
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        print("up", flush=True)
        child.wait()
    finally:
        print("tidied", flush=True)
    return 0

sys.exit(run_sandboxed(wait))
"""


@pytest.mark.parametrize(
    ("script", "number"),
    [
        pytest.param(SCRIPT, signal.SIGINT, id="interrupt"),
        pytest.param(SCRIPT, signal.SIGTERM, id="termination"),
        pytest.param(IN_A_FINALIZER, signal.SIGTERM, id="where Python drops what is raised"),
        # as one that comes between Python's look for signals and the system call in which it then waits
        pytest.param(MISSES_THE_FIRST, signal.SIGTERM, id="the first does not end the wait"),
    ],
)
def test_a_signal_tidies_up_and_exits_130(script: str, number: signal.Signals) -> None:
    program = start(script)
    assert program.stdout is not None and program.stdout.readline() == "up\n"
    program.send_signal(number)
    assert program.communicate(timeout=60)[0] == "tidied\n"
    assert program.returncode == 130
    assert not sleepers()


def test_nothing_outlives_a_kill() -> None:
    program = start(SCRIPT)
    assert program.stdout is not None and program.stdout.readline() == "up\n"
    program.kill()
    program.wait(20)
    assert program.stdout.read() == "", "the pipe ends when the last process of the sandbox has"
    assert not sleepers()


OUTSIDE = SCRIPT.replace(
    "sys.exit(run_sandboxed(wait))", 'code = run_sandboxed(wait)\nprint("after", code, flush=True)'
)


def test_a_terminal_that_is_closed_ends_it_as_an_interrupt_does() -> None:
    """It tells all of the session: the shell passes it on to each process of the job."""
    program = subprocess.Popen(
        [sys.executable, "-c", OUTSIDE, LASTING_S], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert program.stdout is not None and program.stdout.readline() == "up\n"
    os.killpg(program.pid, signal.SIGHUP)
    assert program.communicate(timeout=60)[0].split("\n")[-2] == "after 130"
    assert program.returncode == 0 and not sleepers()


def test_what_shall_outlive_its_terminal_does() -> None:
    command = ["nohup", sys.executable, "-c", OUTSIDE, LASTING_S]
    program = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None and program.stdout.readline() == "up\n"
    program.send_signal(signal.SIGHUP)
    program.terminate()
    assert program.communicate(timeout=60)[0] == "tidied\nafter 130\n"
