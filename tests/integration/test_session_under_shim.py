"""An engine under the preloaded shim: one session for the shim's work requests and the engine's own tasks."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.conftest import SoftRoce
from tests.support.daemon import Daemon
from tests.support.under_mfs import under_mfs
from tests.support.waiting import eventually

PACKAGES = Path("/usr/lib/python3/dist-packages")
PYVERBS = PACKAGES / f"pyverbs/device{sysconfig.get_config_var('EXT_SUFFIX')}"
"""python3-pyverbs is built for the distribution's own Python."""

PROGRAM = f"""
import sys
sys.path.append({str(PACKAGES)!r})
from pyverbs.device import Context, get_device_list
from mfsd.client import Flow, Request, Session, Stage
from tests.support.waiting import eventually

def say(*words): print(*words, flush=True)

session = Session.open(process="engine")
say("alone", session.scheduled)
sys.stdin.readline()
device = Context(name=get_device_list()[0].name.decode())
nic = session.nic(device.name)

def changed_over():  # by itself
    session.submit(1, stage=Stage.P2D, nic=nic).cancel()
    client = session._attachment.client()
    return client is not None and client.borrowed

eventually(changed_over, "the shim's session")
say("shared", session._attachment.client().borrowed)
with session.batch(5, layers=2, requests=[Request(1, flows=(Flow(Stage.P2D, "10.0.0.9", 3000, nic),))]) as batch:
    for _ in range(3):
        with session.submit(1000, stage=Stage.P2D, nic=nic, batch=batch, request_id=1) as task:
            assert task.wire_class is not None
    with session.context(stage=Stage.P2D, request_id=1, batch=batch), session.lane(2):
        pass
    with session.memory_range(1 << 20, 4096, stage=Stage.REUSE):
        pass
say("refused", session.refused)
sys.stdin.readline()
"""


@pytest.mark.skipif(not PYVERBS.exists(), reason="this Python has no pyverbs: python3-pyverbs is of the distribution's")
def test_one_session_for_both(soft_roce: SoftRoce, folder: Path) -> None:
    with Daemon(folder) as daemon:
        command = soft_roce.argv(*under_mfs(daemon.socket, sys.executable, "-c", PROGRAM))
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=soft_roce.environment()
        )
        soft_roce.started.append(process)
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "alone True\n"
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "shared True\n"
        assert process.stdout.readline() == "refused {}\n"
        (client,) = eventually(lambda: (len(found := daemon.status().clients) == 1 and found) or None)
        assert client.completes == 3
        process.stdin.write("end\n")
        process.stdin.flush()
        assert process.wait(100) == 0
