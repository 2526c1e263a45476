"""MfsScheduler behind vLLM's server, with MfsConnector and without any daemon: words, metrics and mfsctl."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mfsd.serve.records import replay
from tests.e2e.cluster import PYTHON, ROOT, START_S, Cluster, until
from tests.e2e.test_vllm import prompt

pytestmark = [
    pytest.mark.skipif("MFS_E2E" not in os.environ, reason="needs vLLM: make e2e-vllm"),
    pytest.mark.timeout(900),
]
CONFIG = """
[tiers.chat]
ttft_ms = 60000
importance = 1
[record]
folder = "{folder}/decisions"
"""


class Served(Cluster):
    def environment(self) -> dict[str, str]:
        (self.folder / "serve.toml").write_text(CONFIG.format(folder=self.folder))
        (self.folder / "metrics").mkdir(exist_ok=True)
        return {
            **super().environment(),
            "MFS_SERVE_CONFIG": str(self.folder / "serve.toml"),
            "MFS_SERVE_STATUS": str(self.folder / "status"),
            "PROMETHEUS_MULTIPROC_DIR": str(self.folder / "metrics"),
        }


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    folder = Path(tempfile.mkdtemp(prefix="mfs-e2e-", dir="/tmp"))
    cluster = Served(folder, "")
    inner = {
        "kv_connector": "ExampleConnector",
        "kv_connector_extra_config": {"shared_storage_path": str(folder / "store")},
    }
    transfer = {
        "kv_connector": "MfsConnector",
        "kv_connector_module_path": "mooncake_adapter.vllm.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"inner": inner},
    }
    try:
        scheduler = ("--scheduler-cls", "mooncake_adapter.vllm_scheduler.MfsScheduler")
        cluster.serve("P", transfer, PYTHON, more=scheduler)
        until(lambda: cluster.healthy("P"), f"vLLM (see {folder})", START_S)
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder)


def status(cluster: Served) -> dict[str, Any]:
    command = (sys.executable, "-m", "mfsd.cli.ctl", "serve", "status", "--json", "--folder", cluster.folder / "status")
    answer = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    (engine,) = json.loads(answer)
    found: dict[str, Any] = engine
    return found


def test_headers_metrics_and_mfsctl_without_a_daemon(served: Served) -> None:
    headers = {"x-tier": "chat", "x-session-id": "s", "x-importance": "nonsense", "x-slo-tbt-ms": "60000"}
    first = served.complete("P", prompt(700, 5), headers, max_tokens=4)
    assert served.complete("P", prompt(700, 5), headers, max_tokens=4) == first, "with its KV from the store"

    def counted() -> bool:  # the status is written at the end of a step, once a second
        served.complete("P", prompt(30, 1), {}, max_tokens=2)
        return bool(status(served)["tiers"].get("chat", {}).get("met") == 2)

    until(counted, "the status", 60.0)
    engine = status(served)
    assert engine["unusable"] == {"importance": 2}
    assert engine["counts"].get("failed_plans", 0) == 0
    with urllib.request.urlopen(f"http://127.0.0.1:{served.ports['P']}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert 'mfs_serve_requests_total{engine="0",outcome="met",tier="chat"} 2.0' in text
    assert replay(served.folder / "decisions").equal


def test_a_wrong_configuration_stops_the_start_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text('[serve]\npolicy = "fastest"\n')
    program = (
        "from mooncake_adapter.vllm.serve_settings import settings_of\nsettings_of({}, by_priority=False, warn=print)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MFS_SERVE_CONFIG": str(path)}
    done = subprocess.run([PYTHON, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert f"SettingsError: {path}: Invalid enum value 'fastest': use fcfs, edf, " in last
    assert last.endswith(" - at `$.serve.policy`")
