"""Unmodified programs with shim and daemon, every work request held until it is permitted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SoftRoce
from tests.support.daemon import Daemon
from tests.support.under_mfs import HOLD_EVERYTHING, build_program, under_mfs


@pytest.fixture
def daemon(folder: Path) -> Iterator[Daemon]:
    with Daemon(folder, HOLD_EVERYTHING) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


def permits(daemon: Daemon) -> int:
    return sum(c.grants for nic in daemon.status().nics for c in nic.classes)


def granted_bytes(daemon: Daemon) -> int:
    return sum(c.granted_bytes for nic in daemon.status().nics for c in nic.classes)


def assert_nothing_is_left(daemon: Daemon) -> None:
    daemon.wait_clients(0)
    for nic in daemon.status().nics:
        assert nic.in_flight_bytes == 0
        assert nic.unscheduled_in_flight_bytes == 0
        assert all(c.held_bytes == 0 and c.held_tasks == 0 and c.in_flight_bytes == 0 for c in nic.classes)


def test_devinfo(soft_roce: SoftRoce, daemon: Daemon) -> None:
    assert "PORT_ACTIVE" in soft_roce.run(*under_mfs(daemon.socket, "ibv_devinfo", "-v")).stdout


PINGPONG = ("ibv_rc_pingpong", "-d", "mfs0", "-g", "0", "-c")


@pytest.mark.parametrize("options", [(), ("-e",), ("-N",)], ids=["polling", "events", "builders"])
def test_rc_pingpong_with_checked_payload(soft_roce: SoftRoce, daemon: Daemon, options: tuple[str, ...]) -> None:
    for output in soft_roce.pair(*under_mfs(daemon.socket, *PINGPONG, *options)):
        assert "iters in" in output
        assert "invalid data" not in output
    assert permits(daemon) >= 2000  # a thousand messages each way
    assert_nothing_is_left(daemon)


PERFTEST = [
    ("ib_write_bw -s 65536 -n 2000", 2000 * 65536),
    ("ib_write_bw -s 2 -n 4800 -l 16", 4800 * 2),
    ("ib_read_bw -s 65536 -n 1000", 1000 * 65536),
    ("ib_send_bw -s 65536 -n 1000", 1000 * 65536),
    ("ib_send_bw -s 4096 -n 1000 -e", 1000 * 4096),
    ("ib_write_lat -s 64 -n 1000", 2 * 1000 * 64),
    ("ib_send_lat -s 64 -n 1000", 2 * 1000 * 64),
    ("ib_atomic_bw -A FETCH_AND_ADD -n 1000", 1000 * 8),
]


@pytest.mark.parametrize(("command", "least_bytes"), PERFTEST, ids=[command for command, _ in PERFTEST])
def test_perftest(soft_roce: SoftRoce, daemon: Daemon, command: str, least_bytes: int) -> None:
    for output in soft_roce.pair(*under_mfs(daemon.socket, *command.split(), "-F", "-d", "mfs0")):
        assert re.search(r"^ \d+ +\d+ ", output, re.MULTILINE), output
    assert granted_bytes(daemon) >= least_bytes
    assert_nothing_is_left(daemon)


@pytest.mark.parametrize("builders", [(), ("--extended",)], ids=["post_send", "builders"])
def test_a_million_work_requests_keep_their_promises(
    soft_roce: SoftRoce, daemon: Daemon, programs: Path, builders: tuple[str, ...]
) -> None:
    stress = build_program("stress", programs, "-libverbs", "-lpthread")
    count = "1000000" if not builders else "200000"
    output = soft_roce.run(*under_mfs(daemon.socket, stress, "--work-requests", count, *builders), timeout_s=200).stdout
    assert json.loads(output)["work_requests"] >= int(count)
    assert permits(daemon) > 0
    assert_nothing_is_left(daemon)


@pytest.mark.parametrize("children", ["--forks", "--execs"])
@pytest.mark.parametrize("builders", [(), ("--extended",)], ids=["post_send", "builders"])
def test_a_program_that_forks_while_its_work_requests_are_held(
    soft_roce: SoftRoce, daemon: Daemon, programs: Path, children: str, builders: tuple[str, ...]
) -> None:
    """After ibv_fork_init, with children that open the device anew, or that start a program and lack pages of the heap.
    Every program checks every byte and completion."""
    stress = build_program("stress", programs, "-libverbs", "-lpthread")
    options = ("--work-requests", "200000", children, "4", *builders)
    output = soft_roce.run(*under_mfs(daemon.socket, stress, *options), timeout_s=200).stdout
    *others, parent = (json.loads(line)["work_requests"] for line in output.splitlines())
    assert len(others) == 4 and min(others) >= 2000
    assert parent >= 200_000
    assert permits(daemon) > 0
    assert_nothing_is_left(daemon)


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_nothing_is_held_when_not_enforcing(soft_roce: SoftRoce, daemon: Daemon, programs: Path, mode: str) -> None:
    stress = build_program("stress", programs, "-libverbs", "-lpthread")
    soft_roce.run(*under_mfs(daemon.socket, stress, mode=mode))
    assert permits(daemon) == 0


def test_an_all_to_all_is_never_held_and_its_queue_pairs_are_reported_apart(
    soft_roce: SoftRoce, folder: Path, programs: Path
) -> None:
    """With the rules as shipped. The program reaches libibverbs by dlvsym, as NCCL does."""
    alltoall = build_program("alltoall", programs, "-ldl", source_folder="bench/programs")
    with Daemon(folder) as daemon:
        process = soft_roce.start(
            *under_mfs(daemon.socket, alltoall, "--ranks", "2", "--rounds", "1000000", "--gap-ms", "1")
        )
        clients = daemon.wait_clients(2)
        wanted = {"nccl-data": 1, "nccl-cts": 1}
        while [c.queue_pairs for c in clients] != [wanted, wanted] or not all(
            c.posted_bytes.get("collective") and c.posted_bytes.get("control") for c in clients
        ):
            assert process.poll() is None
            clients = daemon.wait_clients(2)
        assert permits(daemon) == 0
