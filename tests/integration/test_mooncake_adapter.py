"""The adapter with shim, daemon and soft RoCE: lanes of queue pairs, marked on the wire in both directions."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.ports import free_port
from tests.conftest import ROOT, SoftRoce
from tests.support.capture import capture
from tests.support.daemon import Daemon
from tests.support.fabric import marked_with
from tests.support.under_mfs import under_mfs
from tests.support.waiting import eventually
from tests.support.wheels import mooncake_environment

DSCP = [48, 40, 34, 26, 18, 10, 9, 1]


def test_stages_travel_in_lanes_of_their_class(soft_roce: SoftRoce, folder: Path, tmp_path: Path) -> None:
    program = ROOT / "tests/integration/adapted_writes.py"
    with Daemon(folder, marked_with(folder, DSCP)) as daemon, capture() as wire:
        command = under_mfs(daemon.socket, sys.executable, program)
        output = soft_roce.run(*command, env=mooncake_environment(tmp_path), timeout_s=120).stdout
        lanes = json.loads(output.splitlines()[-1])["lanes"]
        assert lanes == [3, 7], output  # two layers ahead, and the scavenger
        for wire_class in lanes:
            tos = DSCP[wire_class] << 2
            eventually(lambda tos=tos: wire.both_ways(tos, tos), f"class {wire_class} on both directions")
            carried = sum(count for (seen, _, _), count in wire.carried.items() if seen == tos)
            assert carried > 1 << 17, f"class {wire_class} carried {carried} bytes"  # a busy capture misses some
        granted = sum(c.granted_bytes for nic in daemon.status().nics for c in nic.classes)
        assert granted >= 3 << 20
        assert all(client.bypassed_hold == 0 for client in daemon.status().clients)
        daemon.wait_clients(0)


def test_store_writes_travel_in_the_scavengers_lane(soft_roce: SoftRoce, folder: Path, tmp_path: Path) -> None:
    """By a second client of a real master, without a segment of its own; what was written is read by the first."""
    program = ROOT / "tests/integration/adapted_store.py"
    with Daemon(folder, marked_with(folder, DSCP)) as daemon, capture() as wire:
        command = under_mfs(daemon.socket, sys.executable, program, str(free_port()), str(free_port()))
        output = soft_roce.run(*command, env=mooncake_environment(tmp_path), timeout_s=180).stdout
        assert json.loads(output.splitlines()[-1])["lane"], output
        tos = DSCP[7] << 2
        carried = sum(count for (seen, _, _), count in wire.carried.items() if seen == tos)
        assert carried > 4 << 20, (
            f"the scavenger's class carried {carried} bytes of 8 MiB"
        )  # a busy capture misses some
        granted = [c.granted_bytes for c in daemon.status().nics[0].classes]
        assert granted[7] >= 8 << 20, granted
        daemon.wait_clients(0)
