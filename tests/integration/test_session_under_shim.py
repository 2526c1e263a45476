"""An engine under the preloaded shim: one session for the shim's work requests and the engine's own tasks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import SoftRoce
from tests.support.daemon import Daemon
from tests.support.under_mfs import under_mfs
from tests.support.waiting import eventually

PROGRAM = """
import ctypes, sys
from mfsd.client import Flow, Request, Session, Stage
from tests.support.waiting import eventually

def say(*words): print(*words, flush=True)

session = Session.open(process="engine")
say("alone", session.scheduled)
sys.stdin.readline()
verbs = ctypes.CDLL("libibverbs.so.1")
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
verbs.ibv_open_device.restype = ctypes.c_void_p
verbs.ibv_open_device.argtypes = [ctypes.c_void_p]
number = ctypes.c_int()
devices = verbs.ibv_get_device_list(ctypes.byref(number))
verbs.ibv_get_device_name.restype = ctypes.c_char_p
verbs.ibv_get_device_name.argtypes = [ctypes.c_void_p]
assert verbs.ibv_open_device(devices[0])
name = verbs.ibv_get_device_name(devices[0]).decode()
nic = session.nic(name)

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
