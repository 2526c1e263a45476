"""The arbiter's threads: priority, processors, and the heartbeats while a turn takes long (`arbiter_thread.c`)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mfsd._native import Arbiter
from tests.support.native import CorePrograms, core
from tests.support.priority import may

STALE_AFTER_MS = 200
"""As the program tells its client."""


@pytest.fixture(scope="module")
def program(core_programs: CorePrograms) -> Path:
    return core_programs.build("arbiter_thread", sources=core("arbiter/arbiter.c"))


def output(program: Path, *words: str) -> list[list[str]]:
    done = subprocess.run([program, *words], capture_output=True, text=True, check=True, timeout=60)
    return [line.split() for line in done.stdout.splitlines()]


def test_where_it_may_spin_it_is_no_real_time_thread(program: Path) -> None:
    (_, scheduler), _, (_, spin_ns) = output(program, "priority", "64")
    assert (int(scheduler), int(spin_ns)) == (os.SCHED_OTHER, 50_000)


def test_where_cores_are_few_it_never_spins_and_is_one(program: Path) -> None:
    (_, scheduler), _, (_, spin_ns) = output(program, "priority", "4")
    assert int(spin_ns) == 0
    if may(os.SCHED_RR):
        assert int(scheduler) == os.SCHED_RR


def test_both_threads_stay_on_the_processors_that_they_are_given(program: Path) -> None:
    cpu = str(max(os.sched_getaffinity(0)))
    assert output(program, "affinity", cpu) == [[cpu], [cpu]]


def test_processors_that_it_may_not_use_are_refused() -> None:
    absent = min(set(range(1024)) - os.sched_getaffinity(0))
    arbiter = Arbiter(cpus=[absent])
    with arbiter, pytest.raises(OSError, match="Invalid argument"):
        arbiter.start()
    with pytest.raises(ValueError, match="cpus: 1024"):
        Arbiter(cpus=[1024])


def test_a_long_turn_is_not_taken_for_death(program: Path) -> None:
    """As long as the turn, without the thread that beats for it."""
    ((_, oldest_ms),) = output(program, "late", "450")
    assert int(oldest_ms) < 450


def test_a_turn_that_does_not_end_is(program: Path) -> None:
    ((_, oldest_ms),) = output(program, "late", "1200")
    assert int(oldest_ms) > STALE_AFTER_MS
