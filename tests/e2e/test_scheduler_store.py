"""MfsScheduler in a vLLM that loads from Mooncake's store: make e2e-vllm."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.ports import free_port
from mfsd.serve.publish import read_all
from mfsd.serve.status import EngineStatus
from tests.e2e.cluster import until
from tests.e2e.store_cluster import StoreCluster, running
from tests.e2e.test_store import FOUND, RATE, SOON, TOKENS, computed
from tests.e2e.test_vllm import prompt

pytestmark = [
    pytest.mark.skipif("MFS_E2E" not in os.environ, reason="needs vLLM: make e2e-vllm"),
    pytest.mark.timeout(1500),
]
NAME, PROMPTS = "always", 4
SCHEDULER = ("--scheduler-cls", "mooncake_adapter.vllm_scheduler.MfsScheduler")


class Planned(StoreCluster):
    """One instance, with MfsScheduler."""

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "MFS_SERVE_STATUS": str(self.folder / "serve")}

    def published(self) -> EngineStatus:
        ((one,), complaints) = read_all([self.folder / "serve"])
        assert not complaints
        return one


@pytest.fixture(scope="module")
def cluster() -> Iterator[Planned]:
    folder = Path(tempfile.mkdtemp(prefix="mfs-e2e-", dir="/tmp"))
    with running(Planned(folder, RATE, ports={NAME: free_port()}, more=SCHEDULER)) as made:
        yield made
    shutil.rmtree(folder)


def test_what_the_store_has_is_loaded_and_changes_no_token(cluster: Planned) -> None:
    """All at once, so that some wait while others load."""
    prompts = [prompt(TOKENS, seed) for seed in range(300, 300 + PROMPTS)]
    wanted = computed(cluster, prompts, NAME)
    before = cluster.loaded_tokens(NAME)
    cluster.reset(NAME)
    with ThreadPoolExecutor(PROMPTS) as threads:
        answers = list(threads.map(lambda one: cluster.ask(NAME, one, SOON), prompts))
    assert [one.tokens for one in answers] == wanted
    assert cluster.loaded_tokens(NAME) - before == PROMPTS * FOUND

    def all_published() -> bool:
        cluster.ask(NAME, prompts[0], {})  # the file is written while steps run
        tier = cluster.published().tiers["default"]
        return tier.met + tier.late >= PROMPTS

    until(all_published, "the engine's status")
    counts = cluster.published().counts
    assert counts["plans"] > 0 and not counts.get("failed_plans") and not counts.get("lost")
