"""A node that drains: its daemon is told to end (SIGTERM) while NIXL's transfers are under way and held for permits."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mooncake_adapter.nixl_plugins import FOLDER
from tests.conftest import ROOT
from tests.support.daemon import Daemon
from tests.support.waiting import eventually
from tests.support.wheels import NIXL_VERSIONS, nixl_wheel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the wheels are for x86_64"),
]
PROGRAM = ROOT / "tests/integration/draining_nixl.py"
TRANSFERS = 16
SLOW = '[arbiter]\nstale_after = "10s"\nmax_hold = "5s"\n\n[nic."lo"]\nrate = "8mbit"\n'
"""What may be sent in advance is less than one transfer, and a hold is longer than the daemon lives."""


@pytest.mark.parametrize("adapted", [False, True], ids=["backend plugin", "adapter"])
@pytest.mark.parametrize("version", NIXL_VERSIONS)
def test_what_is_held_or_released_while_the_node_drains_is_neither_lost_nor_stuck(
    folder: Path, version: str, adapted: bool
) -> None:
    place = folder / "word"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MFS_")}
    with Daemon(folder, SLOW) as daemon:
        own = {"ADAPTED": "1", "MFS_NIXL": "1"} if adapted else {"NIXL_PLUGIN_DIR": str(FOLDER)}
        path = os.pathsep.join([str(nixl_wheel(version)), str(ROOT)])
        program = subprocess.Popen(
            [sys.executable, str(PROGRAM), "UCX" if adapted else "MFS", str(place)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **clean, **own, "UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo", "NIXL_LOG_LEVEL": "ERROR",
                "PYTHONPATH": path, "MFS_SOCKET": str(daemon.socket),
            },
        )  # fmt: skip

        def reached(what: str) -> None:
            file = place.with_suffix(what)
            eventually(lambda: file.exists() or program.poll() is not None, f"the program's {what}")
            assert program.poll() is None, program.communicate()

        reached(".ready")
        daemon.process.send_signal(signal.SIGSTOP)  # so that it permits nothing before it is told to end
        place.with_suffix(".go").touch()
        reached(".half")
        daemon.process.send_signal(signal.SIGTERM)
        daemon.process.send_signal(signal.SIGCONT)
        place.with_suffix(".on").touch()  # releases meet the daemon's end
        output, errors = program.communicate(timeout=100)
        assert program.returncode == 0, errors
        assert daemon.process.wait(60) == 0
    found = json.loads(output.splitlines()[-1])
    assert found["arrived"] == TRANSFERS // 2
    assert found["held"] > 0, found
    assert found["released"]["under way"] > 0, found
