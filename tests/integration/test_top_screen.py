"""`mfsctl top` by what is on the screen of a terminal, beside a real daemon."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from mfsd._native import Client, Stage
from tests.support.daemon import Daemon
from tests.support.terminal import Terminal

SIZES = [(80, 24), (200, 50)]


def top(daemon: Daemon, size: tuple[int, int]) -> Terminal:
    command = [sys.executable, "-m", "mfsd.cli.ctl", "--socket", str(daemon.socket), "top", "--interval", "0.2"]
    return Terminal(command, *size)


@pytest.mark.parametrize("size", SIZES)
def test_head_tables_and_keys_are_on_the_screen(folder: Path, size: tuple[int, int]) -> None:
    with (
        Daemon(folder) as daemon,
        Client.attach(str(daemon.socket), process="first", timeout_ms=100_000) as first,
        Client.attach(str(daemon.socket), process="second", timeout_ms=100_000) as second,
        top(daemon, size) as terminal,
    ):
        # As an engine (which knows no GUID) and the library under a verbs program name the same device.
        assert first.nic("mfs0", 0, 125_000_000) == second.nic("mfs0", 7, 125_000_000)
        drawn = terminal.wait(lambda text: text.count("mfs0") == 8 and "Quit" in text, "the classes and the keys")
        lines = drawn.splitlines()
        assert "enforce" in lines[0] and "up " in lines[0] and str(daemon.process.pid) in lines[0]
        assert str(daemon.socket) in lines[1]
        assert "1 Classes" in lines[2] and "6 Requests" in lines[2]
        for key in ("Sort", "Reverse", "Filter", "Pause", "Help", "Quit"):
            assert key in lines[-1], lines[-1]
        terminal.press("3")
        terminal.wait(lambda text: "first" in text and "second" in text and "FAILED OPEN" in text, "the programs")
        terminal.press("/")
        terminal.wait(lambda text: "show rows with this text" in text.splitlines()[-3], "the filter's box")
        terminal.press("seco")
        terminal.wait(lambda text: "seco" in text.splitlines()[-3] and "first" not in text, "its rows")
        terminal.press("\r")
        terminal.wait(
            lambda text: "second" in text and "first" not in text and "seco" not in text.splitlines()[-3], "it"
        )
        terminal.press("\x1b")
        terminal.wait(lambda text: "first" in text, "all rows")
        terminal.press("?")
        terminal.wait(lambda text: "IN FLIGHT  bytes permitted" in text and "Any key closes" in text, "the help")
        terminal.press("x")
        terminal.wait(lambda text: "Any key closes" not in text and "second" in text, "the table")
        first.submit(1000, stage=Stage.P2D, nic=0, request_id=4711)
        terminal.press("6")
        terminal.wait(lambda text: "4711" in text, "the requests, which are asked for when they are seen")
        terminal.press("q")
        assert terminal.wait_end() == 0
        assert "Traceback" not in terminal.raw.decode(errors="replace")


@pytest.mark.parametrize("size", SIZES)
def test_a_daemon_that_is_gone_is_seen_and_ctrl_c_leaves(folder: Path, size: tuple[int, int]) -> None:
    with Daemon(folder) as daemon, top(daemon, size) as terminal:
        terminal.wait(lambda text: "enforce" in text.splitlines()[0], "the mode")
        daemon.process.send_signal(signal.SIGTERM)
        daemon.wait_end()
        terminal.wait(lambda text: "no mfsd at" in text.splitlines()[0], "that it is gone")
        terminal.press("\x03")
        assert terminal.wait_end() == 0
        assert "ctrl+q" not in terminal.raw.decode(errors="replace").lower()
