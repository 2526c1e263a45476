"""The daemon dies, hangs and comes back in the middle of traffic; programs must not notice (faults 1, 2 and 3)."""

from __future__ import annotations

import json
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SoftRoce
from tests.soak.chaos import poison
from tests.support.daemon import Daemon
from tests.support.under_mfs import HOLD_EVERYTHING, build_program, under_mfs
from tests.support.waiting import eventually

# nothing here may end by max_hold: what is held must come free because the daemon is seen to be gone
CONFIG = HOLD_EVERYTHING + '[arbiter]\nmax_hold = "5s"\n'
ENDLESS = "1000000000"


@pytest.fixture
def stress(soft_roce: SoftRoce, tmp_path: Path) -> Path:
    return build_program("stress", tmp_path, "-libverbs", "-lpthread")


@pytest.fixture
def daemon(folder: Path) -> Iterator[Daemon]:
    with Daemon(folder, CONFIG) as daemon:
        yield daemon


def start(soft_roce: SoftRoce, daemon: Daemon, stress: Path, count: str) -> subprocess.Popen[str]:
    """The stress program, once it has been given permits."""
    process = soft_roce.start(*under_mfs(daemon.socket, stress, "--work-requests", count))
    eventually(lambda: any(c.permits > 100 for c in daemon.status().clients), "permits")
    return process


def assert_ends_well(process: subprocess.Popen[str], count: str) -> None:
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    lines = [line for line in output.splitlines() if line.startswith("{")]
    assert json.loads(lines[-1])["work_requests"] >= int(count)


def test_daemon_killed_in_the_middle(soft_roce: SoftRoce, daemon: Daemon, stress: Path) -> None:
    process = start(soft_roce, daemon, stress, "1000000")
    daemon.process.kill()
    assert_ends_well(process, "1000000")


def test_daemon_stopped_for_ever(soft_roce: SoftRoce, daemon: Daemon, stress: Path) -> None:
    process = start(soft_roce, daemon, stress, "1000000")
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        assert_ends_well(process, "1000000")
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    daemon.wait_clients(0)


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_daemon_stopped_and_continued_schedules_again(soft_roce: SoftRoce, daemon: Daemon, stress: Path) -> None:
    process = start(soft_roce, daemon, stress, ENDLESS)
    first = daemon.status().clients[0]
    pid = first.pid
    daemon.process.send_signal(signal.SIGSTOP)
    ticks = cpu_ticks(pid)
    eventually(lambda: cpu_ticks(pid) > ticks + 30, "300 ms of work without the daemon")
    daemon.process.send_signal(signal.SIGCONT)
    client = eventually(lambda: daemon.client(pid), "the client")
    # it went on without permits and keeps its session, or has attached anew
    assert client.bypassed_stale > 0 or client.client_id != first.client_id
    eventually(lambda: (c := daemon.client(pid)) and c.permits > client.permits + 100, "permits after SIGCONT")
    process.kill()
    process.wait()
    daemon.wait_clients(0)


def test_daemon_killed_and_restarted_schedules_again(
    soft_roce: SoftRoce, daemon: Daemon, stress: Path, folder: Path
) -> None:
    process = start(soft_roce, daemon, stress, ENDLESS)
    epoch = daemon.status().daemon.epoch
    daemon.process.kill()
    daemon.process.wait()
    with Daemon(folder, CONFIG) as restarted:
        assert restarted.status().daemon.epoch != epoch
        eventually(lambda: any(c.permits > 100 for c in restarted.status().clients), "permits of the new daemon")
        assert process.poll() is None
        process.kill()
        process.wait()
        restarted.wait_clients(0)


def test_a_poisoned_ring_is_given_up_and_its_program_passes_through(
    soft_roce: SoftRoce, daemon: Daemon, stress: Path
) -> None:
    other = start(soft_roce, daemon, stress, ENDLESS)
    process = soft_roce.start(*under_mfs(daemon.socket, stress, "--work-requests", "1500000"))
    eventually(lambda: (c := daemon.client(process.pid)) and c.permits > 100, "permits")
    first = daemon.client(process.pid)
    assert first is not None
    assert poison(process.pid, random.Random(1).randbytes(4096))
    # the program attaches again by itself, with a new ring: between two polls it may have
    eventually(
        lambda: (c := daemon.client(process.pid)) and (c.state == "detached" or c.client_id != first.client_id),
        "it is given up",
    )
    assert_ends_well(process, "1500000")
    permits = next(c.permits for c in daemon.status().clients if c.pid == other.pid)
    eventually(lambda: (c := daemon.client(other.pid)) and c.permits > permits + 100, "the other one is scheduled")


def test_clients_killed_anywhere_leave_nothing_behind(soft_roce: SoftRoce, daemon: Daemon, stress: Path) -> None:
    descriptors = daemon.descriptors()
    for _ in range(10):
        process = start(soft_roce, daemon, stress, ENDLESS)
        process.kill()
        process.wait()
        daemon.wait_clients(0)
    eventually(lambda: daemon.descriptors() == descriptors, "descriptors given back")
    for nic in daemon.status().nics:
        assert nic.in_flight_bytes == 0
        assert all(c.held_bytes == 0 and c.held_tasks == 0 and c.in_flight_bytes == 0 for c in nic.classes)
