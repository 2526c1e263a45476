"""LMCache's own backends, whose channels make NIXL's agents and move KV between two instances in this process.

    lmcache_program.py log|quiet    quiet: the adapter does not log, so that its native path is taken where there is one

Prints one JSON line: for each kind of backend the messages that the adapter asked permits for, as [stage, request,
bytes], and how many bytes went out of the instance that asked and came in to it. Exits 0 when every byte is as it
should be. Run by test_lmcache.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import mooncake_adapter

mooncake_adapter.install()

import torch  # noqa: E402
from lmcache.integration.vllm.vllm_v1_adapter import DisaggSpec  # noqa: E402
from lmcache.utils import CacheEngineKey  # noqa: E402
from lmcache.v1.cache_controller.controller_manager import LMCacheControllerManager  # noqa: E402
from lmcache.v1.cache_controller.worker import LMCacheWorker  # noqa: E402
from lmcache.v1.config import LMCacheEngineConfig  # noqa: E402
from lmcache.v1.distributed.internal_api import L1MemoryDesc  # noqa: E402
from lmcache.v1.distributed.transfer_channel.factory import create_transfer_channel_context  # noqa: E402
from lmcache.v1.memory_management import MemoryFormat  # noqa: E402
from lmcache.v1.metadata import LMCacheMetadata  # noqa: E402
from lmcache.v1.pin_monitor import PinMonitor  # noqa: E402
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend  # noqa: E402
from lmcache.v1.storage_backend.p2p_backend import P2PBackend  # noqa: E402
from lmcache.v1.storage_backend.pd_backend import PDBackend  # noqa: E402
from lmcache.v1.storage_backend.pd_backend_async import PDBackendAsync  # noqa: E402

from bench.ports import free_port  # noqa: E402
from tests.support.waiting import eventually  # noqa: E402

LAYERS, CHUNK_TOKENS, HEADS, WIDTH = 4, 256, 4, 32
SHAPE = torch.Size([2, LAYERS, CHUNK_TOKENS, HEADS * WIDTH])
TYPE, FORMAT = torch.float16, MemoryFormat.KV_2LTD
CHUNK_BYTES = SHAPE.numel() * 2
CHUNKS = 3
HOST = "127.0.0.1"
ROUNDS = 2
"""Of each kind: the first connects."""
MESSAGE = re.compile(r"message bytes=(\d+) stage=(\d+) nic=\d+ request_id=(\d+) ")


class Messages(logging.Handler):
    """What the adapter says of each message that it asks a permit for."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.seen: list[list[int]] = []

    def listen(self) -> None:
        log = logging.getLogger("mfs.adapter")
        log.addHandler(self)
        log.setLevel(logging.DEBUG)

    def emit(self, record: logging.LogRecord) -> None:
        if found := MESSAGE.match(record.getMessage()):
            size_bytes, stage, request = map(int, found.groups())
            self.seen.append([stage, request, size_bytes])


@dataclass
class Counted:
    """What went out of the instance that asked NIXL for it, and what came in to it."""

    out_bytes: int = 0
    in_bytes: int = 0


KEPT: list[Any] = []
"""Backends, for as long as the process lives, as in an engine: their ZeroMQ context waits for ever for their sockets
where it is collected before them."""


@dataclass
class Loop:
    """An event loop that runs in another thread."""

    loop: asyncio.AbstractEventLoop

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(100)


def metadata() -> Any:
    return LMCacheMetadata(
        model_name="small",
        world_size=1,
        local_world_size=1,
        worker_id=0,
        local_worker_id=0,
        kv_dtype=TYPE,
        kv_shape=(LAYERS, 2, CHUNK_TOKENS, HEADS, WIDTH),
        chunk_size=CHUNK_TOKENS,
        role="worker",
    )


def config(**more: Any) -> Any:
    made = LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK_TOKENS, transfer_channel="nixl", nixl_backends=["UCX"], **more
    )
    made.validate()
    return made


def keys(first: int) -> list[Any]:
    return [CacheEngineKey("small", 1, 0, first + at, TYPE) for at in range(CHUNKS)]


def filled(backend: Any) -> list[Any]:
    """New memory of the backend with other numbers each time."""
    made = [backend.allocate(SHAPE, TYPE, FORMAT) for _ in range(CHUNKS)]
    for one in made:
        one.tensor.copy_(torch.rand(SHAPE))
    return made


def same(some: list[Any], others: list[Any]) -> None:
    assert len(some) == len(others) == CHUNKS
    for one, other in zip(some, others, strict=True):
        assert one is not other and torch.equal(one.tensor, other.tensor)


# ---- an instance loads what another has ------------------------------------------------------------------------------


class Controller:
    """LMCache's controller, which knows what instance has which chunk."""

    def __init__(self) -> None:
        self.urls = {name: f"{HOST}:{free_port()}" for name in ("pull", "reply", "heartbeat")}
        self.loop = Loop(asyncio.new_event_loop())
        threading.Thread(target=self.loop.loop.run_forever, daemon=True).start()
        self.loop.run(self._start())

    async def _start(self) -> None:
        self.manager = LMCacheControllerManager(self.urls, health_check_interval=-1, lmcache_worker_timeout=300)
        self._serving = asyncio.ensure_future(self.manager.start_all())


class Instance:
    """The parts of an instance that keep KV and share it, all on the loop of its worker.

    An engine has another loop for its backends. Both use the worker's one socket then, whose reader stays in the first,
    too (pyzmq), so that an answer may not wake what waits for it.
    """

    def __init__(self, name: str, controller: Controller) -> None:
        own = config(
            local_cpu=True,
            max_local_cpu_size=16 * CHUNK_BYTES / (1 << 30),
            enable_p2p=True,
            p2p_host=HOST,
            p2p_init_ports=[free_port()],
            p2p_lookup_ports=[free_port()],
            enable_controller=True,
            lmcache_instance_id=name,
            lmcache_worker_ports=[free_port()],
            controller_pull_url=controller.urls["pull"],
            controller_reply_url=controller.urls["reply"],
        )
        PinMonitor.GetOrCreate(own)  # as the engine does, one for the process
        worker = LMCacheWorker(own, metadata(), None)
        self.loop = Loop(worker.loop)
        self.cpu = LocalCPUBackend(own, metadata(), "cpu", worker)
        self.p2p = P2PBackend(own, metadata(), worker.loop, self.cpu, worker)

    def loads(self, request: str, wanted: list[Any]) -> list[Any]:
        """As a lookup of this request by its engine does."""
        eventually(
            lambda: self.loop.run(self.p2p.batched_async_contains(request, wanted)) == CHUNKS,
            "the controller's word",
            pause_s=0.05,
        )
        lengths = {"cum_chunk_lengths": [at * CHUNK_TOKENS for at in range(CHUNKS + 1)]}
        got: list[Any] = self.loop.run(self.p2p.batched_get_non_blocking(request, wanted, lengths))
        return got

    def moves(self, chosen: list[Any], memory: list[Any], target: Instance) -> None:
        """As a controller's `move` does."""
        where = {"target_peer_init_url": target.p2p.peer_init_url, "offsets": [CHUNK_TOKENS] * CHUNKS}
        read = self.loop.run(self.p2p.async_batched_submit_put_task(chosen, memory, where))
        assert read == CHUNKS


def p2p() -> Counted:
    controller = Controller()
    has, wants = Instance("has", controller), Instance("wants", controller)
    for start in range(0, ROUNDS * 100, 100):
        memory, loaded, moved = filled(has.cpu), keys(start), keys(start + 50)
        has.cpu.batched_submit_put_task(loaded, memory)
        same(wants.loads("chat-7", loaded), memory)
        has.moves(moved, memory, wants)
        same([wants.cpu.get_blocking(key) for key in moved], memory)
    KEPT.extend((controller, has, wants))
    return Counted(out_bytes=ROUNDS * CHUNKS * CHUNK_BYTES, in_bytes=ROUNDS * CHUNKS * CHUNK_BYTES)


# ---- prefill and decode apart ----------------------------------------------------------------------------------------


def receiver_of(kind: type[Any], **more: Any) -> tuple[Any, Any]:
    """A decode instance's backend, and what a prefill instance is told of it."""
    ports = {f"pd_peer_{name}_port": [free_port()] for name in ("init", "alloc", "query")}
    spec = DisaggSpec(
        req_id="chat-8",
        receiver_id=HOST,
        receiver_host=HOST,
        receiver_init_port=ports["pd_peer_init_port"],
        receiver_alloc_port=ports["pd_peer_alloc_port"],
        receiver_query_port=ports["pd_peer_query_port"],
        is_last_prefill=True,
        total_chunks=CHUNKS,
    )
    return kind(config(**_pd("receiver"), pd_peer_host=HOST, **ports, **more), metadata()), spec


def _pd(role: str) -> dict[str, Any]:
    return {
        "enable_pd": True,
        "local_cpu": False,
        "pd_role": role,
        "pd_buffer_size": 16 * CHUNK_BYTES,
        "pd_buffer_device": "cpu",
    }


def pd() -> Counted:
    decode, spec = receiver_of(PDBackend)
    prefill = PDBackend(config(**_pd("sender"), pd_skip_proxy_notification=True), metadata())
    for start in range(0, ROUNDS * 100, 100):
        chosen, memory, back = keys(start), filled(prefill), filled(prefill)
        (sent,) = prefill.batched_submit_put_task(chosen, memory, spec)
        assert sent.result(100) == CHUNKS
        same([decode.data[key] for key in chosen], memory)
        assert prefill.batched_submit_read_task(chosen, back, spec) == CHUNKS
        same(back, memory)
    KEPT.extend((decode, prefill))
    return Counted(out_bytes=ROUNDS * CHUNKS * CHUNK_BYTES, in_bytes=ROUNDS * CHUNKS * CHUNK_BYTES)


def pd_async() -> Counted:
    decode, spec = receiver_of(PDBackendAsync, pd_backend_mode="async")
    proxy = {"pd_proxy_host": HOST, "pd_proxy_port": free_port()}  # of which it is told when a request has gone
    prefill = PDBackendAsync(config(**_pd("sender"), **proxy, pd_backend_mode="async"), metadata())
    sent = threading.Semaphore(0)
    for start in range(0, ROUNDS * 100, 100):
        chosen, memory = keys(start), filled(prefill)
        prefill.batched_submit_put_task(chosen, memory, spec, lambda key: sent.release())
        for _ in chosen:
            assert sent.acquire(timeout=100)
        same([decode.data[key] for key in chosen], memory)
    KEPT.extend((decode, prefill))
    return Counted(out_bytes=ROUNDS * CHUNKS * CHUNK_BYTES)


# ---- a server that several engines share -----------------------------------------------------------------------------


def server() -> Counted:
    memory = [torch.zeros(8 * CHUNK_BYTES, dtype=torch.uint8) for _ in range(2)]
    urls = [f"{HOST}:{free_port()}" for _ in memory]
    wants, has = (
        create_transfer_channel_context("nixl", L1MemoryDesc(one.data_ptr(), one.numel(), CHUNK_BYTES), url, url)
        for one, url in zip(memory, urls, strict=True)
    )
    client = wants.get_transfer_channel_client(urls[1])
    size_bytes, at = CHUNKS * CHUNK_BYTES, 4
    places = [[(CHUNK_BYTES * (first + one), CHUNK_BYTES) for one in range(CHUNKS)] for first in (0, at)]
    here, there = map(wants.get_transfer_channel_address, places)
    for _ in range(ROUNDS):
        memory[1].random_()
        task = client.submit_read(here, there)
        result = eventually(lambda task=task: (got := client.query_read_status(task)).is_finished() and got, "the read")
        assert result.succeeded_mask == [True] * CHUNKS
        assert torch.equal(memory[0][:size_bytes], memory[1][at * CHUNK_BYTES :][:size_bytes])
    KEPT.extend((wants, has))
    return Counted(in_bytes=ROUNDS * size_bytes)


KINDS = {"pd": pd, "pd_async": pd_async, "server": server, "p2p": p2p}


def main(how: str) -> None:
    messages = Messages()
    if how == "log":
        messages.listen()
    session: Any = mooncake_adapter.current_session()
    eventually(lambda: session.scheduled, "the session", pause_s=0.01)
    found: dict[str, Any] = {}
    for name, kind in KINDS.items():
        messages.seen.clear()
        counted = kind()
        found[name] = {"messages": list(messages.seen), "out_bytes": counted.out_bytes, "in_bytes": counted.in_bytes}
    print("\n" + json.dumps(found), flush=True)
    os._exit(0)  # at exit the wheel's libnl and the system's fall over each other


if __name__ == "__main__":
    main(sys.argv[1])
