"""A prefill and a decode instance of vLLM with Mooncake over soft RoCE, a daemon and a coordinator; and its client."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.ports import free_port
from mfsd.node.address import control_beside
from mfsd.node.control import RequestsReply, RequestsRequest, RequestStatus, StatusReply, StatusRequest
from mfsd.node.control_client import ask
from tests.e2e.model import LAYERS
from tests.support.fabric import marked_with
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "build/e2e-vllm/venv/bin/python"
MODEL = ROOT / "build/e2e-vllm/model"
START_S = 420.0
"""Two engines on two busy cores."""
DSCP = [48, 40, 34, 26, 18, 10, 8, 1]
TOKEN_BYTES = LAYERS * 2 * 4 * 32 * 2
"""Keys and values, heads, width, two bytes a number."""
MESSAGE = re.compile(r"message bytes=(\d+) stage=(\d+) nic=\d+ request_id=(\d+) deadline_ns=(\d+) layer=(\d+)")
PUSHED = re.compile(r"pushed request_id=(\d+) layer=(\d+) bytes=(\d+) computing=(\d+)")
BATCH = re.compile(r"batch step=(\d+) layers=(\d+) reached=(-?\d+)")


def pushing(name: str, role: str, inner: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a connector of ours that pushes each layer through an inner one."""
    return {
        "kv_connector": "MfsConnector",
        "kv_connector_module_path": "mooncake_adapter.vllm.connector",
        "kv_role": role,
        "engine_id": name,
        "kv_connector_extra_config": {"inner": inner, "layer_wise_push": True},
    }


@dataclass
class Cluster:
    """Everything that was started, and how to talk to it."""

    folder: Path
    rate: str
    bootstrap: int = field(default_factory=free_port)
    ports: dict[str, int] = field(default_factory=lambda: {"P": free_port(), "D": free_port()})
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    daemon: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        return self.folder / "run" / "mfsd.sock"

    def logging_file(self) -> Path:
        """vLLM's configuration of logging, by which everything that the adapter logs goes to a file of its own."""
        logging = {
            "version": 1,
            "disable_existing_loggers": False,
            "handlers": {
                "file": {"class": "logging.FileHandler", "filename": str(self.folder / "adapter-all.log")},
                "console": {"class": "logging.StreamHandler"},
            },
            "loggers": {
                "mfs.adapter": {"level": "DEBUG", "handlers": ["file"]},
                "vllm": {"level": "INFO", "handlers": ["console"]},
            },
        }
        (self.folder / "logging.json").write_text(json.dumps(logging))
        return self.folder / "logging.json"

    def environment(self) -> dict[str, str]:
        topology = self.folder / "topology.json"
        topology.write_text('{"cpu:0": [["mfs0"], []]}')
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "XDG_RUNTIME_DIR": str(self.folder),
            "MFS_E2E_FOLDER": str(self.folder),
            "MC_GID_INDEX": "0",
            "MC_CUSTOM_TOPO_JSON": str(topology),
            "MC_WORKERS_PER_CTX": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # each instance would take the first cores for its own
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_MOONCAKE_BOOTSTRAP_PORT": str(self.bootstrap),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }

    def start(self, name: str, *command: str | Path) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.PIPE,  # open as long as we are: the bulk write goes on until it is closed
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment(),
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def start_daemon(self) -> None:
        # the port says 100 Gbit/s whatever the device is limited to, and the window and all urgency go by the rate
        nic = f'[nic."mfs0"]\nrate = "{self.rate}"\n'
        (self.folder / "mfsd.toml").write_text(marked_with(self.folder, DSCP) + nic)
        arguments = ("--config", self.folder / "mfsd.toml", "--socket", self.socket)
        coordinator = ("--coordinator-address", f"127.0.0.1:{self.coordinator_port}")
        self.daemon = self.start("mfsd", sys.executable, "-m", "mfsd.cli.daemon", *arguments, *coordinator)
        until(self.answers, "mfsd")

    def start_coordinator(self) -> None:
        self.coordinator_port = free_port()
        listen = f"127.0.0.1:{self.coordinator_port}"
        self.start("coordinator", sys.executable, "-m", "mfsd.cli.daemon", "--coordinator", "--listen", listen)

    def on_device(self, *command: str | Path, mfs: bool = True) -> list[str | Path]:
        """The command on this cluster's soft RoCE device, under mfs-run."""
        shim = (sys.executable, "-m", "nccl_shim.run", "--socket", self.socket, "--") if mfs else ()
        device = ("--address", "127.0.0.1", "--rate", self.rate, "--")
        return [sys.executable, "-m", "mfsd.soft_roce.launcher", *device, *shim, *command]

    def start_engine(self, name: str, role: str) -> None:
        inner = {
            "kv_connector": "MooncakeConnector",
            "kv_connector_module_path": "tests.e2e.cpu_mooncake",
            "kv_connector_extra_config": {"mooncake_protocol": "rdma"},
        }
        self.serve(name, pushing(name, role, inner), *self.on_device(PYTHON))

    def serve(self, name: str, transfer: dict[str, Any], *python: str | Path, more: tuple[str, ...] = ()) -> None:
        """A vLLM instance with this connector configuration and more arguments, by a command that runs Python."""
        self.start(
            name,
            *(*python, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", MODEL, "--served-model-name", "tiny", "--dtype", "bfloat16", "--enforce-eager"),
            *("--host", "127.0.0.1", "--port", str(self.ports[name]), "--no-enable-prefix-caching"),
            *("--max-model-len", "2048", "--max-num-seqs", "8"),
            *("--middleware", "mooncake_adapter.middleware.SloHeaders"),
            *("--kv-transfer-config", json.dumps(transfer)),
            *more,
        )

    def answers(self) -> bool:
        with contextlib.suppress(Exception):
            return isinstance(ask(control_beside(self.socket), StatusRequest(), 2.0), StatusReply)
        return False

    def status(self) -> StatusReply:
        reply = ask(control_beside(self.socket), StatusRequest(), 10.0)
        assert isinstance(reply, StatusReply)
        return reply

    def account(self, request_id: int) -> RequestStatus:
        """What the daemon has counted for one request."""
        reply = ask(control_beside(self.socket), RequestsRequest(request_id), 10.0)
        assert isinstance(reply, RequestsReply)
        (account,) = reply.requests
        return account

    def let_go(self, request_id: int, kv_bytes: int) -> int:
        """Waits until the daemon has counted a request's KV to the last byte. How much of it went without a permit:
        what waits for longer than its hold budget, on a machine that is busy."""
        until(lambda: self._counted(request_id) == (kv_bytes, 0), "the daemon's count")
        account = self.account(request_id)
        assert account.dropped_bytes == 0
        return account.bypassed_bytes

    def _counted(self, request_id: int) -> tuple[int, int]:
        """Bytes that have arrived, and tasks that have not."""
        account = self.account(request_id)
        kv = [part for part in account.stages if part.stage == "p2d"]
        return sum(part.completed_bytes + part.bypassed_bytes for part in kv), account.open_tasks

    def healthy(self, name: str) -> bool:
        for process in self.processes:
            assert process.poll() is None, f"{process.args!r} ended: see {self.folder}"
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{self.ports[name]}/health", timeout=2).status == 200)
        return False

    # ---- requests ----------------------------------------------------------------------------------------------------

    def complete(self, engine: str, prompt: list[int], headers: dict[str, str], **more: Any) -> list[int]:
        tokens: list[int] = self.answer(engine, prompt, headers, **more)["choices"][0]["token_ids"]
        return tokens

    def answer(self, engine: str, prompt: list[int], headers: dict[str, str], **more: Any) -> dict[str, Any]:
        body = {"model": "tiny", "prompt": prompt, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports[engine]}/v1/completions",
            json.dumps({**body, **more}).encode(),
            {"Content-Type": "application/json", **headers},
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            output: dict[str, Any] = json.load(answer)
        return output

    def alone(self, prompt: list[int], tokens: int = 8) -> list[int]:
        """What the decode instance says without a prefill instance."""
        return self.complete("D", prompt, {}, max_tokens=tokens)

    def disaggregated(
        self, prompt: list[int], tokens: int = 8, headers: dict[str, str] | None = None, at_once: bool = False
    ) -> tuple[list[int], float, str]:
        """The tokens by both instances, how long until they were there (s), and the transfer's name.

        The proxy's part: prefill, then decode with the cache of the prefill instance; both `at_once`, so that the
        decode instance says where it wants the cache before it is there.
        """
        transfer = f"x-{uuid.uuid4().hex}"
        sends = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer}
        fetches = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "transfer_id": transfer,
            "remote_bootstrap_addr": f"http://127.0.0.1:{self.bootstrap}",
            "remote_engine_id": "P",
        }
        start_s = time.monotonic()
        if at_once:
            with ThreadPoolExecutor(1) as pool:
                later = pool.submit(
                    self.complete, "D", prompt, headers or {}, max_tokens=tokens, kv_transfer_params=fetches
                )
                self.complete("P", prompt, headers or {}, max_tokens=1, kv_transfer_params=sends)
                return later.result(), time.monotonic() - start_s, transfer
        self.complete("P", prompt, headers or {}, max_tokens=1, kv_transfer_params=sends)
        output = self.complete("D", prompt, headers or {}, max_tokens=tokens, kv_transfer_params=fetches)
        return output, time.monotonic() - start_s, transfer

    def together(self, prompts: list[list[int]]) -> list[list[int]]:
        with ThreadPoolExecutor(len(prompts)) as pool:
            return [output for output, _, _ in pool.map(self.disaggregated, prompts)]

    # ---- what the adapters did ---------------------------------------------------------------------------------------

    def marked(self) -> dict[Path, int]:
        """How long each process's log is now."""
        return {path: path.stat().st_size for path in self.folder.glob("adapter-*.log")}

    def logged(self, since: dict[Path, int]) -> str:
        """What they wrote since then."""
        parts = [path.read_bytes()[since.get(path, 0) :] for path in sorted(self.folder.glob("adapter-*.log"))]
        return b"".join(parts).decode()

    def went_while_computing(self, before: dict[Path, int], number: int, layer_bytes: int) -> None:
        """Since `before`: each layer of the one request `number` was pushed while a later one was computed, but for the
        last, with its stage and deadline, and every byte went once."""
        log = self.logged(before)
        pushed: Counter[int] = Counter()
        for request, layer, size, computing in (map(int, found) for found in PUSHED.findall(log)):
            assert request == number
            if layer < LAYERS - 1:
                assert layer < computing < LAYERS, "a later layer is being computed"
            pushed[layer] += size
        assert {layer: pushed[layer] for layer in range(LAYERS - 1)} == dict.fromkeys(range(LAYERS - 1), layer_bytes)
        moved: Counter[int] = Counter()
        for size, stage, request, deadline_ns, layer in self.messages(log):
            assert (stage, request) == (3, number)
            assert deadline_ns > 0
            moved[layer] += size
        assert moved == Counter(dict.fromkeys(range(LAYERS), layer_bytes)), "every byte once"

    def messages(self, log: str) -> list[tuple[int, int, int, int, int]]:
        """(bytes, stage, request, deadline, layer) of each message in a part of the log."""
        return [tuple(map(int, found)) for found in MESSAGE.findall(log)]

    def stop(self) -> None:
        for process in reversed(self.processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in reversed(self.processes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def until(poll: Any, what: str, limit_s: float = 240.0) -> None:
    eventually(poll, what, limit_s, pause_s=0.2)


@contextlib.contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    folder = cluster.folder
    try:
        cluster.start_coordinator()
        cluster.start_daemon()
        cluster.start_engine("P", "kv_producer")
        cluster.start_engine("D", "kv_consumer")
        for name in "PD":
            until(lambda name=name: cluster.healthy(name), f"vLLM {name} (see {folder})", START_S)
        yield cluster
    finally:
        cluster.stop()
