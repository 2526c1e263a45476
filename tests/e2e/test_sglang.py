"""The SGLang plugin in SGLang's own code, on a machine without a GPU: make e2e-vllm."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from mooncake_adapter.metadata import request_number
from tests.e2e.cluster import PYTHON, ROOT
from tests.e2e.test_connectors import NIXL, wheel  # noqa: F401

pytestmark = [
    pytest.mark.skipif("MFS_E2E" not in os.environ, reason="needs SGLang: make e2e-vllm"),
    pytest.mark.timeout(600),
]


def test_sglangs_own_code_is_hooked_by_its_own_loader(wheel: Path) -> None:  # noqa: F811
    path = os.pathsep.join([str(wheel), str(ROOT / "build/e2e-vllm/sglang"), str(NIXL)])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "MFS_SOCKET": "/nowhere/mfsd.sock",
        "SGLANG_PLUGINS": "mfs",
        "MFS_NIXL": "1",
        "UCX_TLS": "tcp",
        "NIXL_LOG_LEVEL": "ERROR",
    }
    program = ROOT / "tests/e2e/sglang_program.py"
    done = subprocess.run((PYTHON, program), env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    output = json.loads(done.stdout.splitlines()[-1])
    assert output["version"] == "0.5.23"
    assert output["adapted"], "the plugin has run"
    assert len(output["registered"]) == 4, "SGLang's own method has run, too"
    assert output["requests"] == [request_number("room-7")] * 4
    assert output["layers"] == [0, 1, 0, 1]
    assert min(output["deadlines"]) > 0
    assert output["other_page"] == 0
    assert "SGLang may have changed" not in done.stderr
    nixl, room = output["nixl"], request_number("room-7")
    assert nixl["arrived"], "SGLang's own NIXL manager has sent"
    assert nixl["lists"] == nixl["prepared"] == [[room, 0]], "as one message of the room"
    assert nixl["staged"] == [[room, 0]], "from memory that was the room's when it was sent"
    assert nixl["landed"]
