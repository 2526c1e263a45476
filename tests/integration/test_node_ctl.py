"""mfsctl against a real daemon."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mfsd._native import Client
from mfsd.cli.commands.completion import PROGRAMS
from mfsd.node.control import ModeRequest, ReloadRequest, Request, RulesRequest
from mfsd.node.control_client import Refused, ask
from mfsd.node.control_server import CONNECTIONS_MAX
from tests.support.daemon import Daemon
from tests.support.forked import Forked
from tests.support.terminal import Terminal
from tests.support.waiting import eventually


def mfsctl(path: Path | None, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    where = ["--socket", str(path)] if path else []
    return subprocess.run(
        [sys.executable, "-m", "mfsd.cli.ctl", *where, *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "COLUMNS": "80", **environment},
    )


def test_status_for_people_fits_80_columns_and_for_programs_is_json(folder: Path) -> None:
    with (
        Daemon(folder) as daemon,
        Client.attach(str(daemon.socket), process="a-process-with-a-long-name", timeout_ms=100_000) as client,
    ):
        client.nic("soft0", 7, 12_500_000_000)
        command = [sys.executable, "-m", "mfsd.cli.ctl", "--socket", str(daemon.socket), "status"]
        with Terminal(command, 80, 24) as terminal:
            text = terminal.wait(lambda text: "a-process" in text, "the programs")
        assert sum("soft0" in line or "active" in line for line in text.splitlines()) == 2, "a row is a line"
        for part in ("enforce", "soft0", "100 Gbit/s", str(os.getpid()), "a-process", "active"):
            assert part in text, text
        found = json.loads(mfsctl(None, "status", "--json", MFS_SOCKET=str(daemon.socket)).stdout)
        assert found["daemon"]["pid"] == daemon.process.pid
        assert found["nics"][0]["rate_bytes_per_s"] == 12_500_000_000
        assert len(found["nics"][0]["classes"]) == 8
        assert found["clients"][0]["process"] == "a-process-with-a-long-name"


def test_an_idle_daemon_says_how_to_start(folder: Path) -> None:
    with Daemon(folder) as daemon:
        assert "No program is attached; start one with mfs-run." in mfsctl(daemon.socket, "status").stdout


def test_watching_prints_one_object_a_line_until_it_is_interrupted(folder: Path) -> None:
    with Daemon(folder) as daemon:
        watching = subprocess.Popen(
            [
                *(sys.executable, "-m", "mfsd.cli.ctl", "--socket", str(daemon.socket)),
                *("status", "--json", "--watch", "--interval", "0.1"),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert watching.stdout is not None
        uptimes = [json.loads(watching.stdout.readline())["daemon"]["uptime_s"] for _ in range(3)]
        assert uptimes == sorted(set(uptimes))
        watching.send_signal(2)
        assert watching.wait(100) == 0
        watching.stdout.close()


def test_the_mode_is_switched_while_running(folder: Path) -> None:
    with Daemon(folder, patient=False) as daemon, Client.attach(str(daemon.socket), timeout_ms=100_000) as client:
        assert client.mode() == 2
        assert mfsctl(daemon.socket, "mode", "observe").stdout == "mode: enforce -> observe\n"
        assert (client.mode(), daemon.status().daemon.mode) == (1, "observe")
        assert mfsctl(daemon.socket, "mode", "observe").stdout == "mode: observe\n"
        # A reload that does not speak of the mode leaves an operator's switch alone.
        daemon.config_file.write_text('log_level = "debug"\n')
        assert mfsctl(daemon.socket, "reload").stdout == f"{daemon.config_file}: log_level changed\n"
        assert client.mode() == 1


def test_reload_answers_what_came_of_it(folder: Path) -> None:
    with Daemon(folder, patient=False) as daemon:
        daemon.config_file.write_text('mode = "observe"\n[arbiter]\nquiet = "1ms"\n')
        assert mfsctl(daemon.socket, "reload").stdout == (
            f"{daemon.config_file}: mode changed\nrestart mfsd for: arbiter.quiet\n"
        )
        daemon.config_file.write_text("mode = 1\n")
        result = mfsctl(daemon.socket, "reload")
        assert result.returncode == 1
        assert result.stderr == (
            f"mfsctl: the old configuration stays in force: {daemon.config_file}: mode = 1: "
            'must be one of "off", "observe", "enforce"\n'
        )


def test_rules_show_what_is_in_force(folder: Path) -> None:
    config = '[[rule]]\nlibrary = "libuct_ib"\npeer = "10.0.0.0/8"\naction = "hold"\nstage = "p2d"\ndscp = 26\n'
    with Daemon(folder, config) as daemon:
        rules = json.loads(mfsctl(daemon.socket, "rules", "--json").stdout)
        assert rules[0] == {
            "source": "configuration",
            "library": "libuct_ib",
            "process": "",
            "peer": "10.0.0.0/8",
            "role": "any",
            "action": "hold",
            "stage": "p2d",
            "dscp": 26,
            "set_role": "any",
            "communicator": "",
        }
        assert {r["source"] for r in rules[1:]} == {"built-in"}
        text = mfsctl(daemon.socket, "rules").stdout
        assert "libuct_ib" in text and "engine.so" in text and max(map(len, text.splitlines())) <= 80


def test_no_daemon_is_one_line_and_an_exit_code_of_its_own(folder: Path) -> None:
    for command in (["status"], ["rules"], ["mode", "observe"], ["reload"], ["status", "--json"]):
        result = mfsctl(folder / "mfsd.sock", *command)
        assert result.returncode == 3
        assert result.stderr == (
            f"mfsctl: no mfsd at {folder}-control/mfsd.sock: start it (systemctl start mfsd), "
            "or name its socket with --socket or MFS_SOCKET; "
            "if mfsd.toml sets socket.control, that one with --control or MFS_CONTROL\n"
        )


def test_the_attach_socket_answers_no_questions(folder: Path) -> None:
    """Nor does the place beside it, where the control socket was once: the key that moved it is named."""
    with Daemon(folder) as daemon:
        asked = mfsctl(None, "--control", str(daemon.socket), "mode", "observe")
        assert asked.returncode == 3
        assert (
            "programs attach here; mfsctl asks at socket.control" in asked.stderr
            and str(daemon.control) in asked.stderr
        )
        former = mfsctl(None, "--control", f"{daemon.socket}.ctl", "mode", "observe")
        assert former.returncode == 3 and "socket.control" in former.stderr
        assert daemon.status().daemon.mode == "enforce"


def test_a_control_socket_elsewhere_is_found_by_its_name(folder: Path) -> None:
    elsewhere = folder / "elsewhere" / "ask.sock"
    with Daemon(folder, f'[socket]\ncontrol = "{elsewhere}"\n') as daemon:
        assert mfsctl(daemon.socket, "rules").returncode == 3
        for result in (
            mfsctl(None, "--control", str(elsewhere), "rules"),
            mfsctl(None, "rules", MFS_CONTROL=str(elsewhere)),
        ):
            assert result.returncode == 0, result.stderr
        moved = json.loads(mfsctl(None, "--control", str(elsewhere), "status", "--json").stdout)["daemon"]["control"]
        assert moved == str(elsewhere)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_others_may_look_but_not_change(folder: Path) -> None:
    def try_everything() -> list[str]:
        return [outcome(r) for r in (RulesRequest(), ModeRequest(mode="observe"), ReloadRequest())]

    def outcome(request: Request) -> str:
        try:
            return type(ask(daemon.control, request)).__name__
        except Refused as error:
            return error.code

    def crowd() -> int:
        for _ in range(100):
            crowding.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            crowding[-1].connect(str(daemon.control))
        return len(crowding)

    crowding: list[socket.socket] = []
    with Daemon(folder, '[socket]\nmode = "0666"\n') as daemon:
        before = daemon.descriptors()
        with Forked(try_everything, uid=65534) as child:
            assert child.result == ["RulesReply", "denied", "denied"]
        assert daemon.status().daemon.mode == "enforce"
        with contextlib.ExitStack() as crowds:
            for n in range(6):
                crowds.enter_context(Forked(crowd, uid=60_000 + n))
            # less what the daemon may still have had open when `before` was counted
            eventually(lambda: daemon.descriptors() >= before + CONNECTIONS_MAX - 2, "the daemon being full")
            assert mfsctl(daemon.socket, "mode", "observe").returncode == 0, "root always gets in"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(("program", "word"), [(p, "--ver") for p in PROGRAMS] + [("mfsctl", "stat")])
def test_completion_scripts_ask_the_program(shell: str, program: str, word: str) -> None:
    result = mfsctl(None, "completion", shell, "--program", program)
    assert result.returncode == 0
    (variable,) = set(re.findall(r"\b_\w+_COMPLETE\b", result.stdout))
    asked = subprocess.run(
        [str(Path(sys.executable).parent / program)],
        env={
            **os.environ,
            variable: f"{shell}_complete",
            "COMP_WORDS": f"{program} {word}",
            "COMP_CWORD": word if shell == "fish" else "1",
        },
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert word in asked.stdout and asked.returncode == 0, asked.stdout + asked.stderr


def test_watching_on_a_terminal_outlives_a_restart(folder: Path) -> None:
    terminal, other_end = pty.openpty()
    shown = bytearray()

    def shows(text: bytes) -> bool:
        while select.select([terminal], [], [], 0)[0]:
            shown.extend(os.read(terminal, 65536))
        return text in shown

    with Daemon(folder):
        watching = subprocess.Popen(
            [
                *(sys.executable, "-m", "mfsd.cli.ctl", "--socket", str(folder / "run" / "mfsd.sock")),
                *("status", "--watch", "--interval", "0.1"),
            ],
            stdin=other_end,
            stdout=other_end,
            stderr=other_end,
            env={**os.environ, "TERM": "xterm"},
        )
        eventually(lambda: shows(b"No program is attached"), "the status")
    eventually(lambda: shows(b"no mfsd at"), "the reason")
    shown.clear()
    with Daemon(folder):
        eventually(lambda: shows(b"No program is attached"), "the status of the next daemon")
        watching.send_signal(signal.SIGINT)
        assert watching.wait(100) == 0
    os.close(terminal)
    os.close(other_end)
