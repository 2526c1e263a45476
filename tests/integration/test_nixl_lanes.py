"""NIXL's adapter with shim and daemon over RDMA: lanes of queue pairs of UCX, marked on the wire in both directions."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, SoftRoce
from tests.support.capture import Capture, capture
from tests.support.daemon import Daemon
from tests.support.fabric import marked_with
from tests.support.under_mfs import under_mfs
from tests.support.waiting import eventually
from tests.support.wheels import NIXL_VERSIONS, nixl_environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the wheels are for x86_64"),
]
DSCP = [48, 40, 34, 26, 18, 10, 9, 1]
PROGRAM = ROOT / "tests/integration/adapted_nixl.py"
SIZE = 4 << 20


def carried(wire: Capture, wire_class: int) -> int:
    return sum(count for (tos, _, _), count in wire.carried.items() if tos == DSCP[wire_class] << 2)


@pytest.mark.parametrize("version", NIXL_VERSIONS)
def test_each_class_has_queue_pairs_of_its_own_and_reads_have_the_responders(
    soft_roce: SoftRoce, folder: Path, version: str
) -> None:
    place = folder / "word"
    place.with_suffix(".on").touch()
    with Daemon(folder, marked_with(folder, DSCP)) as daemon, capture() as wire:
        command = under_mfs(daemon.socket, sys.executable, PROGRAM, place)
        output = soft_roce.run(*command, env=nixl_environment(version), timeout_s=200).stdout
        lanes = json.loads(output.splitlines()[-1])["lanes"]
        assert lanes == ["UCX_MFS3", "UCX_MFS7"], output
        for wire_class in (3, 7, 6):  # 6 is the program's own
            tos = DSCP[wire_class] << 2
            eventually(lambda tos=tos: wire.both_ways(tos, tos), f"class {wire_class} in both directions")
            assert carried(wire, wire_class) > SIZE, dict(wire.carried)  # a busy capture misses some
        grants = sum(c.granted_bytes for nic in daemon.status().nics for c in nic.classes)
        assert grants >= 12 * SIZE
        daemon.wait_clients(0)


def test_a_daemon_that_ends_in_the_middle_changes_nothing(soft_roce: SoftRoce, folder: Path) -> None:
    place = folder / "word"
    with Daemon(folder, marked_with(folder, DSCP), patient=False) as daemon:
        command = under_mfs(daemon.socket, sys.executable, PROGRAM, place)
        program = soft_roce.start(*command, env=nixl_environment())
        eventually(lambda: place.with_suffix(".half").exists() or program.poll() is not None, "the middle")
        daemon.process.kill()
        daemon.process.wait()
        place.with_suffix(".on").touch()
        output, _ = program.communicate(timeout=200)
        assert program.returncode == 0, output
        assert '"lanes": ["UCX_MFS3", "UCX_MFS7"]' in output
