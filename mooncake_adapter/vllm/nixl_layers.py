"""Writes each layer's KV to the decode instance when the layer ends, with vLLM's own NixlPushConnector.

A decode instance registers where it wants a request's KV as soon as it has the request, by a notification that the
connector's writer thread reads. If that is before the prefill ends, computed KV is written there layer by layer,
without a notification. NIXL's own write at the end of the prompt starts when all layers' writes have ended. It moves
what has not arrived by then, and only it reports that the KV is there. A push that fails, comes too early or goes to a
place that turns out wrong therefore costs its bytes and nothing else.

The writer thread finds out who asks, and makes the last write. A thread of our own does everything else: the engine's
thread and the writer pass events to it in one queue.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mooncake_adapter.metadata import Metadata, MetadataSources
from mooncake_adapter.nixl.state import agent_of
from mooncake_adapter.session import STAGE_P2D
from mooncake_adapter.vllm.layerwise import Source, warn_not_layer_wise
from mooncake_adapter.vllm.nixl_writes import Arguments, Asked, Indices, Write, pairs, rest
from mooncake_adapter.vllm.requests import Chunk
from mooncake_adapter.vllm.worker import layer_number
from mooncake_adapter.warn_once import LOG, WarnOnce

NEEDED = (
    *("nixl_wrapper", "kv_cache_config", "pp_size", "engine_id", "xfer_stats", "shutdown", "get_transfer_results"),
    *("_handle_push_reg_notif", "_pending_d_registrations", "_push_writer_wake", "_ensure_handshake"),
    *("_do_start_push_kv", "_deferred_push_inbox", "_reqs_to_process", "_as_grouped_block_ids"),
    *("_logical_to_kernel_block_ids", "_compute_desc_ids", "_physical_blocks_per_logical_kv_block"),
    *("region_names", "block_len_per_layer", "src_xfer_handles_by_block_size", "dst_xfer_side_handles"),
    *("dst_num_blocks", "dst_region_num_blocks", "dst_region_group_ids", "dst_uses_region_group_mapping"),
    *("use_host_buffer", "_has_mamba", "_is_csa_linear", "_transfer_layer_group_ids", "_engine_last_active"),
    "_remote_agents",
)
"""Attributes of the inner connector's worker that are used."""
POLL_S = 1e-3
"""Interval between two polls of the writes under way, the same as that of the connector's own thread."""
END_S = 2.0


class NixlPushes:
    """The pushes of one worker."""

    def __init__(
        self,
        worker: Any,
        block_tokens: int,
        metadata_of: Callable[[str, int], Metadata],
        computing: Callable[[], int],
        sources: MetadataSources,
        once: WarnOnce,
    ) -> None:
        """`metadata_of` returns the metadata for a request's name and a layer; `computing` the layer that the step has
        reached."""
        self._worker, self._block_tokens, self._once = worker, block_tokens, once
        self._metadata_of, self._computing, self._call = metadata_of, computing, sources.call
        self._base: Callable[[str], str] = sys.modules[type(worker).__module__].get_base_request_id
        self._agent = worker.nixl_wrapper
        self._make = self._agent.make_prepped_xfer
        self._measured: deque[Any] = deque()
        # used by the writer thread
        self._asked: dict[str, Asked] = {}
        self._writing_last: Asked | None = None
        # used by our own thread
        self._news: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._sources: dict[int, Source] = {}
        self._running: list[Source] = []
        self._open: dict[str, Asked] = {}
        self._writes: list[Write] = []
        self._rows: dict[int, list[int]] = {}
        self._hook()
        self._thread = threading.Thread(target=self._run, name="mfs-layer-push", daemon=True)
        self._thread.start()

    @classmethod
    def made(
        cls,
        connector: Any,
        block_tokens: int,
        metadata_of: Callable[[str, int], Metadata],
        computing: Callable[[], int],
        sources: MetadataSources,
        once: WarnOnce,
    ) -> NixlPushes | None:
        """Returns None, with a warning, if the inner connector does not allow pushes: KV then goes at the end of the
        prompt."""
        worker: Any = getattr(connector, "connector_worker", None)
        missing = [name for name in NEEDED if not hasattr(worker, name)]
        if missing:
            why = f"it has no {missing[0]}"
        elif not hasattr(sys.modules[type(worker).__module__], "get_base_request_id"):
            why = "names of requests are not what they were"
        elif agent_of(worker.nixl_wrapper) is None:
            why = "NIXL is not scheduled here (MFS_NIXL=1)"
        elif len(worker.kv_cache_config.kv_cache_groups) != 1:
            why = "the model has several groups of KV cache"
        elif worker.pp_size != 1:
            why = "the model is split into stages"
        else:
            return cls(worker, block_tokens, metadata_of, computing, sources, once)
        warn_not_layer_wise(connector, why, once)
        return None

    def _hook(self) -> None:
        """Replaces methods of the worker by ours, which call the originals."""
        worker = self._worker
        received, write, results, shutdown = (
            *(worker._handle_push_reg_notif, worker._do_start_push_kv),
            *(worker.get_transfer_results, worker.shutdown),
        )

        def _handle_push_reg_notif(notification: bytes) -> None:
            received(notification)
            self._match_registrations()

        def _do_start_push_kv(request: str, blocks: Any, registration: Any) -> None:
            asked = self._asked.get(str(registration.get("request_id")))
            if asked is None:
                write(request, blocks, registration)
            elif not asked.ready:
                if not asked.ending:
                    asked.ending = True
                    self._news.put(partial(self._end, asked, (request, blocks, registration)))
            else:
                del self._asked[asked.name]
                if request not in worker._reqs_to_process:
                    return  # its lease has ended, and its blocks belong to another request
                self._writing_last = asked if asked.source == request else None
                try:
                    write(request, blocks, registration)
                finally:
                    self._writing_last = None

        def make_prepped_xfer(
            operation: str, local_side: Any, local: Any, remote_side: Any, remote: Any, *more: Any, **named: Any
        ) -> Any:
            asked = self._writing_last
            if asked is not None and asked.sides[0] is local_side and asked.sides[1] is remote_side:
                local, remote = rest(local, remote, asked.arrived)
            return self._make(operation, local_side, local, remote_side, remote, *more, **named)

        def get_transfer_results() -> Any:
            while self._measured:
                worker.xfer_stats.record_transfer(self._measured.popleft())
            return results()

        def ended() -> None:
            self._news.put(None)
            self._thread.join(END_S)
            shutdown()

        worker._handle_push_reg_notif, worker._do_start_push_kv = _handle_push_reg_notif, _do_start_push_kv
        worker.get_transfer_results, worker.shutdown = get_transfer_results, ended
        self._agent.make_prepped_xfer = make_prepped_xfer

    # ---- from the engine's thread ------------------------------------------------------------------------------------

    def begin(self, chunks: Sequence[Chunk]) -> None:
        """A step starts."""
        self._news.put(partial(self._begin, [one for one in chunks if one.prefill and one.info.sends]))

    def layer_ended(self, layer: int, written: Any) -> None:
        """The step has computed this layer. `written`: an event to wait for before the layer is read; None: it can be
        read."""
        self._news.put(partial(self._layer_ended, layer, written))

    def forget(self, number: int) -> None:
        """The request has been sent, or ended without being sent."""
        self._news.put(partial(self._forget, number))

    # ---- in the writer thread ----------------------------------------------------------------------------------------

    def _match_registrations(self) -> None:
        """Finds out who asks for a request that has not ended. Never raises."""
        pending = self._worker._pending_d_registrations
        for name in [name for name, asked in self._asked.items() if name not in pending and not asked.ending]:
            self._news.put(partial(self._open.pop, name, None))
            self._asked.pop(name).ending = True
        for name, registration in pending.items():
            if name not in self._asked:
                self._asked[name] = asked = Asked(name, self._base(name), registration)
                try:
                    self._meet(asked)
                except Exception as error:
                    self._deny(f"{type(error).__name__}: {error}")

    def _meet(self, asked: Asked) -> None:
        """Starts the handshake with the instance, which is needed before the end of the prompt."""
        there = asked.registration
        groups = self._worker._as_grouped_block_ids(there["local_block_ids"])
        if len(groups) != 1 or not groups[0]:
            return
        asked.blocks = list(groups[0])
        met = self._worker._ensure_handshake(
            *(asked.engine, there["decode_host"], there["decode_port"], there["decode_tp_size"])
        )
        opened = partial(self._news.put, partial(self._expect, asked))
        if met is None:
            opened()
        else:
            met.add_done_callback(lambda _: opened())

    # ---- in our own --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                news = self._news.get(timeout=POLL_S if self._writes else None)
                if news is None:
                    break
                news()
            except queue.Empty:
                pass
            except Exception as error:
                self._once.warn("push", "a layer could not be pushed (%s: %s)", type(error).__name__, error)
            for write in [write for write in self._writes if self._over(write)]:
                self._writes.remove(write)
                self._account(write)
        for write in self._writes:
            with contextlib.suppress(Exception):
                self._agent.release_xfer_handle(write.handle)

    def _begin(self, chunks: list[Chunk]) -> None:
        self._running = []
        for chunk in chunks:
            info = chunk.info
            source = self._sources.setdefault(info.number, Source(info.name, chunk.prompt_tokens))
            source.step(chunk, self._block_tokens)
            self._running.append(source)
        for source in self._running:
            for asked in self._of(source) if source.restarted else ():
                asked.restarted = True
        self._wake()

    def _wake(self) -> None:
        """Wakes the writer while anyone may still ask; otherwise it sleeps until the step ends."""
        if any(not self._of(source) for source in self._running):
            self._worker._push_writer_wake.set()

    def _of(self, source: Source) -> list[Asked]:
        """Returns who has asked for the request, by its name without what each instance adds to it."""
        base, mine = self._base(source.name), ("", source.name)
        return [asked for asked in self._open.values() if asked.base == base and asked.source in mine]

    def _layer_ended(self, layer: int, written: Any) -> None:
        for source in self._running:
            source.computed[layer] = source.reach
            for asked in self._of(source):
                self._push(source, asked, layer, written)
        self._wake()

    def _forget(self, number: int) -> None:
        source = self._sources.pop(number, None)
        self._running = [one for one in self._running if one is not source]

    def _expect(self, asked: Asked) -> None:
        """A decode instance with which the handshake is done waits for this request."""
        if asked.ending or asked.engine not in self._worker.dst_xfer_side_handles:
            return
        why = self._obstacle(asked.engine)
        if why:
            self._deny(why)
            return
        here = self._worker.src_xfer_handles_by_block_size[self._worker.block_size]
        (there,) = self._worker.dst_xfer_side_handles[asked.engine].values()
        asked.sides = here, there
        self._open[asked.name] = asked
        for source in self._sources.values():
            if asked in self._of(source):
                for layer in sorted(source.computed):
                    self._push(source, asked, layer, None)

    def _obstacle(self, engine: str) -> str:
        """Returns why a layer cannot be written to this peer by itself; "" if it can."""
        worker = self._worker
        peer, topology = worker.transfer_topo.get_engine_info(engine), worker.transfer_topo
        names = worker.region_names
        if topology.tp_ratio(peer.remote_tp_size) != 1 or len(worker.dst_xfer_side_handles[engine]) != 1:
            return "prefill and decode split the model differently"
        per_logical = worker._physical_blocks_per_logical_kv_block
        if (peer.remote_block_size, peer.remote_physical_blocks_per_logical) != (worker.block_size, per_logical):
            return "their blocks have other sizes"
        if worker.use_host_buffer or worker._has_mamba or worker._is_csa_linear or worker._transfer_layer_group_ids:
            return "KV is not attention's alone, or is copied first"
        if any(map(worker.dst_uses_region_group_mapping.get, (worker.engine_id, engine))):
            return "the model has several groups of KV cache"
        if any(len(worker.dst_region_num_blocks[one]) != len(names) for one in (worker.engine_id, engine)):
            return "they have other layers"
        caches = set(worker.device_kv_caches)
        if set(names) != caches or len({layer_number(name) for name in caches}) != len(caches):
            return "layers lie together in memory"
        self._rows = {}
        for row, name in enumerate(names):
            self._rows.setdefault(layer_number(name), []).append(row)
        return ""

    def _deny(self, why: str) -> None:
        self._once.warn("layer-wise", "no layer-wise push to this peer: %s; KV goes at the end of the prompt", why)

    def _push(self, source: Source, asked: Asked, layer: int, written: Any) -> None:
        """Writes the blocks of this layer that are complete and not written yet. The last block of the last layer is
        left for the write with the notification."""
        blocks = -(-source.prompt_tokens // self._block_tokens)
        skipped = blocks - len(asked.blocks)  # leading blocks whose content the peer already has
        first, last = asked.queued.get(layer, skipped), min(source.computed[layer], len(source.blocks))
        if layer == max(self._rows):
            last = min(last, blocks - 1)
        if skipped < 0 or last <= first or source.restarted or layer not in self._rows or not self._is_met(asked):
            return
        asked.source, asked.queued[layer] = source.name, last
        if written is not None:
            written.synchronize()
        worker, here = self._worker, source.blocks[first:last]
        local = self._descriptors(worker.engine_id, here, layer)
        remote = self._descriptors(asked.engine, asked.blocks[first - skipped : last - skipped], layer)
        metadata = self._metadata_of(source.name, layer)._replace(stage=STAGE_P2D)
        token = self._call.set(metadata)
        try:
            handle = self._make("WRITE", asked.sides[0], local, asked.sides[1], remote)
        finally:
            self._call.reset(token)
        row_bytes = sum(worker.block_len_per_layer[row] for row in self._rows[layer])
        size_bytes = row_bytes * len(local) // len(self._rows[layer])
        write = Write(asked, handle, pairs(local, remote), metadata, size_bytes)
        self._writes.append(write)
        asked.open_writes += 1
        try:
            self._agent.transfer(handle)
        except Exception:
            write.state = "ERR"
            raise

    def _is_met(self, asked: Asked) -> bool:
        """Whether the worker still has the instance's lists, which it drops after a long idle time. Marks the instance
        as active."""
        worker, engine = self._worker, asked.engine
        if engine not in worker._remote_agents:
            return False
        worker._engine_last_active[engine] = time.perf_counter()
        return any(one is asked.sides[1] for one in worker.dst_xfer_side_handles.get(engine, {}).values())

    def _descriptors(self, engine: str, blocks: list[int], layer: int) -> Indices:
        """Returns the numbers of these blocks of the layer in the engine's list, as the worker counts them for all
        layers."""
        worker, per_logical = self._worker, self._worker._physical_blocks_per_logical_kv_block
        numbers = worker._compute_desc_ids(
            block_ids=worker._logical_to_kernel_block_ids((blocks,), per_logical),
            dst_num_blocks=worker.dst_num_blocks[engine],
            block_size_ratio=None,
            physical_blocks_per_logical=per_logical,
            region_num_blocks=worker.dst_region_num_blocks[engine],
            region_group_ids=worker.dst_region_group_ids[engine],
            uses_region_group_mapping=worker.dst_uses_region_group_mapping[engine],
        )
        table: Indices = numbers.reshape(len(worker.region_names), -1)
        return table[self._rows[layer]].ravel()

    def _over(self, write: Write) -> bool:
        """Polls a write; returns whether it has ended, so that nothing of it can reach the peer any more. Never
        raises."""
        try:
            if write.state == "PROC":
                write.state = self._agent.check_xfer_state(write.handle)
                if write.state == "PROC":
                    return False
                if write.state == "DONE":
                    write.measured = self._agent.get_xfer_telemetry(write.handle)
        except Exception as error:
            write.state = "ERR"
            self._once.warn("push", "a layer could not be pushed (%s: %s)", type(error).__name__, error)
        try:
            self._agent.release_xfer_handle(write.handle)
        except Exception:
            return False  # it may still be under way
        return True

    def _account(self, write: Write) -> None:
        asked = write.asked
        asked.open_writes -= 1
        if write.measured is not None:
            self._measured.append(write.measured)
        if write.state == "DONE":
            asked.arrived.append(write.places)
            LOG.debug(
                "pushed request_id=%d layer=%d bytes=%d computing=%d",
                *(write.metadata.request_id, write.metadata.layer, write.size_bytes, self._computing()),
            )
        self._go_on(asked)

    def _end(self, asked: Asked, arguments: Arguments) -> None:
        """The prompt has ended: the request's last write may begin when the others have ended."""
        self._open.pop(asked.name, None)
        asked.last = arguments
        self._go_on(asked)

    def _go_on(self, asked: Asked) -> None:
        if asked.last is None or asked.open_writes:
            return
        if asked.restarted:
            asked.arrived.clear()
        asked.ready = True
        self._worker._deferred_push_inbox.put(asked.last)
        self._worker._push_writer_wake.set()
