"""Writes each layer's KV to the decode instance when the layer ends, with vLLM's own Mooncake connector.

A decode instance asks for a request's KV, with its own addresses, as soon as it has the request. If it asks before the
prefill ends, computed KV is written there layer by layer. At the end of the prompt the inner connector sends what has
not arrived by then, and only it reports that the KV is there. A push that fails, comes too early or goes to a place
that turns out wrong therefore costs its bytes and nothing else.

Everything but the writes themselves happens in the event loop of the connector's sender.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import msgspec

from mooncake_adapter.blocks import Owned
from mooncake_adapter.metadata import Metadata, request_number
from mooncake_adapter.vllm.requests import Chunk
from mooncake_adapter.warn_once import LOG, WarnOnce

WRITERS = 16
"""Number of layers that may wait for a permit at once: more urgent ones must not wait for a thread behind them."""
NEEDED = (
    *("sender_loop", "send_kv_to_decode", "tp_size", "pp_size", "kv_cache_config", "registered_layer_names"),
    *("_prepare_transfer_regions", "_build_transfer_params", "_send_blocks"),
)
"""Attributes of the inner connector's worker that are used."""


class Span(NamedTuple):
    """Bytes that go from one address to one of the peer's."""

    address: int
    peer_address: int
    length: int


def without(spans: Iterable[Span], arrived: Iterable[Span]) -> list[Span]:
    """Returns the parts of `spans` that are not in `arrived`. A byte counts as arrived if it went from the same address
    to the same address."""
    there = sorted(arrived)
    rest: list[Span] = []
    for address, peer_address, length in spans:
        shift, at, end = peer_address - address, address, address + length
        for one in there:
            if one.address >= end:
                break
            if one.peer_address - one.address != shift or one.address + one.length <= at:
                continue
            if one.address > at:
                rest.append(Span(at, at + shift, one.address - at))
            at = one.address + one.length
        if at < end:
            rest.append(Span(at, at + shift, end - at))
    return rest


@dataclass(eq=False)
class Asked:
    """Where one decode instance wants the KV of one request."""

    name: str
    """The request's name there."""
    meta: Any
    regions: dict[int, tuple[list[Any], list[Any]]]
    """Regions of each layer, here and there."""
    queued: dict[int, int] = field(default_factory=dict)
    """By layer: number of blocks that are on their way or there."""
    writes: set[asyncio.Task[None]] = field(default_factory=set)
    arrived: list[Span] = field(default_factory=list)


@dataclass(eq=False)
class Source:
    """One request that is being prefilled here."""

    name: str
    prompt_tokens: int
    blocks: list[int] = field(default_factory=list)
    next_token: int = 0
    reach: int = 0
    """Number of blocks that are complete in each layer that this step has ended."""
    computed: dict[int, int] = field(default_factory=dict)
    restarted: bool = False
    """Whether it was preempted. What was pushed may then be overwritten, so all of it is sent at the end."""

    def step(self, chunk: Chunk, block_tokens: int) -> None:
        if self.next_token and chunk.first_token != self.next_token:
            self.restarted = True
        self.blocks += chunk.blocks
        self.next_token = chunk.first_token + chunk.tokens
        self.reach = -(-self.prompt_tokens // block_tokens) if chunk.last else self.next_token // block_tokens


def warn_not_layer_wise(connector: Any, why: str, once: WarnOnce) -> None:
    name = type(connector).__name__
    once.warn("layer-wise", "%s allows no layer-wise push: %s; KV goes at the end of the prompt", name, why)


class LayerPushes(Protocol):
    """Sends each layer of one worker when it ends, with any connector."""

    def begin(self, chunks: Sequence[Chunk]) -> None:
        """A step starts."""

    def layer_ended(self, layer: int, written: Any) -> None:
        """The step has computed this layer. `written`: an event to wait for before the layer is read; None: it can be
        read."""

    def forget(self, number: int) -> None:
        """The request has been sent, or ended without being sent."""


class Pushes:
    """The pushes of one worker."""

    def __init__(
        self,
        worker: Any,
        block_tokens: int,
        metadata_of: Callable[[str, int], Metadata],
        computing: Callable[[], int],
        once: WarnOnce,
    ) -> None:
        """`metadata_of` returns the metadata for a request's name and a layer; `computing` the layer that the step has
        reached."""
        self._worker, self._block_tokens, self._once = worker, block_tokens, once
        self._metadata_of, self._computing = metadata_of, computing
        self._build = worker._build_transfer_params
        self._loop: asyncio.AbstractEventLoop = worker.sender_loop
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="mfs-layer-push")
        self._sources: dict[int, Source] = {}
        self._asked: dict[int, list[Asked]] = {}
        self._running: list[tuple[int, Source]] = []
        inner = worker.send_kv_to_decode

        async def send_kv_to_decode(identity: bytes, sock: Any, meta: Any) -> None:
            mine = self._expect(meta)
            try:
                await inner(identity, sock, meta)
            finally:
                for number, asked in mine:
                    self._asked[number].remove(asked)
                    if not self._asked[number]:
                        del self._asked[number]

        worker.send_kv_to_decode = send_kv_to_decode

    @classmethod
    def made(
        cls,
        connector: Any,
        block_tokens: int,
        metadata_of: Callable[[str, int], Metadata],
        computing: Callable[[], int],
        once: WarnOnce,
    ) -> Pushes | None:
        """Returns None, with a warning, if the inner connector does not allow pushes: KV then goes at the end of the
        prompt."""
        worker = getattr(connector, "connector_worker", None)
        missing = [name for name in NEEDED if not hasattr(worker, name)]
        if missing:
            why = f"it has no {missing[0]}"
            if missing == ["sender_loop"]:
                return None  # a decode instance, which sends nothing
        elif worker is not None and len(worker.kv_cache_config.kv_cache_groups) != 1:
            why = "the model has several groups of KV cache"
        else:
            return cls(worker, block_tokens, metadata_of, computing, once)
        warn_not_layer_wise(connector, why, once)
        return None

    # ---- from the engine's thread ------------------------------------------------------------------------------------

    def begin(self, chunks: Sequence[Chunk]) -> None:
        """A step starts."""
        self._loop.call_soon_threadsafe(self._begin, [one for one in chunks if one.prefill and one.info.sends])

    def layer_ended(self, layer: int, written: Any) -> None:
        """The step has computed this layer. `written`: an event to wait for before the layer is read; None: it can be
        read."""
        self._loop.call_soon_threadsafe(self._layer_ended, layer, written)

    def forget(self, number: int) -> None:
        """The request has been sent, or ended without being sent."""
        self._loop.call_soon_threadsafe(self._sources.pop, number, None)

    # ---- in the sender's loop ----------------------------------------------------------------------------------------

    def _begin(self, chunks: list[Chunk]) -> None:
        self._running = []
        for chunk in chunks:
            info = chunk.info
            source = self._sources.setdefault(info.number, Source(info.name, chunk.prompt_tokens))
            source.step(chunk, self._block_tokens)
            self._running.append((info.number, source))

    def _layer_ended(self, layer: int, written: Any) -> None:
        for number, source in self._running:
            source.computed[layer] = source.reach
            for asked in self._asked.get(number, ()):
                self._push(source, asked, layer, written)

    def _expect(self, meta: Any) -> list[tuple[int, Asked]]:
        """A decode instance has told where it wants the KV of its requests. Never raises."""
        try:
            worker = self._worker
            if (meta.remote_tp_size, meta.remote_pp_size) != (worker.tp_size, worker.pp_size):
                self._deny("prefill and decode split the model differently")
                return []
            local, remote, error = worker._prepare_transfer_regions(meta)
            regions: dict[int, tuple[list[Any], list[Any]]] = {}
            if error is not None or {r.layer_name for r in local} != set(worker.registered_layer_names):
                self._deny(error or "layers lie together in memory")
                return []
            for here, there in zip(local, remote, strict=True):
                both = regions.setdefault(here.layer_index, ([], []))
                both[0].append(here)
                both[1].append(there)
            mine = []
            for name, (transfer, blocks) in meta.req_blocks.items():
                if len(blocks) == 1 and blocks[0]:
                    mine.append((request_number(str(transfer)), Asked(name, meta, regions)))
        except Exception as error:
            self._deny(f"{type(error).__name__}: {error}")
            return []
        for number, asked in mine:
            self._asked.setdefault(number, []).append(asked)
            source = self._sources.get(number)
            for layer in sorted(source.computed) if source is not None else ():
                assert source is not None
                self._push(source, asked, layer, None)
        return mine

    def _deny(self, why: str) -> None:
        self._once.warn("layer-wise", "no layer-wise push to this peer: %s; KV goes at the end of the prompt", why)

    def _push(self, source: Source, asked: Asked, layer: int, written: Any) -> None:
        first, last = asked.queued.get(layer, 0), min(source.computed[layer], len(source.blocks))
        if last <= first or source.restarted or layer not in asked.regions:
            return
        asked.queued[layer] = last
        task = self._loop.create_task(self._write(source, asked, layer, (first, last), written))
        asked.writes.add(task)

    async def _write(self, source: Source, asked: Asked, layer: int, part: tuple[int, int], written: Any) -> None:
        """Writes these blocks of a layer."""
        try:
            transfer, (there,) = asked.meta.req_blocks[asked.name]
            skipped = -(-source.prompt_tokens // self._block_tokens) - len(there)  # the peer already has these
            first, last = max(part[0], skipped), part[1]
            if first >= last or skipped < 0:
                return
            blocks = {asked.name: (transfer, [there[first - skipped : last - skipped]])}
            one = SimpleNamespace(
                p_req_id=source.name, transfer_id=transfer, local_block_ids=[source.blocks[first:last]]
            )
            meta = msgspec.structs.replace(asked.meta, req_blocks=blocks)
            addresses, peers, lengths, failed, _ = await self._build([(asked.name, one)], meta, *asked.regions[layer])
            if failed or not addresses:
                return
            session = f"{meta.remote_hostname}:{meta.remote_port}"
            metadata = self._metadata_of(source.name, layer)
            owned = Owned(addresses, [metadata] * len(addresses))
            if await self._loop.run_in_executor(self._pool, self._send, written, session, owned, peers, lengths) == 0:
                asked.arrived += map(Span, addresses, peers, lengths)
                LOG.debug(
                    "pushed request_id=%d layer=%d bytes=%d computing=%d",
                    *(metadata.request_id, layer, sum(lengths), self._computing()),
                )
        except Exception as error:
            self._once.warn("push", "a layer could not be pushed (%s: %s)", type(error).__name__, error)

    def _send(self, written: Any, session: str, addresses: list[int], peers: list[int], lengths: list[int]) -> int:
        if written is not None:
            written.synchronize()
        return int(self._worker._send_blocks(session, addresses, peers, lengths))

    async def rest(self, transfer: str, name: str, meta: Any, spans: list[Span]) -> list[Span]:
        """Returns what is still to be sent of a request, once all its pushes have ended."""
        number = request_number(transfer)
        asked = next((a for a in self._asked.get(number, ()) if a.name == name and a.meta is meta), None)
        if asked is None:
            return spans
        source = self._sources.get(number)
        if source is not None:
            source.computed.clear()  # what has not been begun goes with the rest
        while asked.writes:
            await asyncio.gather(*asked.writes)
            asked.writes = {task for task in asked.writes if not task.done()}
        return spans if source is None or source.restarted else without(spans, asked.arrived)
