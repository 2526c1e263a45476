"""An engine that a gateway puts to sleep frees the GPU's memory and answers as before when it wakes.

It needs a GPU with nothing else on it, and MFS_GPU_PYTHON: a Python with vLLM for CUDA, transformers and tokenizers. On
a CPU vLLM's /sleep frees nothing; the protocol alone is tested there (tests/e2e/test_cluster.py).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.ports import free_port
from tests.conftest import ROOT
from tests.gpu.conftest import gpu_missing
from tests.support.gateway import Front, GatewayProcess, gateway
from tests.support.waiting import eventually

PYTHON = os.environ.get("MFS_GPU_PYTHON", "")
SHARE = 0.2
"""Of the GPU's memory, which vLLM takes for the model and its KV."""
ON_GPU = ("--enable-sleep-mode", "--gpu-memory-utilization", str(SHARE))
START_S = 600.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(gpu_missing() is not None, reason=str(gpu_missing())),
    pytest.mark.skipif(not PYTHON, reason="no MFS_GPU_PYTHON: a Python with vLLM for CUDA"),
]


def memory_mib(what: str) -> int:
    """used or total, of the first GPU."""
    command = ("nvidia-smi", "--id=0", f"--query-gpu=memory.{what}", "--format=csv,noheader,nounits")
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def config(model: Path, port: int) -> str:
    command = [
        *("env", "VLLM_SERVER_DEV_MODE=1", "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1"),
        *(PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", "1024", "--enforce-eager", *ON_GPU),
    ]
    fields: dict[str, object] = {"url": f"http://127.0.0.1:{port}", "name": "a", "models": ["tiny"]}
    fields |= {"command": command, "sleep": "vllm", "weights_bytes": 1_000_000_000}
    table = "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
    return f"[[replicas]]\n{table}[residency]\nhost_memory_bytes = 1_000_000_000\nidle_s = 2\n"


def answer(front: Front) -> list[int]:
    body = {"model": "tiny", "prompt": list(range(3, 103)), "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    status, _, found = front.post({**body, "return_token_ids": True}, {"content-type": "application/json"})
    assert status == 200, found
    tokens: list[int] = found["choices"][0]["token_ids"]
    return tokens


def stage(front: GatewayProcess) -> Any:
    return front.status()["replicas"][0]["stage"]


def test_an_engine_that_sleeps_frees_its_memory_and_wakes(tmp_path: Path) -> None:
    model = tmp_path / "model"
    subprocess.run((PYTHON, ROOT / "tests/e2e/model.py", model), check=True, capture_output=True)
    with gateway(tmp_path, config(model, free_port())) as front:
        front.limit_s = START_S
        tokens = answer(front)
        running_mib = memory_mib("used")
        eventually(lambda: "event=engine-sleeps" in front.log.read_text(), "it sleeps", 120, pause_s=0.2)
        asleep_mib = memory_mib("used")
        assert stage(front) == "sleeps"
        assert running_mib - asleep_mib > 0.7 * SHARE * memory_mib("total")
        assert answer(front) == tokens and stage(front) == "runs"
        assert memory_mib("used") > asleep_mib
        assert front.log.read_text().count("event=engine-starts") == 1
    print(json.dumps({"running_mib": running_mib, "asleep_mib": asleep_mib}))
