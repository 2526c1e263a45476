"""Heartbeats while a real-time arbiter keeps its core (`arbiter_thread.c`).

Nothing runs beside this test: where other programs keep the second core busy, the kernel may take longer than such a
turn to move the other thread there."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.native import CorePrograms, core


def test_real_time_turns_that_keep_their_core_are_not_taken_for_death(core_programs: CorePrograms) -> None:
    """The thread that beats for them has ordinary priority: it must find the other core, also while the kernel stops
    the real-time thread for the rest of a second."""
    program = core_programs.build("arbiter_thread", sources=core("arbiter/arbiter.c"))
    done = subprocess.run([program, "busy", "450"], capture_output=True, text=True, timeout=60)
    if done.returncode == 2:
        pytest.skip("needs the right to real-time priority, and two processors")
    assert done.returncode == 0, done.stderr
    ages_ms = [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert len(ages_ms) == 3
    assert max(ages_ms) < 450
