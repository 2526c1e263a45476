"""vLLM with Mooncake over RDMA, prefill and decode apart, scheduled by MFS: make e2e-vllm.

Run by that target alone, which installs what is needed (4 GB); skipped otherwise.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mooncake_adapter.metadata import request_number
from tests.e2e.cluster import BATCH, PYTHON, ROOT, TOKEN_BYTES, Cluster, running, until
from tests.e2e.model import LAYERS, VOCABULARY

pytestmark = [
    pytest.mark.skipif("MFS_E2E" not in os.environ, reason="needs vLLM: make e2e-vllm"),
    pytest.mark.timeout(1500),
]
RATE = os.environ.get("MFS_E2E_RATE", "100mbit")
PAIRS = int(os.environ.get("MFS_E2E_PAIRS", "6"))
BLOCK_TOKENS = 128
SOON = {"x-slo-ttft-ms": "5000"}
DEADLINE = {"x-slo-ttft-ms": "300", "x-tenant": "acme"}


def prompt(length: int, seed: int) -> list[int]:
    return [3 + (i * 7 + seed * 131 + i // 97 * 13) % (VOCABULARY - 3) for i in range(length)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="mfs-e2e-", dir="/tmp"))
    with running(Cluster(folder, RATE)) as made:
        yield made
    shutil.rmtree(folder)


def test_same_tokens_as_without_disaggregation(cluster: Cluster) -> None:
    prompts = [prompt(length, seed) for seed, length in enumerate((40, 128, 500, 1400))]
    wanted = [cluster.alone(one) for one in prompts]
    assert [cluster.disaggregated(one)[0] for one in prompts] == wanted
    assert cluster.together(prompts) == wanted


def test_other_tokens_when_the_cache_is_emptied(cluster: Cluster) -> None:
    """Else the tests above could not see a transfer that moves nothing."""
    prompts = [prompt(length, 7 + length) for length in (300, 600, 900, 1200)]
    wanted = [cluster.alone(one) for one in prompts]
    (cluster.folder / "zero").touch()
    try:
        output = [cluster.disaggregated(one)[0] for one in prompts]
    finally:
        (cluster.folder / "zero").unlink()
    assert all(one != other for one, other in zip(output, wanted, strict=True))
    assert [cluster.disaggregated(one)[0] for one in prompts] == wanted


def test_every_byte_is_accounted_for_with_stage_layer_and_request(cluster: Cluster) -> None:
    """On a host that is busy with other work some wait for longer than they may be held: these go without a permit, and
    are counted so."""

    def granted() -> int:
        return sum(c.granted_bytes for nic in cluster.status().nics for c in nic.classes)

    def posted() -> int:
        return sum(client.posted_bytes.get("p2d", 0) for client in cluster.status().clients)

    log_before, granted_before, posted_before = cluster.marked(), granted(), posted()
    lengths = (200, 700)
    names = [cluster.disaggregated(prompt(n, n), headers=DEADLINE)[2] for n in lengths]
    blocks = [-(-n // BLOCK_TOKENS) for n in lengths]
    wanted = sum(blocks) * BLOCK_TOKENS * TOKEN_BYTES
    until(lambda: posted() - posted_before >= wanted, "what the shim sees on the wire")
    messages = cluster.messages(cluster.logged(log_before))
    by_request: dict[int, Counter[int]] = defaultdict(Counter)
    for size, stage, request, deadline_ns, layer in messages:
        assert stage == 3
        assert deadline_ns > 0, "the header's deadline has arrived"
        by_request[request][layer] += size
    assert dict(by_request) == {
        request_number(name): Counter(dict.fromkeys(range(LAYERS), count * BLOCK_TOKENS * TOKEN_BYTES // LAYERS))
        for name, count in zip(names, blocks, strict=True)
    }
    assert posted() - posted_before == wanted
    let_go = 0
    for name, count in zip(names, blocks, strict=True):
        layer_bytes = count * BLOCK_TOKENS * TOKEN_BYTES // LAYERS
        number = request_number(name)
        until(lambda number=number: not cluster.account(number).open_tasks, "the last completion")
        account = cluster.account(number)
        assert account.dropped_bytes == 0
        assert {(part.stage, part.layer): part.completed_bytes + part.bypassed_bytes for part in account.stages} == {
            ("p2d", layer): layer_bytes for layer in range(LAYERS)
        }, "what the daemon counts for the request"
        let_go += account.bypassed_bytes
    assert let_go < wanted
    assert granted() - granted_before == wanted - let_go


def test_layers_leave_while_the_prefill_computes(cluster: Cluster) -> None:
    """Each layer's bytes are at the decode instance before the last layer ends, every byte once, and the tokens are the
    same."""
    tokens = 1400
    one = prompt(tokens, 77)
    wanted = cluster.alone(one)
    layer_bytes = -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS * TOKEN_BYTES // LAYERS
    before = cluster.marked()
    (cluster.folder / "overlap").touch()
    try:
        output, _, name = cluster.disaggregated(one, headers=DEADLINE, at_once=True)
    finally:
        (cluster.folder / "overlap").unlink()
    assert output == wanted
    cluster.went_while_computing(before, request_number(name), layer_bytes)


def test_pushed_layers_change_no_token(cluster: Cluster) -> None:
    prompts = [prompt(length, 90 + length) for length in (60, 300, 1100, 1900)]
    wanted = [cluster.alone(one) for one in prompts]
    assert [cluster.disaggregated(one, at_once=True)[0] for one in prompts] == wanted
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert [
            output for output, _, _ in pool.map(lambda one: cluster.disaggregated(one, at_once=True), prompts)
        ] == wanted


def test_layer_boundaries_are_counted(cluster: Cluster) -> None:
    before = cluster.marked()
    cluster.disaggregated(prompt(900, 3))
    until(lambda: BATCH.search(cluster.logged(before)), "the end of the batch")
    steps = BATCH.findall(cluster.logged(before))
    assert steps
    assert all((int(layers), int(reached)) == (LAYERS, LAYERS) for _, layers, reached in steps)


@pytest.mark.parametrize("objective", ["soon", "-5", "1e300"])
def test_a_malformed_objective_changes_nothing(cluster: Cluster, objective: str) -> None:
    before = cluster.marked()
    one = prompt(200, 11)
    assert cluster.disaggregated(one, headers={"x-slo-ttft-ms": objective})[0] == cluster.alone(one)
    assert all(deadline_ns == 0 for _, _, _, deadline_ns, _ in cluster.messages(cluster.logged(before)))


def test_bulk_is_held_beside_kv(cluster: Cluster) -> None:
    """Two bulk writes share the rate of the NIC. Each pair is one request with MFS and one without, in turns.

    The times are reported, and vary as much as this host does. What is asserted is what makes the difference: that bulk
    waits for permits."""
    bulk = cluster.start(
        "bulk", *cluster.on_device(PYTHON, ROOT / "bench/programs/bulk_write.py", "--mib", "8", "--threads", "2")
    )

    def begun_since(start_ns: int) -> bool:
        """Two bulk writes that began after that have ended: what was posted before has left the NIC."""
        lines = (cluster.folder / "bulk.log").read_text().splitlines()
        calls = [json.loads(line) for line in lines if '"end_ns"' in line]
        return sum(call["start_ns"] > start_ns for call in calls) >= 2

    def held_s() -> float:
        """How long the bulk writes' work requests were held, summed."""
        return sum(client.hold_s for client in cluster.status().clients if client.pid == bulk.pid)

    waits_s = {"enforce": 0.0, "observe": 0.0}
    try:
        times: dict[str, list[float]] = {"enforce": [], "observe": []}
        for pair in range(PAIRS):
            for mode in ("enforce", "observe") if pair % 2 else ("observe", "enforce"):
                control = (sys.executable, "-m", "mfsd.cli.ctl", "--socket", str(cluster.socket), "mode", mode)
                subprocess.run(control, check=True, capture_output=True)
                switched_ns = time.monotonic_ns()
                until(lambda: begun_since(switched_ns), "the bulk writes of this mode")  # noqa: B023
                before_s = held_s()
                times[mode].append(cluster.disaggregated(prompt(1400, pair), tokens=1, headers=SOON)[1])
                waits_s[mode] += held_s() - before_s
    finally:
        subprocess.run(
            (sys.executable, "-m", "mfsd.cli.ctl", "--socket", str(cluster.socket), "mode", "enforce"), check=True
        )
        cluster.processes.remove(bulk)
        os.killpg(bulk.pid, 15)
        bulk.wait()
    ratios = sorted(a / b for a, b in zip(times["enforce"], times["observe"], strict=True))
    report = {
        "pairs": PAIRS,
        "ttft_with_s": sorted(round(one, 3) for one in times["enforce"]),
        "ttft_without_s": sorted(round(one, 3) for one in times["observe"]),
        "ttft_mean_s": {mode: round(statistics.mean(each), 3) for mode, each in times.items()},
        "ratio_median": round(statistics.median(ratios), 3),
        "ratio_spread": [round(ratios[0], 3), round(ratios[-1], 3)],
        "bulk_held_s": {mode: round(each, 3) for mode, each in waits_s.items()},
    }
    print(json.dumps(report))
    (ROOT / "out").mkdir(exist_ok=True)
    (ROOT / "out/e2e-vllm.json").write_text(json.dumps(report, indent=2) + "\n")
    assert waits_s["observe"] < waits_s["enforce"] / 10


def test_killing_mfsd_in_the_middle_changes_no_token(cluster: Cluster) -> None:
    prompts = [prompt(1400, 50 + seed) for seed in range(3)]
    wanted = [cluster.alone(one) for one in prompts]
    assert cluster.daemon is not None
    before = cluster.marked()
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(cluster.disaggregated, one) for one in prompts]
        until(lambda: cluster.messages(cluster.logged(before)), "the first message")
        cluster.processes.remove(cluster.daemon)
        cluster.daemon.kill()
        cluster.daemon.wait()
        assert [one.result()[0] for one in waiting] == wanted
    assert cluster.together(prompts) == wanted  # without any daemon
    cluster.start_daemon()
    assert cluster.together(prompts) == wanted
