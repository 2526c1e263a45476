"""vLLM with Mooncake's store, whose port is slow: load what it has, or compute it again: make e2e-vllm.

One instance may compute again what would be late ("slo"), one always loads. Both have the same prompts in the store.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.micro.paired import median_interval
from tests.e2e.cluster import ROOT, until
from tests.e2e.store_cluster import StoreCluster, running
from tests.e2e.test_vllm import prompt

pytestmark = [
    pytest.mark.skipif("MFS_E2E" not in os.environ, reason="needs vLLM: make e2e-vllm"),
    pytest.mark.timeout(1500),
]
RATE = os.environ.get("MFS_E2E_STORE_RATE", "20mbit")
PAIRS = int(os.environ.get("MFS_E2E_PAIRS", "6"))
WARM_UP = 1
"""Pairs before those that are measured."""
TOKENS, BLOCK_TOKENS = 1400, 128
FOUND = TOKENS // BLOCK_TOKENS * BLOCK_TOKENS
SOON = {"x-slo-ttft-ms": "60000"}
"""Enough for a load on an idle port, and a quarter of it for computing again, on a busy machine; and not for what the
readers want."""
READERS, QUEUE_MIB = 12, 400
"""Reads at once, and what they have announced: nearly three minutes of the store's port, more than `SOON` leaves and
less than the lease."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[StoreCluster]:
    folder = Path(tempfile.mkdtemp(prefix="mfs-e2e-", dir="/tmp"))
    with running(StoreCluster(folder, RATE)) as made:
        yield made
    shutil.rmtree(folder)


def computed(cluster: StoreCluster, prompts: list[list[int]], name: str = "always") -> list[list[int]]:
    """The tokens of new prompts, computed; the store has their KV afterwards."""
    before = cluster.stored()
    tokens = [cluster.ask(name, one, {}).tokens for one in prompts]
    until(lambda: cluster.stored() >= before + len(prompts) * (TOKENS // BLOCK_TOKENS), "the KV in the store")
    return tokens


def paired(cluster: StoreCluster, prompts: list[list[int]], wanted: list[list[int]]) -> dict[str, list[float]]:
    """Time to first token by each instance, in turns, of prompts whose KV the store alone has; the tokens are right."""
    times: dict[str, list[float]] = {"slo": [], "always": []}
    for pair, (one, tokens) in enumerate(zip(prompts, wanted, strict=True)):
        for name in ("slo", "always") if pair % 2 else ("always", "slo"):
            cluster.reset(name)
            answer = cluster.ask(name, one, SOON)
            assert answer.tokens == tokens
            times[name].append(answer.ttft_s)
    return times


def report(port: str, times: dict[str, list[float]]) -> None:
    """Beside what the other test has written."""
    with_s, without_s = times["slo"][WARM_UP:], times["always"][WARM_UP:]
    ratios = [a / b for a, b in zip(with_s, without_s, strict=True)]
    found = {
        "rate": RATE,
        "ttft_with_s": [round(one, 3) for one in with_s],
        "ttft_without_s": [round(one, 3) for one in without_s],
        "ratio_median": round(statistics.median(ratios), 3),
        "ratio_median_within": [round(one, 3) for one in median_interval(ratios)],
    }
    print(json.dumps({port: found}))
    path = ROOT / "out/e2e-store.json"
    path.parent.mkdir(exist_ok=True)
    kept = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**kept, port: found}, indent=2) + "\n")


def test_an_idle_port_is_loaded_from_and_changes_no_token(cluster: StoreCluster) -> None:
    prompts = [prompt(TOKENS, seed) for seed in range(100, 100 + WARM_UP + PAIRS)]
    wanted = computed(cluster, prompts)
    before, decided = {name: cluster.loaded_tokens(name) for name in cluster.ports}, Counter(cluster.decided("slo"))
    times = paired(cluster, prompts, wanted)
    decisions = Counter(cluster.decided("slo")) - decided
    assert decisions == {"fetch": len(prompts)}, cluster.reasons()[-len(prompts) :]
    for name in cluster.ports:
        assert cluster.loaded_tokens(name) - before[name] == len(prompts) * FOUND
    assert cluster.reasons()[-1] == ("fetch", "in time with the reuse")
    report("idle", times)


def test_half_of_it_is_loaded_and_changes_no_token(cluster: StoreCluster) -> None:
    one = prompt(TOKENS, 200)
    (tokens,) = computed(cluster, [one])
    before, decided = cluster.loaded_tokens("slo"), Counter(cluster.decided("slo"))
    (cluster.folder / "half").touch()
    try:
        cluster.reset("slo")
        assert cluster.ask("slo", one, SOON).tokens == tokens
    finally:
        (cluster.folder / "half").unlink()
    assert cluster.loaded_tokens("slo") - before == FOUND // 2
    assert Counter(cluster.decided("slo")) - decided == {"part": 1}


def test_a_saturated_port_is_not_waited_for(cluster: StoreCluster) -> None:
    """Each pair is one prompt, by each instance, in turns. All that is asserted is what was decided, and the tokens."""
    prompts = [prompt(TOKENS, seed) for seed in range(WARM_UP + PAIRS)]
    wanted = computed(cluster, prompts)
    computed(cluster, [prompt(TOKENS, 202)], "slo")  # it measures what a prompt takes
    loaded, decided = cluster.loaded_tokens("always"), Counter(cluster.decided("slo"))
    with cluster.saturated(READERS, QUEUE_MIB):
        times = paired(cluster, prompts, wanted)
        decisions = Counter(cluster.decided("slo")) - decided
        assert decisions == {"recompute": len(prompts)}, cluster.reasons()[-len(prompts) :]
        assert cluster.reasons()[-1] == ("recompute", "late with the reuse, in time without")
        cluster.reset("slo")
        reported = cluster.answer("slo", prompts[0], SOON, max_tokens=8)
        assert reported["choices"][0]["token_ids"] == wanted[0]
        why = "computed again: late with the reuse, in time without"
        assert reported["kv_transfer_params"]["mfs_reuse"] == why
    assert cluster.loaded_tokens("always") - loaded == len(prompts) * FOUND
    report("saturated", times)


def test_without_a_daemon_all_is_loaded(cluster: StoreCluster) -> None:
    one = prompt(TOKENS, 201)
    (tokens,) = computed(cluster, [one])
    before, decided = cluster.loaded_tokens("slo"), Counter(cluster.decided("slo"))
    cluster.kill_daemon()
    asked = 0

    def decided_without() -> bool:
        nonlocal asked
        asked += 1
        cluster.reset("slo")
        assert cluster.ask("slo", one, SOON).tokens == tokens
        return cluster.reasons()[-1] == ("fetch", "the network's backlog is unknown")

    until(decided_without, "the end of the time that the last page is good for")
    assert cluster.loaded_tokens("slo") - before == asked * FOUND
    assert Counter(cluster.decided("slo")) - decided == {"fetch": asked}
