"""Two instances of vLLM with Mooncake's store over soft RoCE, one that may compute again what the store is late with.

Three nodes, each with a device of its own: the instances' and its daemon; the store's, whose port is the slow one; and
that of readers which saturate it. The latter two have a daemon together. One coordinator knows what both say.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from bench.ports import free_port
from mfsd.node.address import control_beside
from mfsd.node.control import StatusReply, StatusRequest
from mfsd.node.control_client import ask
from tests.e2e.cluster import PYTHON, ROOT, START_S, Cluster, until
from tests.e2e.store_programs import LEASE_MS, OWNER, OWNER_NIC, READER, READER_NIC, TRANSFER_S

NIC, HOST = "mfs0", "127.0.0.1"
FAST = "1gbit"
"""Of the devices whose ports are not the slow one."""
RULES = {"slo": {"rule": "slo", "nic": NIC, "owners": [OWNER], "parts": True}, "always": {"rule": "always"}}
"""Of the instances, by name."""
REUSE = re.compile(r"reuse request=(\S+) tokens=(\d+) choice=(\w+): (.+)")


class Answer(NamedTuple):
    tokens: list[int]
    ttft_s: float


@dataclass
class StoreCluster(Cluster):
    """`rate`: of the store's port."""

    ports: dict[str, int] = field(default_factory=lambda: {name: free_port() for name in RULES})
    master: int = field(default_factory=free_port)
    metrics: int = field(default_factory=free_port)
    more: tuple[str, ...] = ()
    """Arguments of the instances."""

    @property
    def socket_there(self) -> Path:
        return self.folder / "there" / "mfsd.sock"

    def environment(self) -> dict[str, str]:
        config = self.folder / "mooncake.json"
        config.write_text(
            json.dumps(
                {
                    "mode": "standalone-store",
                    "metadata_server": "P2PHANDSHAKE",
                    "master_server_address": f"127.0.0.1:{self.master}",
                    "protocol": "rdma",
                    "device_name": NIC,
                    "global_segment_size": 0,
                    "local_buffer_size": 16 << 20,
                }
            )
        )
        return {
            **super().environment(),
            "MOONCAKE_CONFIG_PATH": str(config),
            "VLLM_LOGGING_CONFIG_PATH": str(self.logging_file()),
            "VLLM_RPC_BASE_PATH": str(self.folder),
            "MFS_STORE_LEASE_MS": str(LEASE_MS),
            "MC_TRANSFER_TIMEOUT": str(TRANSFER_S),
            "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache
        }

    def on(self, device: str, address: str, rate: str, socket: Path, *command: str | Path) -> list[str | Path]:
        """The command on a device of its own, under mfs-run."""
        topology = self.folder / f"{device}.json"
        topology.write_text(json.dumps({"cpu:0": [[device], []]}))
        return [
            *("env", f"MC_CUSTOM_TOPO_JSON={topology}", f"MFS_SOCKET={socket}"),
            *(sys.executable, "-m", "mfsd.soft_roce.launcher", "--device", f"{device}={address},{rate}", "--"),
            *(sys.executable, "-m", "nccl_shim.run", "--socket", str(socket), "--"),
            *command,
        ]

    def start_daemons(self) -> None:
        for name, socket, nics in (
            ("here", self.socket, ((NIC, HOST, FAST),)),
            ("there", self.socket_there, ((OWNER_NIC, OWNER, self.rate), (READER_NIC, READER, FAST))),
        ):
            config = self.folder / f"{name}.toml"
            tables = [f'[nic."{nic}"]\nrate = "{rate}"\naddress = "{address}"\n' for nic, address, rate in nics]
            config.write_text("".join(tables) + f'[cluster]\nnode = "{name}"\n')
            process = self.start(
                name,
                *(sys.executable, "-m", "mfsd.cli.daemon", "--config", config, "--socket", socket),
                *("--coordinator-address", f"127.0.0.1:{self.coordinator_port}"),
            )
            until(lambda socket=socket: _answers(socket), f"the daemon {name}")
            self.daemon = self.daemon or process

    def kill_daemon(self) -> None:
        """That of the instances' node."""
        assert self.daemon is not None
        self.processes.remove(self.daemon)
        self.daemon.kill()
        self.daemon.wait()

    def start_owner(self) -> None:
        program = ROOT / "tests/e2e/store_programs.py"
        command = (PYTHON, program, "owner", str(self.master), str(self.metrics))
        self.start("owner", *self.on(OWNER_NIC, OWNER, self.rate, self.socket_there, *command))
        until(lambda: "ready" in (self.folder / "owner.log").read_text(), f"the store's node (see {self.folder})")

    def start_instance(self, name: str) -> None:
        inner = {
            "kv_connector": "MooncakeStoreConnector",
            "kv_connector_module_path": "tests.e2e.cpu_mooncake_store",
            "kv_connector_extra_config": {"lookup_rpc_port": name},
        }
        transfer = {
            "kv_connector": "MfsConnector",
            "kv_connector_module_path": "mooncake_adapter.vllm.connector",
            "kv_role": "kv_both",
            "engine_id": name,
            "kv_connector_extra_config": {"inner": inner, "reuse": RULES[name]},
        }
        counters = self.folder / f"{name}-metrics"
        counters.mkdir()
        command = ("env", f"PROMETHEUS_MULTIPROC_DIR={counters}", PYTHON)
        self.serve(
            name,
            transfer,
            *self.on(NIC, HOST, FAST, self.socket, *command),
            more=("--enable-prefix-caching", *self.more),
        )

    # ---- the saturated port ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def saturated(self, threads: int, queue_mib: int) -> Iterator[None]:
        """Readers of another node keep the store's port busy, and have announced so much more."""
        command = (PYTHON, ROOT / "tests/e2e/store_programs.py", "readers", str(self.master), str(threads))
        process = self.start("readers", *self.on(READER_NIC, READER, FAST, self.socket_there, *command, str(queue_mib)))
        try:
            until(lambda: self.reads() >= threads, "the readers' first reads")
            yield
        finally:
            self.processes.remove(process)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)

    def reads(self) -> int:
        """How many of the readers' have ended; none has failed."""
        lines = (self.folder / "readers.log").read_text().splitlines()
        answers = [json.loads(line)["answer"] for line in lines if line.startswith('{"answer"') and line.endswith("}")]
        assert all(answer > 0 for answer in answers), answers
        return len(answers)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def reset(self, name: str) -> None:
        """Empties the instance's own prefix cache; the store keeps what it has."""
        url = f"http://127.0.0.1:{self.ports[name]}/reset_prefix_cache"

        def done() -> bool:  # false while blocks are still being written to the store
            request = urllib.request.Request(url, b"", method="POST")
            return bool(json.load(urllib.request.urlopen(request, timeout=60))["success"])

        until(done, f"an empty prefix cache of {name}")

    def ask(self, name: str, prompt: list[int], headers: dict[str, str], tokens: int = 8) -> Answer:
        """As a stream: the first token is what is timed."""
        body = {"model": "tiny", "prompt": prompt, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports[name]}/v1/completions",
            json.dumps({**body, "max_tokens": tokens, "stream": True}).encode(),
            {"Content-Type": "application/json", **headers},
        )
        begun_s, first_s, found = time.monotonic(), 0.0, list[int]()
        with urllib.request.urlopen(request, timeout=300) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    first_s = first_s or time.monotonic() - begun_s
                    event = json.loads(line.removeprefix(b"data: "))
                    assert "choices" in event, event
                    for choice in event["choices"]:
                        found += choice["token_ids"] or []
        return Answer(found, first_s)

    def stored(self) -> int:
        """Keys of KV that the store has, the readers' objects among them."""
        return int(_value(f"http://127.0.0.1:{self.metrics}/metrics", "master_key_count"))

    def decided(self, name: str) -> dict[str, int]:
        """By choice, as the instance counts them."""
        text = _get(f"http://127.0.0.1:{self.ports[name]}/metrics")
        found = re.findall(r'^mfs_serve_reuse_decisions_total\{.*decision="(\w+)".*\} (\S+)$', text, re.MULTILINE)
        counts: Counter[str] = Counter()
        for choice, value in found:
            counts[choice] += int(float(value))
        return counts

    def loaded_tokens(self, name: str) -> int:
        """That vLLM has counted as loaded by a connector."""
        return int(_value(f"http://127.0.0.1:{self.ports[name]}/metrics", "vllm:external_prefix_cache_hits_total"))

    def reasons(self) -> list[tuple[str, str]]:
        """Each decision with its reason, in order."""
        log = (self.folder / "adapter-all.log").read_text()
        return [(choice, reason) for _, _, choice, reason in REUSE.findall(log)]


def _answers(socket: Path) -> bool:
    with contextlib.suppress(Exception):
        return isinstance(ask(control_beside(socket), StatusRequest(), 2.0), StatusReply)
    return False


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


def _value(url: str, name: str) -> float:
    found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text := _get(url), re.MULTILINE)
    assert found, (name, text[:2000])
    return sum(map(float, found))


Some = TypeVar("Some", bound=StoreCluster)


@contextlib.contextmanager
def running(cluster: Some) -> Iterator[Some]:
    try:
        cluster.start_coordinator()
        cluster.start_daemons()
        cluster.start_owner()
        for name in cluster.ports:
            cluster.start_instance(name)
        for name in cluster.ports:
            until(lambda name=name: cluster.healthy(name), f"vLLM {name} (see {cluster.folder})", START_S)
        yield cluster
    finally:
        cluster.stop()
