"""MfsScheduler in a real vLLM: the names that it uses, and tokens that are those of vLLM's own scheduler."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import MODEL, PYTHON, ROOT

pytestmark = [
    pytest.mark.skipif("MFS_E2E" not in os.environ, reason="needs vLLM: make e2e-vllm"),
    pytest.mark.timeout(900),
]


@functools.cache
def ran(mode: str, work: str = "spread", v2: bool = False) -> dict[str, Any]:
    folder = Path(os.environ.get("TMPDIR", "/tmp"))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((*((str(ROOT / "tests/e2e/triton_interpreted"),) if v2 else ()), str(ROOT))),
        "MFS_SERVE_STATUS": str(folder / "mfs-e2e-serve"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        **({"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"} if v2 else {}),
    }
    command: list[str | Path] = [PYTHON, ROOT / "tests/e2e/scheduler_program.py", mode, MODEL, work]
    with tempfile.TemporaryDirectory(prefix="mfs-e2e-store-", dir=folder) as store:
        environment["MFS_E2E_STORE"] = store
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**answer, "log": done.stdout + done.stderr}


def test_vllm_has_every_name_that_is_used() -> None:
    answer = ran("contract")
    assert {name: answer[name] for name in answer if name != "log"} == {
        "scheduler": [],
        "methods": {},
        "request": [],
        "cache": [],
        "fields": [],
        "members": [],
        "queue": [],
    }


def test_tokens_are_those_of_vllms_own_scheduler() -> None:
    answer = ran("mfs")
    assert answer["base"] == ["MfsScheduler", "AsyncScheduler"]
    assert answer["tokens"] == ran("plain")["tokens"]
    assert answer["plans"] > 24
    assert (answer["failed"], answer["left"]) == (0, 0)
    assert answer["tiers"] == {"default": [10, 240]}
    print(json.dumps({"mfs_share_of_steps": round(answer["mfs"] / answer["steps"], 4), "plans": answer["plans"]}))


def test_pauses_and_cuts_change_no_token() -> None:
    answer = ran("paused")
    assert answer["paused"] > 20 and answer["cut"] > 20
    assert (answer["ran"], answer["long"], answer["failed"]) == (0, 0, 0)
    assert answer["tokens"] == ran("plain")["tokens"]


def test_pauses_and_cuts_change_no_token_with_the_v2_model_runner() -> None:
    answer = ran("paused", v2=True)
    assert answer["v2"]
    assert answer["paused"] > 20 and answer["cut"] > 20
    assert (answer["ran"], answer["long"]) == (0, 0)
    assert answer["tokens"] == ran("plain")["tokens"]


def test_cached_prefixes_are_in_the_plans_and_change_no_token() -> None:
    answer = ran("cached", "shared")
    assert answer["tokens"] == ran("plain", "shared")["tokens"]
    assert answer["plans"] > 24 and (answer["failed"], answer["left"]) == (0, 0)
    assert answer["hits"] > 0 and answer["planned_cached"] > 0
    assert answer["may_load"] == 0


def test_what_a_connector_has_is_in_the_plans_and_changes_no_token() -> None:
    answer = ran("stored", "stored")
    assert answer["hits"] > 3000, "of the second round"
    assert answer["may_load"] > 0 and answer["planned_cached"] > 0
    assert (answer["failed"], answer["left"]) == (0, 0)
    assert answer["tokens"] == ran("plain", "stored")["tokens"]


def test_the_victim_of_full_memory_is_what_the_plan_wants_least() -> None:
    answer = ran("pressure", "growing")
    assert answer["victims"] > 0
    assert (answer["wrong"], answer["failed"], answer["left"]) == (0, 0, 0)
    assert answer["tokens"] == ran("plain", "growing")["tokens"]


def test_nothing_is_left_of_requests_that_are_aborted() -> None:
    answer = ran("abort")
    assert (answer["aborted"], answer["left"], answer["failed"]) == (6, 0, 0)
    assert answer["tokens"] == ran("plain")["tokens"][::2]


def test_vllms_priorities_decide_where_it_is_started_with_them() -> None:
    answer = ran("priority", "priority")
    assert answer["policy"] == "priority"
    assert (answer["begun"], answer["wrong"], answer["failed"]) == (10, 0, 0)
    assert answer["tokens"] == ran("plain")["tokens"]


def test_plans_that_fail_leave_every_step_to_vllm() -> None:
    answer = ran("failing")
    assert answer["gave_up"]
    assert (answer["plans"], answer["failed"]) == (0, 3)
    assert answer["asked"] == 3, "nothing is prepared for plans that no step makes"
    assert answer["tokens"] == ran("plain")["tokens"]


def test_another_version_runs_as_the_plain_scheduler_with_one_warning() -> None:
    answer = ran("untested")
    assert answer["plans"] is None
    assert answer["tokens"] == ran("plain")["tokens"]
    assert answer["log"].count("vLLM 9.9.9 was not tested") == 1


@pytest.mark.parametrize(
    ("work", "reason"), [("speculative", "speculative decoding takes more"), ("lora", "with LoRA")]
)
def test_what_plans_cannot_count_runs_as_the_plain_scheduler_with_one_warning(work: str, reason: str) -> None:
    answer = ran("mfs", work)
    assert answer["plans"] is None
    assert answer["log"].count(reason) == 1
    assert answer["tokens"] == ran("plain")["tokens"]


def test_switched_off_steps_are_vllms_own() -> None:
    """Every second step of the program with the class that is switched off, the others with vLLM's own."""
    answer = ran("off", "long")
    assert answer["plans"] is None
    assert len({tuple(tokens) for tokens in answer["tokens"]}) > 1
    plain = ran("plain")["tokens"]
    assert [tokens[: len(own)] for tokens, own in zip(answer["tokens"], plain, strict=True)] == plain
    assert answer["off"]["steps"] > 700
    print(json.dumps(answer["off"]))
