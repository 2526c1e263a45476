"""LMCache's own P2P, P/D and server channels over NIXL under MFS, on a machine without a GPU: make e2e-nixl.

Run by that target and by e2e-vllm, which install what is needed (4 GB); skipped otherwise.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mfsd.node.control import RequestsReply, RequestsRequest, StatusReply
from mfsd.node.control_client import ask
from mfsd.policy.types import Stage
from mooncake_adapter.metadata import request_number
from tests.e2e.cluster import DSCP, PYTHON, ROOT
from tests.e2e.test_nixl import NIXL, TRANSPORTS
from tests.support.daemon import Daemon
from tests.support.fabric import marked_with
from tests.support.waiting import eventually

LMCACHE = ROOT / "build/e2e-vllm/lmcache"
pytestmark = [
    pytest.mark.skipif("MFS_E2E" not in os.environ, reason="needs LMCache, torch and vLLM: make e2e-nixl"),
    pytest.mark.timeout(1500),
]
BATCH_BYTES = 3 * 512 << 10
"""Three chunks, which LMCache moves by one handle."""
LOADING = request_number("chat-7")


@dataclass
class Run:
    """What the program printed, and what its daemon knew afterwards."""

    found: dict[str, Any]
    status: StatusReply
    requests: RequestsReply


@functools.cache
def ran(how: str, transport: str) -> Run:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MFS_")}
    with tempfile.TemporaryDirectory(prefix="mfs-e2e-", dir="/tmp") as name:
        folder = Path(name)
        with Daemon(folder, marked_with(folder, DSCP) if transport == "rdma" else "") as daemon:
            environment = {
                **clean,
                "PYTHONPATH": os.pathsep.join(map(str, (ROOT, LMCACHE, NIXL))),
                "MFS_SOCKET": str(daemon.socket),
                "MFS_NIXL": "1",
                "UCX_TLS": TRANSPORTS[transport],
                "NIXL_LOG_LEVEL": "ERROR",
                "LMCACHE_TRACK_USAGE": "false",
                "HF_HUB_OFFLINE": "1",
            }
            program = (PYTHON, ROOT / "tests/e2e/lmcache_program.py", how)
            device = (sys.executable, "-m", "mfsd.soft_roce.launcher", "--address", "127.0.0.1", "--")
            shim = (sys.executable, "-m", "nccl_shim.run", "--socket", daemon.socket, "--")
            command = (*device, *shim, *program) if transport == "rdma" else program
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800)
            assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
            eventually(lambda: not daemon.status().clients, "the end of its session")
            requests = ask(daemon.control, RequestsRequest())
            assert isinstance(requests, RequestsReply)
            return Run(json.loads(done.stdout.splitlines()[-1]), daemon.status(), requests)


@pytest.fixture(params=[("log", "tcp"), ("quiet", "tcp"), ("log", "rdma")], ids=" ".join)
def run(request: pytest.FixtureRequest) -> Run:
    return ran(*request.param)


@pytest.mark.parametrize("transport", ["tcp", "rdma"])
def test_what_lmcaches_own_backends_move_has_its_stage_and_request(transport: str) -> None:
    """Of each kind two rounds."""
    load, move = [Stage.REUSE, LOADING, BATCH_BYTES], [Stage.BACKGROUND, 0, BATCH_BYTES]
    hand_over, fetch = [Stage.P2D, 0, BATCH_BYTES], [Stage.REUSE, 0, BATCH_BYTES]
    assert {kind: one["messages"] for kind, one in ran("log", transport).found.items()} == {
        "p2p": [load, move] * 2,
        "pd": [hand_over, fetch] * 2,
        "pd_async": [hand_over] * 2,
        "server": [fetch] * 2,
    }


def test_every_byte_is_permitted_in_its_direction(run: Run) -> None:
    classes = [c for nic in run.status.nics for c in nic.classes]
    out_bytes, in_bytes = (sum(one[way] for one in run.found.values()) for way in ("out_bytes", "in_bytes"))
    assert sum(c.granted_bytes for c in classes) == out_bytes + in_bytes
    assert sum(c.sent_bytes for c in classes) == out_bytes
    assert sum(c.received_bytes for c in classes) == in_bytes


def test_a_load_from_a_peer_is_the_request_that_waits_for_it(run: Run) -> None:
    (request,) = run.requests.requests
    assert request.request_id == LOADING
    assert request.completed_bytes == 2 * BATCH_BYTES
    assert {one.stage for one in request.stages} == {"reuse"}
