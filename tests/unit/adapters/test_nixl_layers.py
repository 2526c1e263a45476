"""Layer-wise push over NIXL on stand-ins for the push connector's worker and its agent; with vLLM's own it runs in
tests/e2e."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace as Thing
from typing import Any

import numpy as np
import pytest

from mooncake_adapter.metadata import Metadata, MetadataSources
from mooncake_adapter.session import STAGE_P2D
from mooncake_adapter.vllm.nixl_layers import NixlPushes
from mooncake_adapter.vllm.nixl_writes import pairs, rest
from mooncake_adapter.vllm.requests import Chunk, RequestInfo
from mooncake_adapter.warn_once import WarnOnce
from tests.support.waiting import eventually

LAYERS, TOKENS, NUMBER = 3, 16, 77
HERE, THERE = 100, 1000
"""Blocks of each engine."""
P, D = "cmpl-a-0-0123abcd", "cmpl-a-0-4567cdef"


def get_base_request_id(name: str) -> str:
    """vLLM's, which the worker's module has."""
    return name.rpartition("-")[0]


class Handle:
    """A transfer: which descriptor goes to which, with what."""

    def __init__(self, local: Any, remote: Any, notification: bytes, metadata: Metadata | None) -> None:
        self.pairs = list(zip(np.asarray(local).tolist(), np.asarray(remote).tolist(), strict=True))
        self.notification, self.metadata = notification, metadata
        self.released = False


class Agent:
    """NIXL's agent: transfers are under way until they are let go."""

    def __init__(self, sources: MetadataSources) -> None:
        self._mfs = Thing(scheduling=self)
        self._sources = sources
        self.state = "DONE"
        self.transfers: list[Handle] = []
        self.fails: Exception | None = None
        self.stuck = False

    def make_prepped_xfer(
        self, operation: str, mine: Any, local: Any, theirs: Any, remote: Any, notif_msg: bytes = b""
    ) -> Handle:
        assert (operation, mine, theirs) == ("WRITE", "here", "there")
        return Handle(local, remote, notif_msg, self._sources.call.get())

    def transfer(self, handle: Handle) -> str:
        if self.fails is not None:
            raise self.fails
        self.transfers.append(handle)
        return "PROC"

    def check_xfer_state(self, handle: Handle) -> str:
        return self.state

    def get_xfer_telemetry(self, handle: Handle) -> Any:
        return len(handle.pairs)

    def release_xfer_handle(self, handle: Handle) -> None:
        if self.stuck:
            raise OSError("it is under way")
        handle.released = True


class Worker:
    """What the pushes use of vLLM's push worker; the test is its writer thread."""

    def __init__(self, sources: MetadataSources) -> None:
        self.nixl_wrapper: Any = Agent(sources)
        self.kv_cache_config = Thing(kv_cache_groups=[None])
        self.pp_size, self.engine_id, self.block_size = 1, "P", TOKENS
        self.recorded: list[int] = []
        self.xfer_stats = Thing(record_transfer=self.recorded.append)
        self._pending_d_registrations: dict[str, Any] = {}
        self._push_writer_wake = threading.Event()
        self._deferred_push_inbox: queue.Queue[Any] = queue.Queue()
        self._reqs_to_process = {P}
        self._physical_blocks_per_logical_kv_block = 1
        self.region_names = [f"model.layers.{layer}.attn" for layer in range(LAYERS)]
        self.device_kv_caches = dict.fromkeys(self.region_names)
        self.block_len_per_layer = [10] * LAYERS
        self.src_xfer_handles_by_block_size = {TOKENS: "here"}
        self.dst_xfer_side_handles: dict[str, dict[int, str]] = {"D": {0: "there"}}
        self.dst_num_blocks = {"P": HERE, "D": THERE}
        self.dst_region_num_blocks = {"P": [HERE] * LAYERS, "D": [THERE] * LAYERS}
        self.dst_region_group_ids = {"P": [0] * LAYERS, "D": [0] * LAYERS}
        self.dst_uses_region_group_mapping = {"P": False, "D": False}
        self.use_host_buffer = self._has_mamba = self._is_csa_linear = False
        self._transfer_layer_group_ids = ()
        self._engine_last_active: dict[str, float] = {}
        self._remote_agents = {"D": {(0, 0): "agent"}}
        self.peer = Thing(remote_tp_size=1, remote_block_size=TOKENS, remote_physical_blocks_per_logical=1)
        self.transfer_topo = Thing(get_engine_info=lambda engine: self.peer, tp_ratio=lambda size: size)
        self.handshake: Future[None] | None = None
        self.down = False

    def _ensure_handshake(self, engine: str, host: str, port: int, size: int) -> Future[None] | None:
        return self.handshake

    def _as_grouped_block_ids(self, blocks: Any) -> Any:
        return blocks

    def _logical_to_kernel_block_ids(self, blocks: Any, ratio: int) -> Any:
        return blocks

    def _compute_desc_ids(self, block_ids: Any, region_num_blocks: list[int], **more: Any) -> Any:
        starts = np.cumsum([0, *region_num_blocks[:-1]])[:, None]
        return (starts + np.concatenate(block_ids)[None, :]).ravel()

    def _handle_push_reg_notif(self, notification: bytes) -> None:
        """`notification`: a decode instance's name of the request, and the blocks that it wants."""
        name, *blocks = notification.decode().split()
        self._pending_d_registrations[name] = {
            "request_id": name,
            "decode_engine_id": "D",
            "local_block_ids": [list(map(int, blocks))],
            "decode_host": "",
            "decode_port": 0,
            "decode_tp_size": 1,
        }

    def _do_start_push_kv(self, request: str, blocks: Any, registration: Any) -> None:
        (there,) = registration["local_block_ids"]
        pairs = self.whole(blocks[0], there)
        local, remote = (np.array(side) for side in zip(*pairs, strict=True))
        notification = registration["request_id"].encode()
        self.nixl_wrapper.transfer(
            self.nixl_wrapper.make_prepped_xfer("WRITE", "here", local, "there", remote, notif_msg=notification)
        )

    def whole(self, here: list[int], there: list[int]) -> list[tuple[int, int]]:
        """Which descriptor goes to which, of all layers."""
        here = here[-len(there) :]
        return [
            (layer * HERE + a, layer * THERE + b) for layer in range(LAYERS) for a, b in zip(here, there, strict=True)
        ]

    def get_transfer_results(self) -> str:
        return "results"

    def shutdown(self) -> None:
        self.down = True

    # ---- the test's part ---------------------------------------------------------------------------------------------

    def ask(self, blocks: str = "7 8 9", name: str = D) -> None:
        """A decode instance's registration comes."""
        self._handle_push_reg_notif(f"{name} {blocks}".encode())

    def finish(self, blocks: list[int], request: str = P) -> None:
        """The prompt has ended: the writer matches it and writes, at once or later."""
        self._do_start_push_kv(request, [blocks], self._pending_d_registrations.pop(D))

    def write_deferred(self) -> None:
        """The writer does what was put off."""
        self._do_start_push_kv(*self._deferred_push_inbox.get(timeout=100))

    @property
    def pushed(self) -> list[Handle]:
        return [one for one in self.nixl_wrapper.transfers if not one.notification]

    @property
    def last(self) -> list[Handle]:
        return [one for one in self.nixl_wrapper.transfers if one.notification]


@pytest.fixture
def sources() -> MetadataSources:
    return MetadataSources(WarnOnce())


@pytest.fixture
def worker(sources: MetadataSources) -> Iterator[Worker]:
    made = Worker(sources)
    yield made
    made.shutdown()
    assert made.down


@pytest.fixture
def pushes(worker: Worker, sources: MetadataSources) -> NixlPushes:
    made = pushes_of(worker, sources)
    assert made is not None
    return made


def pushes_of(worker: Any, sources: MetadataSources, once: WarnOnce | None = None) -> NixlPushes | None:
    def metadata(name: str, layer: int) -> Metadata:
        assert name == P
        return Metadata(NUMBER, layer=layer, deadline_ns=5)

    return NixlPushes.made(Thing(connector_worker=worker), TOKENS, metadata, lambda: 0, sources, once or WarnOnce())


def chunk(first: int, tokens: int, blocks: tuple[int, ...], prompt: int = 40) -> Chunk:
    return Chunk(RequestInfo(P, NUMBER, sends=True), blocks, first, tokens, prompt)


def run(pushes: NixlPushes, *steps: Chunk, layers: int = LAYERS) -> None:
    for step in steps:
        pushes.begin([step])
        for layer in range(layers):
            pushes.layer_ended(layer, None)
    assert drained(pushes)


def moved(transfers: list[Handle]) -> list[tuple[int, int]]:
    return sorted(pair for one in transfers for pair in one.pairs)


def test_layers_are_sent_when_they_end_and_only_the_rest_with_the_notification(
    worker: Worker, pushes: NixlPushes
) -> None:
    worker.ask()
    run(pushes, chunk(0, 40, (1, 2, 3)))
    worker.finish([1, 2, 3])
    worker.write_deferred()
    (last,) = worker.last
    assert last.notification == D.encode()
    assert last.pairs == [(2 * HERE + 3, 2 * THERE + 9)], "the last layer's last block"
    assert moved(worker.nixl_wrapper.transfers) == worker.whole([1, 2, 3], [7, 8, 9]), "each once"
    assert [one.metadata for one in worker.pushed] == [
        Metadata(NUMBER, STAGE_P2D, layer, deadline_ns=5) for layer in range(LAYERS)
    ]
    assert all(one.released for one in worker.pushed)
    assert worker.get_transfer_results() == "results"
    assert worker.recorded == [3, 3, 2], "vLLM's own statistics count them, too"


def test_the_notification_waits_for_every_push(worker: Worker, pushes: NixlPushes) -> None:
    worker.nixl_wrapper.state = "PROC"
    worker.ask()
    run(pushes, chunk(0, 40, (1, 2, 3)), layers=2)
    assert len(worker.pushed) == 2
    worker.finish([1, 2, 3])
    assert drained(pushes) and worker._deferred_push_inbox.empty()
    worker.nixl_wrapper.stuck, worker.nixl_wrapper.state = True, "ERR"
    assert drained(pushes) and worker._deferred_push_inbox.empty(), "what cannot be released may still write"
    worker.nixl_wrapper.stuck = False
    worker.write_deferred()
    assert moved(worker.last) == worker.whole([1, 2, 3], [7, 8, 9]), "nothing of what failed counts"


def test_who_asks_late_gets_what_is_there(worker: Worker, pushes: NixlPushes) -> None:
    run(pushes, chunk(0, 40, (1, 2, 3)))
    assert worker._push_writer_wake.wait(100), "the writer looks for registrations while layers end"
    assert not worker.pushed
    worker.ask()
    assert drained(pushes)
    worker.finish([1, 2, 3])
    worker.write_deferred()
    assert len(worker.pushed) == LAYERS
    assert moved(worker.nixl_wrapper.transfers) == worker.whole([1, 2, 3], [7, 8, 9])


def test_who_asks_after_the_end_gets_all_at_once(worker: Worker, pushes: NixlPushes) -> None:
    run(pushes, chunk(0, 40, (1, 2, 3)))
    registration = Worker(MetadataSources(WarnOnce()))
    registration.ask()
    worker._do_start_push_kv(P, [[1, 2, 3]], registration._pending_d_registrations[D])
    assert moved(worker.last) == worker.whole([1, 2, 3], [7, 8, 9])
    assert not worker.pushed


def test_a_chunk_sends_its_complete_blocks_alone(worker: Worker, pushes: NixlPushes) -> None:
    worker.ask()
    run(pushes, chunk(0, 20, (1, 2)), chunk(20, 20, (3,)))
    worker.finish([1, 2, 3])
    worker.write_deferred()
    assert [len(one.pairs) for one in worker.pushed] == [1, 1, 1, 2, 2, 1]
    assert moved(worker.nixl_wrapper.transfers) == worker.whole([1, 2, 3], [7, 8, 9]), "each once"


def test_a_prefix_that_the_peer_has_is_not_sent(worker: Worker, pushes: NixlPushes) -> None:
    worker.ask("9")
    run(pushes, chunk(0, 40, (1, 2, 3)))
    worker.finish([1, 2, 3])
    worker.write_deferred()
    assert len(worker.pushed) == LAYERS - 1
    assert moved(worker.nixl_wrapper.transfers) == worker.whole([1, 2, 3], [9])


def test_a_request_that_is_computed_again_is_sent_whole(worker: Worker, pushes: NixlPushes) -> None:
    worker.ask()
    run(pushes, chunk(0, 32, (1, 2)), chunk(0, 40, (1, 2, 3)))  # preempted in between
    worker.finish([1, 2, 3])
    worker.write_deferred()
    assert len(worker.pushed) == LAYERS
    assert moved(worker.last) == worker.whole([1, 2, 3], [7, 8, 9])


def test_what_was_pushed_for_another_request_of_that_name_does_not_count(worker: Worker, pushes: NixlPushes) -> None:
    worker.ask()
    run(pushes, chunk(0, 40, (1, 2, 3)))
    other = P.replace("0123abcd", "99999999")
    worker._reqs_to_process.add(other)
    worker.finish([1, 2, 3], other)
    worker.write_deferred()
    assert moved(worker.last) == worker.whole([1, 2, 3], [7, 8, 9])


def test_nothing_is_written_after_the_lease_has_ended(worker: Worker, pushes: NixlPushes) -> None:
    worker.ask()
    run(pushes, chunk(0, 40, (1, 2, 3)))
    worker.finish([1, 2, 3])
    worker._reqs_to_process.clear()
    worker.write_deferred()
    assert worker.last == []


def test_a_push_that_fails_is_sent_at_the_end(
    worker: Worker, pushes: NixlPushes, caplog: pytest.LogCaptureFixture
) -> None:
    worker.nixl_wrapper.fails = OSError("no peer")
    worker.ask()
    run(pushes, chunk(0, 40, (1, 2, 3)))
    worker.finish([1, 2, 3])
    worker.nixl_wrapper.fails = None
    worker.write_deferred()
    assert moved(worker.last) == worker.whole([1, 2, 3], [7, 8, 9])
    assert [r.levelname for r in caplog.records if r.name == "mfs.adapter"] == ["WARNING"]


def test_it_waits_for_the_layer_to_be_written(worker: Worker, pushes: NixlPushes) -> None:
    written = threading.Event()
    worker.ask()
    pushes.begin([chunk(0, 40, (1, 2, 3))])
    pushes.layer_ended(0, Thing(synchronize=lambda: written.wait(100)))
    pushes.layer_ended(1, None)
    assert not worker.pushed
    written.set()
    eventually(lambda: len(worker.pushed) == 2)


@pytest.mark.parametrize("fails", [False, True])
def test_a_handshake_is_waited_for(worker: Worker, pushes: NixlPushes, fails: bool) -> None:
    worker.handshake = Future()
    peers, worker.dst_xfer_side_handles = worker.dst_xfer_side_handles, {}
    worker.ask()
    run(pushes, chunk(0, 40, (1, 2, 3)))
    assert not worker.pushed
    if fails:
        worker.handshake.set_exception(OSError("no peer"))
    else:
        worker.dst_xfer_side_handles = peers
        worker.handshake.set_result(None)
    assert drained(pushes)
    worker.finish([1, 2, 3])
    worker.write_deferred()
    assert len(worker.pushed) == (0 if fails else LAYERS)
    assert moved(worker.nixl_wrapper.transfers) == worker.whole([1, 2, 3], [7, 8, 9])


@pytest.mark.parametrize("again", [False, True])
def test_an_instance_that_was_dropped_is_not_written_to(worker: Worker, pushes: NixlPushes, again: bool) -> None:
    """Its list of descriptors is no longer NIXL's."""
    worker.ask()
    assert drained(pushes)
    if again:
        worker.dst_xfer_side_handles["D"] = {0: "another"}
    else:
        del worker._remote_agents["D"], worker.dst_xfer_side_handles["D"]
    run(pushes, chunk(0, 40, (1, 2, 3)))
    assert not worker.pushed
    assert list(worker._engine_last_active) == (["D"] if again else [])


def test_a_registration_that_has_gone_is_forgotten(worker: Worker, pushes: NixlPushes) -> None:
    worker.ask()
    worker._pending_d_registrations.clear()
    worker.ask(name="other-1")
    run(pushes, chunk(0, 40, (1, 2, 3)))
    assert not worker.pushed


OBSTACLES = ["tp", "block size", "host buffer", "mamba", "groups", "regions", "packed"]


@pytest.mark.parametrize("change", OBSTACLES)
def test_a_peer_that_cannot_be_pushed_to_is_reported_once(
    worker: Worker, pushes: NixlPushes, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    match change:
        case "tp":
            worker.peer.remote_tp_size = 2
        case "block size":
            worker.peer.remote_block_size = 8
        case "host buffer":
            worker.use_host_buffer = True
        case "mamba":
            worker._has_mamba = True
        case "groups":
            worker.dst_uses_region_group_mapping["D"] = True
        case "regions":
            worker.dst_region_num_blocks["D"] = [THERE]
        case "packed":
            worker.device_kv_caches["model.layers.9.attn"] = None
    worker.ask(name="other-1")
    worker.ask()
    run(pushes, chunk(0, 40, (1, 2, 3)))
    worker.finish([1, 2, 3])
    worker.write_deferred()
    assert not worker.pushed
    assert moved(worker.last) == worker.whole([1, 2, 3], [7, 8, 9])
    assert [r.levelname for r in caplog.records if r.name == "mfs.adapter"] == ["WARNING"]
    assert "at the end of the prompt" in caplog.text


LACKS = ["_push_writer_wake", "names", "MFS_NIXL", "several groups", "stages", "a worker"]


@pytest.mark.parametrize("lacks", LACKS)
def test_a_connector_that_allows_no_push_is_reported_once(
    caplog: pytest.LogCaptureFixture, sources: MetadataSources, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    once = WarnOnce()
    worker: Any = None if lacks == "a worker" else Worker(sources)
    match lacks:
        case "_push_writer_wake":
            del worker._push_writer_wake
        case "names":
            monkeypatch.delitem(globals(), "get_base_request_id")
        case "MFS_NIXL":
            del worker.nixl_wrapper._mfs
        case "several groups":
            worker.kv_cache_config.kv_cache_groups = [None, None]
        case "stages":
            worker.pp_size = 2
    assert [pushes_of(worker, sources, once) for _ in range(2)] == [None, None]
    assert len(caplog.records) == 1
    assert "at the end of the prompt" in caplog.text


def test_a_registration_that_makes_no_sense_stops_no_other(
    worker: Worker, pushes: NixlPushes, caplog: pytest.LogCaptureFixture
) -> None:
    worker._pending_d_registrations["odd-1"] = {"request_id": "odd-1"}
    worker.ask()
    run(pushes, chunk(0, 40, (1, 2, 3)))
    worker.finish([1, 2, 3])
    worker.write_deferred()
    assert len(worker.pushed) == LAYERS
    assert moved(worker.nixl_wrapper.transfers) == worker.whole([1, 2, 3], [7, 8, 9])
    assert [r.levelname for r in caplog.records if r.name == "mfs.adapter"] == ["WARNING"]


def test_what_is_left_has_one_descriptor_at_least() -> None:
    local, remote = np.array([1, 2, 3]), np.array([7, 8, 9])
    assert [side.tolist() for side in rest(local, remote, [])] == [[1, 2, 3], [7, 8, 9]]
    arrived = [pairs([1, 3], [7, 8])]
    assert [side.tolist() for side in rest(local, remote, arrived)] == [[2, 3], [8, 9]], "3 went elsewhere"
    assert [side.tolist() for side in rest(local, remote, [pairs(local, remote)])] == [[3], [9]]


def drained(pushes: NixlPushes) -> bool:
    """What was handed over so far has been done, and after it what is under way was examined."""
    for _ in range(2):
        done = threading.Event()
        pushes._news.put(done.set)
        assert done.wait(100)
    return True
