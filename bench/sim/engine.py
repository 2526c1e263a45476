"""The run of one point: batches step through their layers, compute and network share one event queue.

A layer of an expert model: wait for its reused KV (stage 1), attention, post its new KV (stage 3), dispatch (stage
2), experts, combine (stage 2). Of a sequence-parallel model: stage 1, the ring (stage 2), compute, stage 3. An instance
within one server has no stage 2. TTFT ends with the last stage-3 byte. Same configuration, rows and seed give the same
result, to the bit.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from bench.sim.activations import Activations, of_one_model
from bench.sim.batching import FirstComeFirstServed, RequestScheduler, batches_before, least_loaded
from bench.sim.bypass import BypassLoad
from bench.sim.cluster import Cluster, Request
from bench.sim.moves import Move, Moves
from bench.sim.network import HostQueuedNetwork, IsolatedNetwork, Network, SharedNetwork
from bench.sim.reuse import ReuseConfig, ReuseDecisions
from bench.sim.scheduling import SchedulingPolicy
from bench.sim.states import ATTENTION, COMBINE, DISPATCH, ENDED, EXPERTS, QUEUED, RING, WAIT, Batch, Chunk, Flow, State


class UnitRouter(Protocol):
    """Gives an arriving request another unit than it was routed to. Without a router all requests keep theirs."""

    def place(self, state: State) -> None: ...


class Simulation:
    """One policy on one prepared workload."""

    def __init__(
        self,
        cluster: Cluster,
        requests: Sequence[Request],
        policy: Callable[[Simulation], SchedulingPolicy],
        scheduler: RequestScheduler | None = None,
        reuse: ReuseConfig | None = None,
        router: Callable[[Simulation], UnitRouter] | None = None,
    ) -> None:
        self.cluster = cluster
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self.serial = 0
        self.states = [State(r, cluster.of(r.unit)) for r in requests]
        self.queues: list[deque[State]] = [deque() for _ in range(cluster.all_units)]
        self.running: list[Batch | None] = [None] * cluster.all_units
        self.batches_begun = [0] * cluster.all_units
        self.shipping: dict[Flow, None] = {}  # stage-3 flows of requests that are not finished
        self.active: dict[int, Batch] = {}  # batches with requests that are not finished
        self.scheduler = scheduler or FirstComeFirstServed()
        self.collective_s: list[tuple[float, float]] = []  # posted, duration
        self.collective_alone_s: list[float] = []  # of the same, what each takes alone
        self.ticking = False
        self.early_fetch = cluster.config.fetch != "batch"
        self.loads_first = cluster.config.fetch == "loaded"
        self.unfinished = len(self.states)
        config = cluster.config
        self.bypass = BypassLoad(self, config.bypass_share, config.bypass_burst_s) if config.bypass_share else None
        self.policy = policy(self)
        own = self.policy.network()
        self.network: Network
        if own is not None:
            self.network = own
        elif self.policy.isolated:
            self.network = IsolatedNetwork()
        elif cluster.config.fabric_classes:
            self.network = HostQueuedNetwork(cluster.topology)
        else:
            self.network = SharedNetwork(cluster.topology)
        self.moves = Moves(self) if config.moves_share else None
        self.activations = Activations(self, config.unit_models) if config.unit_models else None
        asked = reuse is not None and not reuse.as_routed
        self.reuse = ReuseDecisions(self, reuse) if reuse is not None and asked else None
        self.router = router(self) if router is not None else None

    # -- events

    def at(self, time: float, act: Callable[[Any], None], what: Any) -> None:
        self.serial += 1
        heapq.heappush(self.events, (time, self.serial, act, what))

    def run(self) -> None:
        for state in self.states:
            self.at(state.request.arrival_s, self._arrive, state)
        events, network = self.events, self.network
        completed = self._completed
        while True:
            now = network.next()
            if events and events[0][0] < now:
                now = events[0][0]
            if now == float("inf"):
                break
            self.now = now
            for flow in network.advance(now):
                completed(flow)
            while events and events[0][0] <= now:
                _, _, act, what = heapq.heappop(events)
                act(what)

    def _completed(self, flow: Flow) -> None:
        if flow.stage == 2:
            self._collective_done(flow.batch)
        elif flow.stage == 1:
            self._fetched(flow)
        elif isinstance(flow, Move):
            flow.owner.ended(flow)
        elif flow.state is not None and flow.state.computed:
            self._shipped(flow.state)

    # -- flows

    def _post(self, flow: Flow, size: float) -> None:
        flow.posted_s = self.now
        flow.order = self.policy.order(flow)
        self.network.send(flow, size)

    def reorder(self, flow: Flow) -> None:
        """Asks the policy for the flow's place again."""
        order = self.policy.order(flow)
        if order != flow.order:
            flow.order = order
            self.network.reorder(flow)

    def _tick(self, _: object) -> None:
        self.ticking = False
        if self.shipping:
            self.policy.tick()
            self._start_ticking()

    def _start_ticking(self) -> None:
        if not self.ticking and self.policy.tick_s:
            self.ticking = True
            # On a grid, so that the times do not depend on when the first flow came.
            periods = int(self.now / self.policy.tick_s + 1e-9) + 1
            self.at(periods * self.policy.tick_s, self._tick, None)

    # -- requests

    def _arrive(self, state: State) -> None:
        if self.router is not None:
            self.router.place(state)
        if self.reuse is not None:
            self.reuse.place(state)
        if self.activations is not None:
            self.activations.arrives(state)
        else:
            self.enqueue(state)

    def enqueue(self, state: State) -> None:
        """The request's unit runs its model."""
        unit = state.request.unit
        if self.early_fetch:
            self._fetch_early(state)
        else:
            self.queues[unit].append(state)
        if self.running[unit] is None:
            self._start_batch(unit)

    def _fetch_early(self, state: State) -> None:
        """Queues the request and starts to fetch its reused KV. Its group is chosen now, because the KV goes there.
        Until its batch is formed the request has a batch of its own."""
        request = state.request
        request.group = self.next_group(request.unit)
        if self.reuse is not None and request.remote_tokens:
            self.reuse.decide(state)
        self.queues[request.unit].append(state)
        self._count_batches(request.unit)
        if state.request.remote_tokens and not state.undecided:
            self._load(state)

    def next_group(self, unit: int) -> int:
        """Returns the group that would compute a request which queued there now."""
        queue = self.queues[unit]
        tokens = [0] * self.cluster.of(unit).model.groups
        for other in queue:
            tokens[other.request.group] += other.request.new_tokens - other.done_tokens
        return least_loaded(tokens, self.batches_begun[unit] + len(queue))

    def _load(self, state: State) -> None:
        request, cluster = state.request, state.cluster
        self.serial += 2
        state.batch = Batch(self.serial - 1, request.unit, [Chunk(state, request.new_tokens, 0.0)], cluster)
        state.batch.step = QUEUED
        layers = state.batch.layers if self.loads_first else 1
        size = request.remote_tokens * cluster.kv_bytes * layers
        state.reuse = Flow(1, cluster.reuse_path(request), state.batch, state, size, self.serial)
        state.reuse.layers = layers
        self._post(state.reuse, size)

    def recompute(self, state: State, fetched_tokens: int = 0) -> None:
        """Makes the request compute what it would have fetched, except `fetched_tokens`. A load under way ends; no more
        than has arrived of it can be kept."""
        request, loading = state.request, state.reuse
        if loading is not None:
            state.fetched_bytes += loading.message_bytes - self.network.remaining(loading)
            self.network.end(loading)
            state.reuse = None
        again = request.remote_tokens - fetched_tokens
        still = fetched_tokens if loading is None else 0
        state.request = msgspec.structs.replace(
            request,
            new_tokens=request.new_tokens + again,
            context_tokens=request.context_tokens - again,
            remote_tokens=still,
            owners=request.owners if still else (),
        )

    def decided(self, state: State) -> None:
        """The decision about the reuse of a queued request was made."""
        self._count_batches(state.request.unit)
        if state.request.remote_tokens and state.reuse is None:
            self._load(state)
        elif self.running[state.request.unit] is None:
            self._start_batch(state.request.unit)

    def _count_batches(self, unit: int) -> None:
        queue = self.queues[unit]
        waiting = [state.request.new_tokens - state.done_tokens for state in queue]
        for state, before in zip(queue, batches_before(waiting, self.cluster.config.batch_tokens), strict=True):
            state.batches_before = before

    def _start_batch(self, unit: int) -> None:
        queue, cluster = self.queues[unit], self.cluster.of(unit)
        ready = [s for s in queue if s.reuse is None and not s.undecided] if self.loads_first else queue
        if self.activations is not None:
            ready = of_one_model(ready)
        plan = self.scheduler.plan(ready, cluster.config.batch_tokens, self.now)
        if not plan:
            return
        self.serial += 1
        chunks = []
        tokens = [0] * cluster.model.groups
        turn = self.batches_begun[unit]
        self.batches_begun[unit] += 1
        for state, take in plan:
            request = state.request
            first = state.done_tokens == 0
            if request.group < 0 or (first and not self.early_fetch):
                request.group = least_loaded(tokens, turn)
            moved = take + (request.context_tokens if first else 0)
            chunk = Chunk(state, take, moved * cluster.kv_bytes)
            tokens[request.group] += take
            state.done_tokens += take
            if state.done_tokens >= request.new_tokens:
                queue.remove(state)
            chunks.append(chunk)
        batch = self._formed(unit, chunks, tokens)
        self.running[unit] = batch
        self.active[batch.serial] = batch
        for chunk in chunks:
            state = chunk.state
            state.batch = batch
            if state.p2d is None:
                request = state.request
                self.serial += 1
                total = (request.new_tokens + request.context_tokens) * cluster.kv_bytes
                state.p2d_total = total * batch.layers
                state.p2d = Flow(3, cluster.p2d_path(request), batch, state, chunk.p2d_bytes, self.serial)
                self.policy.p2d_created(state.p2d)
                if state.reuse is not None:
                    state.reuse.batch = batch
                elif not request.remote_tokens:
                    state.fetched = batch.layers
                elif not self.early_fetch:
                    self.serial += 1
                    size = request.remote_tokens * cluster.kv_bytes
                    state.reuse = Flow(1, cluster.reuse_path(request), batch, state, size, self.serial)
            else:
                state.p2d.batch = batch
                state.p2d.message_bytes = chunk.p2d_bytes
        self.policy.batch_began(batch)
        for chunk in chunks:
            reuse = chunk.state.reuse
            if reuse is not None and self.early_fetch:
                self.reorder(reuse)
            elif reuse is not None and chunk.state.fetched == 0:
                self._post(reuse, reuse.message_bytes)
        if self.early_fetch:
            self._count_batches(unit)
        self._begin_layer(batch)

    def _formed(self, unit: int, chunks: list[Chunk], tokens: list[int]) -> Batch:
        """Returns the batch of these chunks: its compute times, and the bytes and paths of its collectives."""
        cluster = self.cluster.of(unit)
        model = cluster.model
        batch = Batch(self.serial, unit, chunks, cluster)
        lengths: list[list[tuple[int, int]]] = [[] for _ in range(model.groups)]
        for chunk in chunks:
            lengths[chunk.state.request.group].append((chunk.new, chunk.context))
        batch.attention_s = max(model.attention_s(cluster.gpu, group) for group in lengths)
        batch.experts_s = model.expert_s(cluster.gpu, sum(tokens), cluster.expert_imbalance())
        batch.paths = cluster.collective_paths(unit, tokens, batch.serial)
        batch.collective_bytes = cluster.collective_bytes(sum(tokens))
        batch.wire_s = [batch.collective_bytes / path.isolated_rate for path in batch.paths]
        if cluster.config.belief_error:
            # Policies believe in wrong compute times; the true ones are not changed.
            batch.believed = 1.0 + random.Random(f"belief {cluster.seed} {chunks[0].state.request.number}").uniform(
                -cluster.config.belief_error, cluster.config.belief_error
            )
        return batch

    def _fetched(self, flow: Flow) -> None:
        state = flow.state
        assert state is not None
        state.fetched += flow.layers
        state.fetched_bytes += flow.message_bytes
        if state.fetched < flow.batch.layers:
            flow.layer = state.fetched
            if self.policy.reuse_by_layer:
                self.reorder(flow)
            self.network.send(flow, flow.message_bytes)
        else:
            self.network.end(flow)
            state.reuse = None
            if self.reuse is not None:
                self.reuse.fetched(state)
            if self.loads_first and self.running[flow.batch.unit] is None:
                self._start_batch(flow.batch.unit)
        if flow.batch.step == WAIT:
            self._try_layer(flow.batch)

    # -- layers

    def _begin_layer(self, batch: Batch) -> None:
        batch.step = WAIT
        policy = self.policy
        policy.layer_began(batch)
        if policy.at_layers:
            for chunk in batch.chunks:
                state = chunk.state
                if state.reuse is not None and policy.reuse_by_layer:
                    self.reorder(state.reuse)
                if state.p2d is not None and state.p2d in self.shipping:
                    self.reorder(state.p2d)
            if policy.reuse_by_layer:
                for flow in self.queued_reuse(batch.unit):
                    self.reorder(flow)
        self._try_layer(batch)

    def _try_layer(self, batch: Batch) -> None:
        layer = batch.layer
        for chunk in batch.chunks:
            if chunk.state.fetched <= layer:
                return
        if batch.cluster.model.experts or not batch.paths:
            self._compute(batch, ATTENTION, batch.attention_s)
        else:
            self._collective(batch, RING, 0)

    def _compute(self, batch: Batch, step: int, seconds: float) -> None:
        batch.step = step
        batch.step_end_s = self.now + seconds
        self.at(batch.step_end_s, self._computed, batch)

    def _collective(self, batch: Batch, step: int, index: int) -> None:
        batch.step = step
        self.serial += 1
        flow = Flow(2, batch.paths[index], batch, None, batch.collective_bytes, self.serial)
        flow.layer = batch.layer
        batch.collective = flow
        self._post(flow, batch.collective_bytes)

    def _computed(self, batch: Batch) -> None:
        if batch.step == EXPERTS:
            if batch.paths:
                self._collective(batch, COMBINE, 1)
            else:
                self._end_layer(batch)
            return
        for chunk in batch.chunks:
            state = chunk.state
            flow = state.p2d
            assert flow is not None
            flow.layer = batch.layer
            self.shipping[flow] = None
            self._post(flow, chunk.p2d_bytes)
            state.p2d_posted += chunk.p2d_bytes  # not before: the order depends on what is left, this layer included
        if self.policy.tick_s:
            self._start_ticking()
        if not batch.cluster.model.experts:
            self._end_layer(batch)
        elif batch.paths:
            self._collective(batch, DISPATCH, 0)
        else:
            self._compute(batch, EXPERTS, batch.experts_s)

    def _collective_done(self, batch: Batch) -> None:
        flow = batch.collective
        assert flow is not None
        self.collective_s.append((flow.posted_s, self.now - flow.posted_s))
        self.collective_alone_s.append(flow.message_bytes / flow.path.isolated_rate)
        self.network.end(flow)
        self.policy.flow_ended(flow)
        batch.collective = None
        if batch.step == DISPATCH:
            self._compute(batch, EXPERTS, batch.experts_s)
        elif batch.step == RING:
            self._compute(batch, ATTENTION, batch.attention_s)
        else:
            self._end_layer(batch)

    def _end_layer(self, batch: Batch) -> None:
        if batch.layer == batch.layers - 1:
            self._end_batch(batch)
        else:
            batch.layer += 1
            self._begin_layer(batch)

    def _end_batch(self, batch: Batch) -> None:
        batch.step = ENDED
        unit = batch.unit
        self.running[unit] = None
        self.scheduler.computed(unit, self.now)
        for chunk in batch.chunks:
            state = chunk.state
            if state.done_tokens < state.request.new_tokens:
                batch.left -= 1
                continue
            state.computed = True
            assert state.p2d is not None
            if self.network.remaining(state.p2d) <= 0:
                self._shipped(state)
            else:
                self.reorder(state.p2d)
        self.policy.batch_computed(batch)
        if self.activations is not None:
            for chunk in batch.chunks:
                if chunk.state.computed:
                    self.activations.computed(chunk.state)
        if batch.left == 0 and self.active.pop(batch.serial, None) is not None:
            self.policy.batch_ended(batch)
        self._start_batch(unit)

    def _shipped(self, state: State) -> None:
        if state.finish_s >= 0:
            return
        state.finish_s = self.now
        self.unfinished -= 1
        flow, batch = state.p2d, state.batch
        assert flow is not None and batch is not None
        self.network.end(flow)
        self.shipping.pop(flow, None)
        self.policy.flow_ended(flow)
        batch.left -= 1
        if batch.left == 0 and batch.step == ENDED and self.active.pop(batch.serial, None) is not None:
            self.policy.batch_ended(batch)

    # -- what policies may ask: estimates by the cost model that they believe in

    def queued_reuse(self, unit: int) -> list[Flow]:
        """Returns the stage-1 flows of requests that wait at the unit; none with --fetch batch."""
        if not self.early_fetch:
            return []
        return [s.reuse for s in self.queues[unit] if s.reuse is not None and s.reuse.batch.step == QUEUED]

    def until_layer_s(self, batch: Batch, layer: int) -> float:
        """Returns the time until the batch begins `layer` (`layers`: until it ends) if nothing disturbs it and its
        reused KV is there."""
        if batch.step == QUEUED:
            return self._until_begin_s(batch) + batch.chunks[0].state.request.isolated_s * layer / batch.layers
        if layer <= batch.layer or batch.step == ENDED:
            return 0.0
        attention, experts = batch.attention_s * batch.believed, batch.experts_s * batch.believed
        whole = attention + experts + sum(batch.wire_s)
        step = batch.step
        if step == WAIT:
            rest = whole
        elif step == ATTENTION:
            rest = (
                max(0.0, batch.step_end_s - self.now) * batch.believed
                + experts
                + (sum(batch.wire_s) if batch.cluster.model.experts else 0.0)
            )
        elif step == EXPERTS:
            rest = max(0.0, batch.step_end_s - self.now) * batch.believed + sum(batch.wire_s[1:])
        else:
            flow = batch.collective
            assert flow is not None
            rest = self.network.remaining(flow) / flow.path.isolated_rate
            if step == DISPATCH:
                rest += experts + batch.wire_s[1]
            elif step == RING:
                rest += attention
        return rest + (layer - batch.layer - 1) * whole

    def _until_begin_s(self, batch: Batch) -> float:
        """The same for a batch of one queued request: each batch before it is assumed to take what one request takes
        alone."""
        state, running = batch.chunks[0].state, self.running[batch.unit]
        present = self.until_layer_s(running, running.layers) if running is not None else 0.0
        return present + state.batches_before * state.request.isolated_s

    def compute_left_s(self, state: State) -> float:
        """Returns the time until the request's prefill has ended: its batch and, if the prompt is cut, the chunks to
        come."""
        if state.computed or state.batch is None:
            return 0.0
        left = self.until_layer_s(state.batch, state.batch.layers)
        missing = state.request.new_tokens - state.done_tokens
        if missing:
            left += state.request.isolated_s * missing / state.request.new_tokens
        return left

    def reuse_left(self, state: State) -> float:
        """Returns the bytes that the request still has to fetch, of all layers."""
        flow = state.reuse
        if flow is None or state.batch is None:
            return 0.0
        moving = self.network.remaining(flow) or flow.message_bytes
        return (state.batch.layers - state.fetched - flow.layers) * flow.message_bytes + moving

    def p2d_left(self, state: State) -> float:
        """Returns the bytes that the request still has to ship, produced or not."""
        if state.p2d is None:
            cluster, request = state.cluster, state.request
            return (request.new_tokens + request.context_tokens) * cluster.kv_bytes * cluster.model.layers
        return state.p2d_total - state.p2d_posted + self.network.remaining(state.p2d)

    def earliest_finish_s(self, state: State) -> float:
        """Returns when the request finishes if its KV goes out at full rate from now on."""
        assert state.p2d is not None
        rate = state.p2d.path.isolated_rate
        compute = self.compute_left_s(state)
        tail = 0.0 if state.computed else state.p2d.message_bytes / rate
        return self.now + max(self.p2d_left(state) / rate, compute + tail if not state.computed else 0.0)
