"""A peer of NIXL's that is stopped, and killed: what goes to another one goes on, and nothing of it is left."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mfsd.node.control import ClientStatus
from mooncake_adapter.nixl_plugins import FOLDER
from tests.conftest import ROOT, SoftRoce
from tests.support.daemon import Daemon
from tests.support.under_mfs import under_mfs
from tests.support.waiting import eventually
from tests.support.wheels import nixl_wheel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the wheels are for x86_64"),
]
PROGRAM = ROOT / "tests/integration/stopped_nixl.py"
CONFIG = """
[arbiter]
stale_after = "10s"
max_hold = "5s"

[nic."lo"]
rate = "1gbit"

[nic."mfs0"]
rate = "1gbit"
"""
"""A destination's window is less than one write, so that what goes to the stopped one is held, and for as long as may
be set: far longer than one write to the other one takes."""


@pytest.mark.parametrize("end", ["continued", "killed"])
@pytest.mark.parametrize("transport", ["tcp", "rc_v"])
@pytest.mark.parametrize("adapted", [False, True], ids=["backend plugin", "adapter"])
def test_a_stopped_peer_takes_nothing_from_another(
    soft_roce: SoftRoce, folder: Path, transport: str, adapted: bool, end: str
) -> None:
    place = folder / "word"
    own = {"ADAPTED": "1", "MFS_NIXL": "1"} if adapted else {"NIXL_PLUGIN_DIR": str(FOLDER)}
    path = os.pathsep.join([str(nixl_wheel()), str(ROOT)])
    environment = {"UCX_TLS": transport, "NIXL_LOG_LEVEL": "FATAL", "PYTHONPATH": path, **own}
    command = [sys.executable, str(PROGRAM), "UCX" if adapted else "MFS", str(place), end]
    with Daemon(folder, CONFIG) as daemon:
        if transport == "tcp":
            clean = {name: value for name, value in os.environ.items() if not name.startswith("MFS_")}
            program = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**clean, **environment, "UCX_NET_DEVICES": "lo", "MFS_SOCKET": str(daemon.socket)},
            )
            soft_roce.started.append(program)  # ended with the test, whatever becomes of it
        else:
            program = soft_roce.start(*under_mfs(daemon.socket, *command), env=environment)

        def reached(what: str, stands: Callable[[ClientStatus], bool]) -> ClientStatus:
            """How the daemon sees the writer then, once it `stands` so."""
            file = place.with_suffix(what)
            eventually(lambda: file.exists() or program.poll() is not None, f"the program's {what}")
            assert program.poll() is None, program.communicate()
            return eventually(lambda: writer(daemon, stands), f"how the writer stands at {what}")

        # all has been posted when it continues; some is still held when it is killed
        half = reached(".half", lambda one: end == "killed" or one.held_bytes == 0)
        if end == "continued":
            assert half.permits + half.bypassed_hold == half.submits, f"of what was held some was dropped: {half}"
        place.with_suffix(".on").touch()
        rest = reached(".rest", lambda one: one.completes + one.cancels == one.submits)
        assert rest.held_bytes == rest.in_flight_bytes == rest.bypassed_stale == rest.bypassed_overflow == 0, rest
        for nic in daemon.status().nics:
            assert nic.in_flight_bytes == nic.incoming_in_flight_bytes == 0, nic
        place.with_suffix(".off").touch()
        output, _ = program.communicate(timeout=200)
        assert program.returncode == 0, output
        daemon.wait_clients(0)
    found = json.loads(output.splitlines()[-1])
    assert rest.completes <= found["arrived"], f"what failed was given back as arrived: {found}, {rest}"
    assert rest.submits == found["started"], "each asked once"
    if end == "continued":
        assert set(found["ends"]) == {"DONE"}, found


def writer(daemon: Daemon, stands: Callable[[ClientStatus], bool]) -> ClientStatus | None:
    (client,) = [one for one in daemon.status().clients if one.submits]
    return client if stands(client) else None
