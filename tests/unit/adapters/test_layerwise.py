"""Layer-wise push on stand-ins for the inner connector's worker; with vLLM's own it runs in tests/e2e."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from types import SimpleNamespace as Thing
from typing import Any

import msgspec
import pytest

from mooncake_adapter.metadata import Metadata, request_number
from mooncake_adapter.vllm.layerwise import Pushes, Span, without
from mooncake_adapter.vllm.requests import Chunk, RequestInfo
from mooncake_adapter.warn_once import WarnOnce

LAYERS, BLOCK, TOKENS = 3, 1000, 16
NUMBER = request_number("x-a")


class Meta(msgspec.Struct):
    req_blocks: dict[str, tuple[str, list[list[int]]]]
    remote_hostname: str = "peer"
    remote_port: int = 1
    remote_tp_size: int = 1
    remote_pp_size: int = 1


class Worker:
    """What the pushes use of vLLM's Mooncake worker: layers 100,000 bytes apart, the peer's a million further on."""

    def __init__(self) -> None:
        self.sender_loop = asyncio.new_event_loop()
        self.tp_size = self.pp_size = 1
        self.kv_cache_config = Thing(kv_cache_groups=[None])
        self.registered_layer_names = [f"layers.{layer}" for layer in range(LAYERS)]
        self.sent: list[Span] = []
        self.answer = 0
        self.ending = threading.Event()
        self.asked: list[Future[None]] = []
        threading.Thread(target=self.sender_loop.run_forever, daemon=True).start()

    def _prepare_transfer_regions(self, meta: Any) -> tuple[list[Any], list[Any], str | None]:
        regions = [Thing(layer_name=n, layer_index=i) for i, n in enumerate(self.registered_layer_names)]
        return regions, regions, None

    async def _build_transfer_params(self, ready: Any, meta: Any, local: Any, remote: Any) -> tuple[Any, ...]:
        spans = []
        for name, one in ready:
            (there,), (here,) = meta.req_blocks[name][1], one.local_block_ids
            for region in local:
                for a, b in zip(here[-len(there) :], there, strict=True):
                    at = region.layer_index * 100_000
                    spans.append(Span(at + a * BLOCK, 1_000_000 + at + b * BLOCK, BLOCK))
        return (*map(list, zip(*spans, strict=True)), [], None)

    def _send_blocks(self, session: str, addresses: Any, peers: Any, lengths: Any) -> int:
        assert [owner.request_id for owner in addresses.owners] == [NUMBER] * len(addresses)
        if self.answer == 0:
            self.sent += map(Span, addresses, peers, lengths)
        return self.answer

    async def send_kv_to_decode(self, identity: bytes, sock: Any, meta: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.ending.wait)


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.ending.set()
    wait(made.asked)
    made.sender_loop.call_soon_threadsafe(made.sender_loop.stop)


def pushes_of(worker: Any, once: WarnOnce | None = None) -> Pushes | None:
    def metadata(name: str, layer: int) -> Metadata:
        return Metadata(NUMBER, layer=layer)

    return Pushes.made(Thing(connector_worker=worker), TOKENS, metadata, lambda: 0, once or WarnOnce())


def chunk(first: int, tokens: int, blocks: tuple[int, ...], prompt: int) -> Chunk:
    return Chunk(RequestInfo("a", NUMBER, sends=True), blocks, first, tokens, prompt)


def ask(worker: Worker, there: list[int]) -> Meta:
    meta = Meta({"da": ("x-a", [there])})
    asked = asyncio.run_coroutine_threadsafe(worker.send_kv_to_decode(b"", None, meta), worker.sender_loop)
    worker.asked.append(asked)
    return meta


def rest(worker: Worker, pushes: Pushes, meta: Meta, spans: list[Span]) -> list[Span]:
    return asyncio.run_coroutine_threadsafe(pushes.rest("x-a", "da", meta, spans), worker.sender_loop).result(100)


def whole(here: list[int], there: list[int]) -> list[Span]:
    return [
        Span(layer * 100_000 + a * BLOCK, 1_000_000 + layer * 100_000 + b * BLOCK, BLOCK)
        for layer in range(LAYERS)
        for a, b in zip(here[-len(there) :], there, strict=True)
    ]


def drained(worker: Worker) -> None:
    """What was handed to the loop so far has run."""
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), worker.sender_loop).result(100)


def run(pushes: Pushes, *steps: Chunk, layers: int = LAYERS) -> None:
    for step in steps:
        pushes.begin([step])
        for layer in range(layers):
            pushes.layer_ended(layer, None)


def test_layers_are_sent_when_they_end_and_only_the_rest_at_the_end(worker: Worker) -> None:
    pushes = pushes_of(worker)
    assert pushes
    meta = ask(worker, [7, 8, 9])
    run(pushes, chunk(0, 40, (1, 2, 3), 40), layers=2)
    left = rest(worker, pushes, meta, whole([1, 2, 3], [7, 8, 9]))
    assert sorted(worker.sent + left) == sorted(whole([1, 2, 3], [7, 8, 9]))
    assert {span.address // 100_000 for span in left} == {2}


def test_who_asks_late_gets_what_is_there(worker: Worker) -> None:
    pushes = pushes_of(worker)
    assert pushes
    run(pushes, chunk(0, 40, (1, 2, 3), 40))
    drained(worker)
    assert worker.sent == []
    meta = ask(worker, [7, 8, 9])
    assert rest(worker, pushes, meta, whole([1, 2, 3], [7, 8, 9])) == []
    assert sorted(worker.sent) == sorted(whole([1, 2, 3], [7, 8, 9]))


def test_a_chunk_sends_its_complete_blocks_alone(worker: Worker) -> None:
    pushes = pushes_of(worker)
    assert pushes
    meta = ask(worker, [7, 8, 9])
    run(pushes, chunk(0, 20, (1, 2), 40), chunk(20, 20, (3,), 40))
    assert rest(worker, pushes, meta, whole([1, 2, 3], [7, 8, 9])) == []
    assert sorted(worker.sent) == sorted(whole([1, 2, 3], [7, 8, 9])), "each block once"


def test_a_prefix_that_the_peer_has_is_not_sent(worker: Worker) -> None:
    pushes = pushes_of(worker)
    assert pushes
    meta = ask(worker, [9])
    run(pushes, chunk(0, 40, (1, 2, 3), 40))
    assert rest(worker, pushes, meta, whole([1, 2, 3], [9])) == []
    assert sorted(worker.sent) == sorted(whole([1, 2, 3], [9]))


def test_what_cannot_be_pushed_is_sent_at_the_end(worker: Worker) -> None:
    pushes = pushes_of(worker)
    assert pushes
    worker.answer = -1
    meta = ask(worker, [7, 8, 9])
    run(pushes, chunk(0, 40, (1, 2, 3), 40))
    assert rest(worker, pushes, meta, whole([1, 2, 3], [7, 8, 9])) == whole([1, 2, 3], [7, 8, 9])


def test_a_request_that_is_computed_again_is_sent_whole(worker: Worker) -> None:
    pushes = pushes_of(worker)
    assert pushes
    meta = ask(worker, [7, 8, 9])
    run(pushes, chunk(0, 32, (1, 2), 40), chunk(0, 40, (4, 5, 6), 40))  # preempted in between
    assert rest(worker, pushes, meta, whole([4, 5, 6], [7, 8, 9])) == whole([4, 5, 6], [7, 8, 9])


@pytest.mark.parametrize("change", ["tp", "error", "coalesced"])
def test_a_peer_that_cannot_be_pushed_to_is_reported_once(
    worker: Worker, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    if change == "tp":
        worker.tp_size = 2
    elif change == "error":
        worker._prepare_transfer_regions = lambda meta: ([], [], "layouts differ")  # type: ignore[method-assign]
    else:
        worker.registered_layer_names.append("layers.9")
        worker._prepare_transfer_regions = lambda meta: ([Thing(layer_name="layers.0", layer_index=0)],) * 2 + (None,)  # type: ignore
    pushes = pushes_of(worker)
    assert pushes
    for _ in range(2):
        meta = ask(worker, [7, 8, 9])
    run(pushes, chunk(0, 40, (1, 2, 3), 40))
    assert rest(worker, pushes, meta, whole([1, 2, 3], [7, 8, 9])) == whole([1, 2, 3], [7, 8, 9])
    assert worker.sent == []
    assert [r.levelname for r in caplog.records if r.name == "mfs.adapter"] == ["WARNING"]
    assert "at the end of the prompt" in caplog.text


@pytest.mark.parametrize("lacks", ["_send_blocks", "several groups", "a worker"])
def test_a_connector_that_allows_no_push_is_reported_once(caplog: pytest.LogCaptureFixture, lacks: str) -> None:
    once = WarnOnce()
    worker: Any = None if lacks == "a worker" else Thing(**dict.fromkeys(dir(Worker), None), **vars(Worker()))
    if lacks == "_send_blocks":
        del worker._send_blocks
    elif lacks == "several groups":
        worker.kv_cache_config.kv_cache_groups = [None, None]
    assert [pushes_of(worker, once) for _ in range(2)] == [None, None]
    assert len(caplog.records) == 1
    assert "at the end of the prompt" in caplog.text


def test_what_is_left_is_the_difference_byte_by_byte() -> None:
    chance = random.Random(5)
    for _ in range(300):
        spans = [Span(at * 100, 5000 + at * 100, chance.randrange(1, 100)) for at in range(4)]
        arrived = []
        for _ in range(chance.randrange(4)):
            at = chance.randrange(400)
            arrived.append(Span(at, at + chance.choice((5000, 4999)), chance.randrange(1, 120)))
        there = {(a + i, p + i) for a, p, n in arrived for i in range(n)}
        wanted = {(a + i, p + i) for a, p, n in spans for i in range(n)} - there
        left = [(a + i, p + i) for a, p, n in without(spans, arrived) for i in range(n)]
        assert len(left) == len(set(left))
        assert set(left) == wanted
