"""What the connector does in a worker, step by step: batches, layer boundaries, owners of blocks. No vLLM in here."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from mfsd.client import Flow, Request
from mooncake_adapter.blocks import Blocks, Region
from mooncake_adapter.metadata import Metadata, MetadataSources, request_number
from mooncake_adapter.session import STAGE_P2D, STAGE_REUSE, Batch, Session
from mooncake_adapter.slo import monotonic_ns
from mooncake_adapter.vllm.layerwise import LayerPushes
from mooncake_adapter.vllm.requests import Chunk, Load, RequestInfo
from mooncake_adapter.warn_once import LOG, WarnOnce

KEPT = 0.8
"""Weight kept of earlier steps' time and tokens when another step has ended."""
LAYER = re.compile(r"\.(\d+)(?:\.|$)")


def layer_number(name: str, otherwise: int = 0) -> int:
    """Returns the layer's number in a module's name such as "model.layers.7.self_attn.attn"."""
    found = LAYER.search(name)
    return int(found.group(1)) if found else otherwise


def regions_of(caches: Mapping[str, Any]) -> list[Region]:
    """Returns the memory of each layer's cache. Its first dimension counts blocks (tensors of vLLM's layouts)."""
    regions = []
    for name, cache in caches.items():
        try:
            block_bytes = int(cache.stride(0)) * int(cache.element_size())
            regions.append(Region(int(cache.data_ptr()), block_bytes, int(cache.shape[0]), layer_number(name)))
        except (AttributeError, IndexError, TypeError):
            continue
    return [region for region in regions if region.block_bytes > 0]


class Steps:
    """The steps of one worker."""

    def __init__(self, session: Session, sources: MetadataSources, once: WarnOnce, unit: str) -> None:
        """``unit`` names the prefill unit in the cluster."""
        self._session, self._sources, self._once, self._unit = session, sources, once, unit
        self.blocks = Blocks()
        sources.add_finder(self.blocks)
        self.layers = 0
        self.pushes: LayerPushes | None = None
        """Set if each layer is sent when it ends."""
        self._step = 0
        self._batch: Batch | None = None
        self._layer = -1
        self._known: dict[str, Metadata] = {}
        self._awaited: dict[str, Metadata] = {}
        """Requests whose KV is on its way; the deadline is when the KV must be there."""
        self._sending: dict[str, Batch] = {}
        self._begun_ns, self._tokens = 0, 0
        self._spent_ns, self._spent_tokens = 0.0, 0.0
        self._block_bytes = 0

    def register(self, caches: Mapping[str, Any]) -> None:
        regions = regions_of(caches)
        self.blocks.register(regions)
        self.layers = len({region.layer for region in regions}) or len(caches)
        self._block_bytes = sum(region.block_bytes for region in regions)

    def metadata(self, info: RequestInfo) -> Metadata:
        """Returns the metadata of this request's transfers, in whichever thread they start."""
        found = self._known.get(info.name)
        if found is None:
            found = Metadata(info.number, deadline_ns=monotonic_ns(info.deadline_unix_ns))
            self._known[info.name] = found
        return found

    def known(self, request: str) -> Metadata | None:
        """Like metadata(), by the engine's name of the request. None, with one warning, if it has ended or never ran
        here."""
        found = self._known.get(request)
        if found is None:
            self._once.warn(
                "ended", "request %r has ended or was never run here; its transfer goes without a deadline", request
            )
        return found

    def begin(self, chunks: list[Chunk]) -> None:
        """A step starts: its prefills become a batch, and its blocks get owners."""
        self.end()
        prefills = [chunk for chunk in chunks if chunk.prefill]
        if prefills and self.layers:
            self._open(prefills)
        for chunk in chunks:
            self.blocks.give(chunk.blocks, self.metadata(chunk.info))
        if self.pushes is not None:
            self.pushes.begin(chunks)

    def load(self, loads: Iterable[Load]) -> None:
        """KV will come for requests that have no step yet. Their blocks get owners, too, so that MFS knows how much
        each request waits for, and whether it comes in time."""
        for load in loads:
            metadata = self.metadata(load.info)
            needed_ns = self._needed_ns(metadata.deadline_ns, load.tokens)
            awaited = self._awaited[load.info.name] = metadata._replace(deadline_ns=needed_ns)
            self.blocks.give(load.blocks, awaited)

    def awaited(self, request: str) -> Metadata | None:
        """Returns the metadata of a transfer of the whole request; of an incoming one the deadline is when the KV must
        be there."""
        return self._awaited.get(request) or self.known(request)

    def _needed_ns(self, deadline_ns: int, tokens: int) -> int:
        """Returns when KV must be there so that `tokens` can be computed after it by the deadline; 0: unknown."""
        return max(1, deadline_ns - self._compute_ns(tokens)) if deadline_ns and self._spent_tokens else 0

    def _compute_ns(self, tokens: int) -> int:
        """Returns the time for this many tokens at the pace of recent steps; 0 before any step."""
        return int(tokens * self._spent_ns / self._spent_tokens) if self._spent_tokens else 0

    def _open(self, prefills: list[Chunk]) -> None:
        self._step += 1
        self._layer = -1
        self._tokens = sum(chunk.tokens for chunk in prefills)
        self._begun_ns = time.monotonic_ns()
        deadlines = [d for d in (self.metadata(chunk.info).deadline_ns for chunk in prefills) if d]
        self._batch = self._session.batch(
            request_number(f"{self._unit}/{self._step}"),
            layers=self.layers,
            requests=[self._request(chunk) for chunk in prefills],
            compute_ns=self._compute_ns(self._tokens),
            deadline_ns=min(deadlines, default=0),
        )
        for chunk in prefills:
            if chunk.info.sends and chunk.last:  # its batch lasts until it has sent
                self._sending[chunk.info.name] = self._batch
                self._known[chunk.info.name] = self.metadata(chunk.info)._replace(batch=self._batch)

    def _request(self, chunk: Chunk) -> Request:
        info = chunk.info
        size_bytes = len(chunk.blocks) * self._block_bytes
        flows = []
        if info.sends and size_bytes:
            made = range(self.layers) if self.pushes is not None else (self.layers - 1,)
            flows = [Flow(STAGE_P2D, info.decode_nic, size_bytes // len(made), layer=layer) for layer in made]
        flows += [Flow(STAGE_REUSE, "", size_bytes, incoming=True)] if info.loads and size_bytes else []
        deadline_ns = self.metadata(info).deadline_ns
        return Request(info.number, deadline_ns, info.budget_ns, info.program_id, tuple(flows))

    def layer(self, number: int) -> None:
        """The step is about to run this layer. Each layer is reported once, and only in increasing order."""
        if self._batch is not None and number > self._layer:
            self._layer = number
            self._batch.layer(number)

    def layer_ended(self, number: int, written: object = None) -> None:
        """The step has computed this layer. `written`: an event to wait for before its cache is read."""
        self.layer(number + 1)
        if self.pushes is not None:
            self.pushes.layer_ended(number, written)

    @property
    def reached(self) -> int:
        """The layer that the step is running; the number of layers if none runs."""
        return self._layer if self._batch is not None else self.layers

    def metadata_at(self, request: str, layer: int) -> Metadata:
        """Returns the metadata of a transfer of one layer of this request."""
        return self.blocks.at_layer(self.known(request) or Metadata(request_number(request)), layer)

    @property
    def batch(self) -> Batch | None:
        return self._batch

    def end(self) -> None:
        """The step is over. So is its batch, unless one of its requests still has to send."""
        batch, self._batch = self._batch, None
        if batch is None:
            return
        LOG.debug("batch step=%d layers=%d reached=%d", self._step, self.layers, self._layer)
        self._spent_ns = KEPT * self._spent_ns + time.monotonic_ns() - self._begun_ns
        self._spent_tokens = KEPT * self._spent_tokens + self._tokens
        if not any(one is batch for one in self._sending.values()):
            batch.end()

    def finished(self, requests: Iterable[str], sent: Iterable[str]) -> None:
        """These requests have run, and those in `sent` have sent. A request that still has to send stays known until it
        has."""
        for request in requests:
            if request not in self._sending:
                self._forget(request)
        for request in sent:
            self._forget(request)

    def aborted(self, numbers: set[int]) -> None:
        """Forgets requests that the inner connector will not send, by the number of their transfer or of their name."""
        if numbers:
            for request, known in list(self._known.items()):
                if known.request_id in numbers or request_number(request) in numbers:
                    self._forget(request)

    def _forget(self, request: str) -> None:
        self._awaited.pop(request, None)
        metadata = self._known.pop(request, None)
        if metadata is not None:
            self.blocks.take(metadata)
            if self.pushes is not None:
                self.pushes.forget(metadata.request_id)
        batch = self._sending.pop(request, None)
        if batch is not None and batch is not self._batch and not any(b is batch for b in self._sending.values()):
            batch.end()
