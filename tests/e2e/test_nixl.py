"""vLLM with its NIXL connector, prefill and decode apart, scheduled by MFS over RDMA and over TCP: make e2e-nixl.

Run by that target alone, which installs what is needed (4 GB); skipped otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from bench.ports import free_port
from mooncake_adapter.metadata import request_number
from tests.e2e.cluster import DSCP, PYTHON, ROOT, START_S, TOKEN_BYTES, Cluster, until
from tests.e2e.test_vllm import prompt
from tests.support.capture import capture

NIXL = ROOT / "build/e2e-vllm/nixl"
pytestmark = [
    pytest.mark.skipif("MFS_E2E" not in os.environ, reason="needs vLLM: make e2e-nixl"),
    pytest.mark.timeout(1500),
]
RATE = os.environ.get("MFS_E2E_RATE", "100mbit")
PAIRS = int(os.environ.get("MFS_E2E_PAIRS", "6"))
WARM_UP = 3
"""Requests before those that are measured: the first makes NIXL's handshake and UCX's connections, which take two vLLMs
on two cores up to twenty seconds; the second connects a lane."""
BLOCK_TOKENS = 128
SOON = {"x-slo-ttft-ms": "5000"}
SENDS = {"do_remote_decode": True, "do_remote_prefill": False}
TRANSPORTS = {"rdma": "rc_v", "tcp": "tcp"}


class NixlCluster(Cluster):
    """Instances whose KV goes by NIXL and UCX, by one transport."""

    def __init__(self, folder: Path, transport: str) -> None:
        super().__init__(folder, RATE)
        self.transport = transport

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(NIXL))),
            "MFS_SOCKET": str(self.socket),
            "VLLM_LOGGING_CONFIG_PATH": str(self.logging_file()),
            "MFS_NIXL": "1",
            "UCX_TLS": TRANSPORTS[self.transport],
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
        }

    def start_engine(self, name: str, role: str) -> None:
        transfer = {
            "kv_connector": "MfsConnector",
            "kv_connector_module_path": "mooncake_adapter.vllm.connector",
            "kv_role": role,
            "engine_id": name,
            "kv_connector_extra_config": {"inner": {"kv_connector": "NixlConnector"}},
        }
        python = self.on_device(PYTHON) if self.transport == "rdma" else [PYTHON]
        self.serve(name, transfer, *python)

    def handed_over(
        self, one: list[int], tokens: int = 8, headers: dict[str, str] | None = None, prefilled: list[int] | None = None
    ) -> tuple[list[int], float, str]:
        """The tokens of a decode instance that fetches the cache of the prefill instance, how long it took (s), and
        the request's name there."""
        begun_s = time.monotonic()
        answer: dict[str, Any] = self.answer(
            "P", prefilled or one, headers or {}, max_tokens=1, kv_transfer_params=SENDS
        )["kv_transfer_params"]
        found = self.complete("D", one, headers or {}, max_tokens=tokens, kv_transfer_params=answer)
        return found, time.monotonic() - begun_s, str(answer["remote_request_id"])

    def granted_by_class(self) -> Counter[int]:
        """Bytes."""
        return Counter({at: c.granted_bytes for nic in self.status().nics for at, c in enumerate(nic.classes)})

    def granted(self) -> tuple[int, int]:
        """Bytes and permits."""
        classes = [c for nic in self.status().nics for c in nic.classes]
        return sum(c.granted_bytes for c in classes), sum(c.grants for c in classes)


def warm_up(cluster: NixlCluster) -> None:
    for _ in range(WARM_UP):
        with contextlib.suppress(urllib.error.HTTPError):  # vLLM gives a handshake up after five seconds
            cluster.handed_over(prompt(1400, PAIRS), tokens=1, headers=SOON)


Kind = TypeVar("Kind", bound=NixlCluster)


@contextlib.contextmanager
def started(kind: type[Kind], transport: str) -> Iterator[Kind]:
    """A prefill and a decode instance that answer. The folder stays where something fails."""
    folder = Path(tempfile.mkdtemp(prefix="mfs-e2e-", dir="/tmp"))
    made = kind(folder, transport)
    try:
        made.start_coordinator()
        made.start_daemon()
        made.start_engine("P", "kv_producer")
        made.start_engine("D", "kv_consumer")
        for name in "PD":
            until(lambda name=name: made.healthy(name), f"vLLM {name} (see {folder})", START_S)
        made.alone(prompt(40, 1))  # a step of several rows first: see cpu_mooncake.py
        yield made
    finally:
        made.stop()
    shutil.rmtree(folder)


class PluginCluster(NixlCluster):
    """Without the adapter: NIXL's UCX asks for permits itself, below vLLM's own connector."""

    def environment(self) -> dict[str, str]:
        return {name: value for name, value in super().environment().items() if name != "MFS_NIXL"}

    def start_engine(self, name: str, role: str) -> None:
        transfer = {"kv_connector": "NixlConnector", "kv_role": role, "engine_id": name}
        run = (sys.executable, "-m", "nccl_shim.run", "--socket", str(self.socket), "--nixl-backend", "UCX", "--")
        self.serve(name, transfer, *run, str(PYTHON))


@pytest.fixture(scope="module")
def plugin_cluster() -> Iterator[PluginCluster]:
    with started(PluginCluster, "tcp") as made:
        yield made


def test_the_backend_plugin_changes_no_token_and_every_byte_is_permitted(plugin_cluster: PluginCluster) -> None:
    cluster = plugin_cluster
    lengths = (40, 500, 1400)
    prompts = [prompt(length, seed) for seed, length in enumerate(lengths)]
    wanted = [cluster.alone(one) for one in prompts]
    bytes_before, grants_before = cluster.granted()
    assert [cluster.handed_over(one)[0] for one in prompts] == wanted
    size = sum(-(-n // BLOCK_TOKENS) * BLOCK_TOKENS * TOKEN_BYTES for n in lengths)
    until(lambda: cluster.granted()[0] - bytes_before >= size, "the daemon's count")
    granted_bytes, grants = cluster.granted()
    assert granted_bytes - bytes_before == size
    assert grants > grants_before


@pytest.fixture(scope="module", params=sorted(TRANSPORTS))
def cluster(request: pytest.FixtureRequest) -> Iterator[NixlCluster]:
    with started(NixlCluster, request.param) as made:
        yield made


def test_same_tokens_as_without_disaggregation(cluster: NixlCluster) -> None:
    prompts = [prompt(length, seed) for seed, length in enumerate((40, 128, 500, 1400))]
    wanted = [cluster.alone(one) for one in prompts]
    assert [cluster.handed_over(one)[0] for one in prompts] == wanted
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert [found for found, _, _ in pool.map(cluster.handed_over, prompts)] == wanted


def test_other_tokens_with_the_cache_of_another_prompt(cluster: NixlCluster) -> None:
    """Else the test above could not see a transfer that moves nothing."""
    one, other = prompt(900, 5), prompt(900, 6)
    assert cluster.handed_over(one, prefilled=other)[0] != cluster.alone(one)


def test_every_byte_is_accounted_for_with_stage_and_request(cluster: NixlCluster) -> None:
    before, (bytes_before, grants_before) = cluster.marked(), cluster.granted()
    lengths = (200, 700)
    names = [cluster.handed_over(prompt(n, n), headers=SOON)[2] for n in lengths]
    sizes = [-(-n // BLOCK_TOKENS) * BLOCK_TOKENS * TOKEN_BYTES for n in lengths]
    let_go = sum(cluster.let_go(request_number(name), size) for name, size in zip(names, sizes, strict=True))
    granted_bytes, grants = cluster.granted()
    assert granted_bytes - bytes_before == sum(sizes) - let_go > 0
    assert grants > grants_before
    by_request: Counter[int] = Counter()
    for size, stage, request, deadline_ns, _ in cluster.messages(cluster.logged(before)):
        assert stage == 3
        assert deadline_ns > 0, "the header's deadline has arrived"
        by_request[request] += size
    numbers = [request_number(name) for name in names]
    assert dict(by_request) == dict(zip(numbers, sizes, strict=True))


def test_what_vllm_moves_has_the_class_of_its_permit_on_the_wire(cluster: NixlCluster) -> None:
    """Of each class that permits were of, more than half of the bytes: a busy capture misses some."""
    if cluster.transport != "rdma":
        pytest.skip("loopback's TCP has no lanes")
    warm_up(cluster)
    before = cluster.granted_by_class()
    with capture() as wire:
        for seed in range(4):
            cluster.handed_over(prompt(1400, 200 + seed), tokens=1, headers=SOON)
        sent = cluster.granted_by_class() - before
        for wire_class, size in sent.items():
            tos = DSCP[wire_class] << 2
            until(lambda tos=tos: wire.both_ways(tos, tos), f"class {wire_class} on both directions")
            until(lambda tos=tos, n=size: wire.payload_bytes(tos) > n // 2, f"the bytes of class {wire_class}")
    carried = {c: wire.payload_bytes(tos << 2) for c, tos in enumerate(DSCP)}
    print(json.dumps({"granted_bytes": dict(sent), "carried_bytes": carried}))


def test_deadlines_beside_bulk(cluster: NixlCluster) -> None:
    """Two bulk writes share the rate of the NIC. Each pair is one request with MFS and one without, in turns; what it
    comes to is reported, and how fast a machine is decides nothing here."""
    if cluster.transport != "rdma":
        pytest.skip("loopback's TCP has no rate to share")
    warm_up(cluster)
    bulk = cluster.start(
        "bulk", *cluster.on_device(PYTHON, ROOT / "bench/programs/bulk_write.py", "--mib", "8", "--threads", "2")
    )

    def begun_since(start_ns: int) -> bool:
        lines = (cluster.folder / "bulk.log").read_text().splitlines()
        calls = [json.loads(line) for line in lines if '"end_ns"' in line]
        return sum(call["start_ns"] > start_ns for call in calls) >= 2

    control = (sys.executable, "-m", "mfsd.cli.ctl", "--socket", str(cluster.socket), "mode")
    times: dict[str, list[float]] = {"enforce": [], "observe": []}
    try:
        for pair in range(PAIRS):
            for mode in ("enforce", "observe") if pair % 2 else ("observe", "enforce"):
                subprocess.run((*control, mode), check=True, capture_output=True)
                switched_ns = time.monotonic_ns()
                until(lambda: begun_since(switched_ns), "the bulk writes of this mode")  # noqa: B023
                times[mode].append(cluster.handed_over(prompt(1400, pair), tokens=1, headers=SOON)[1])
    finally:
        subprocess.run((*control, "enforce"), check=True)
        cluster.processes.remove(bulk)
        os.killpg(bulk.pid, 15)
        bulk.wait()
    ratios = sorted(a / b for a, b in zip(times["enforce"], times["observe"], strict=True))
    report = {
        "pairs": PAIRS,
        "ttft_with_s": [round(one, 3) for one in times["enforce"]],
        "ttft_without_s": [round(one, 3) for one in times["observe"]],
        "ratio_median": round(statistics.median(ratios), 3),
        "ratio_spread": [round(ratios[0], 3), round(ratios[-1], 3)],
    }
    print(json.dumps(report))
    (ROOT / "out").mkdir(exist_ok=True)
    (ROOT / "out/e2e-nixl.json").write_text(json.dumps(report, indent=2) + "\n")


def test_killing_mfsd_in_the_middle_changes_no_token(cluster: NixlCluster) -> None:
    prompts = [prompt(1400, 50 + seed) for seed in range(3)]
    wanted = [cluster.alone(one) for one in prompts]
    assert cluster.daemon is not None
    before = cluster.marked()
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(cluster.handed_over, one) for one in prompts]
        until(lambda: cluster.messages(cluster.logged(before)), "the first message")
        cluster.processes.remove(cluster.daemon)
        cluster.daemon.kill()
        cluster.daemon.wait()
        assert [one.result()[0] for one in waiting] == wanted
    assert [cluster.handed_over(one)[0] for one in prompts] == wanted  # without any daemon
    cluster.start_daemon()
    assert [cluster.handed_over(one)[0] for one in prompts] == wanted
