"""Traffic past the shim is seen in the port's counters: a daemon beside programs with and without the shim."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.ports import free_port
from mfsd.node.control import PortStatus
from tests.conftest import SoftRoce, wait_for_listener
from tests.support.daemon import Daemon
from tests.support.under_mfs import HOLD_EVERYTHING, under_mfs
from tests.support.waiting import eventually

RATE = 50_000_000
CONFIG = HOLD_EVERYTHING + '[counters]\ninterval = "20ms"\n[nic.mfs0]\nrate = "400mbit"\n'
PERFTEST = ("ib_write_bw", "-s", "65536", "-F", "-d", "mfs0")


@pytest.fixture
def daemon(soft_roce: SoftRoce, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """Inside the device's view of sysfs, as on a host that has it."""
    for name, value in soft_roce.environment().items():
        if os.environ.get(name) != value:
            monkeypatch.setenv(name, value)
    with Daemon(folder, CONFIG, launcher=soft_roce.argv(options=("--rate", "400mbit"))) as daemon:
        yield daemon


def port(daemon: Daemon) -> PortStatus | None:
    return next((nic.port for nic in daemon.status().nics if nic.name == "mfs0"), None)


def test_a_program_without_the_shim_is_seen_at_its_rate(soft_roce: SoftRoce, daemon: Daemon) -> None:
    number = str(free_port())
    server = soft_roce.start(*PERFTEST, "-D", "3", "-p", number)
    wait_for_listener(int(number), server)
    client = soft_roce.start(*PERFTEST, "-D", "3", "-p", number, "127.0.0.1")

    def near() -> bool:
        found = port(daemon)
        return found is not None and 0.8 * RATE < found.bypass_bytes_per_s < 1.2 * RATE

    eventually(near, "a bypass of about the rate of ib_write_bw")
    output, _ = client.communicate(timeout=60)
    assert client.returncode == 0, output
    eventually(lambda: (found := port(daemon)) is not None and found.bypass_bytes_per_s == 0, "no bypass after it")
    sent = re.search(r"^ 65536 +(\d+)", output, re.MULTILINE)
    assert sent is not None
    found = port(daemon)
    assert found is not None and sum(found.bypass_bytes.values()) == pytest.approx(int(sent[1]) * 65536, rel=0.35)
    assert set(found.bypass_bytes) <= {"0"}  # the program marks nothing
    assert found.incoming_pauses is None


def test_what_bypasses_is_shown_by_its_priority(soft_roce: SoftRoce, daemon: Daemon) -> None:
    """As a library marks that MFS does not see: DSCP 40 is priority 5 by default."""
    soft_roce.pair(*PERFTEST, "-n", "2000", f"--tclass={40 << 2}")

    def seen() -> bool:
        found = port(daemon)
        return found is not None and found.bypass_bytes.get("5", 0) > 0.5 * 2000 * 65536

    eventually(seen, "most of it in priority 5")


def test_a_program_with_the_shim_gives_none(soft_roce: SoftRoce, daemon: Daemon) -> None:
    soft_roce.pair(*under_mfs(daemon.socket, *PERFTEST, "-n", "2000"))
    nic = daemon.nic("mfs0")
    assert sum(c.sent_bytes for c in nic.classes) > 0.9 * 2000 * 65536  # the last may end with the program

    def incoming() -> bool:
        """What comes in was posted here, too, but a port cannot tell. Ports are read every so often."""
        seen = port(daemon)
        return seen is not None and sum(seen.incoming_bypass_bytes.values()) > 0.9 * 2000 * 65536

    eventually(incoming, "what comes in")
    seen = port(daemon)
    assert seen is not None and sum(seen.bypass_bytes.values()) < 0.02 * 2000 * 65536
