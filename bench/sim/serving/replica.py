"""One engine: calls wait, their prompts are computed in chunks, then they decode; a step at a time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace

from bench.sim.serving.config import Eviction, ReplicaConfig
from bench.sim.serving.cost import Batch, profile
from bench.sim.serving.history import History
from bench.sim.serving.kept import Kept, can_keep
from bench.sim.serving.live import DECODE, ENDED, PROMPT, WAITING, Live
from bench.sim.serving.memory import Memory
from bench.sim.serving.outcome import StepTotals
from bench.sim.serving.planner import Asking, Decision, Journal, Piece, Planner
from bench.sim.serving.router import name_of
from bench.sim.serving.work import Call
from bench.sim.serving.yielding import give_way
from mfsd.policy.route import Replica as View
from mfsd.policy.serve import (
    LaneCut,
    Observed,
    Pace,
    Policy,
    ProgramTable,
    ServeConfig,
    ServeState,
    StepLoad,
    prefill_due_s,
)
from mfsd.policy.serve.pace import prefill_s_per_token

TIMED_EVERY = 16
"""Plans of which one is timed."""
PACE_WEIGHT = 0.01
"""Of the latest step in the mean step time, which says how long an output takes."""


class Replica:
    """`arrive` and `begin` at any time at which it is not `busy`, `finish` when the step that `begin` began ends."""

    def __init__(
        self, number: int, config: ReplicaConfig, seed: int, table: ProgramTable, journal: Journal | None = None
    ) -> None:
        self.number, self.config, self._table, self._journal = number, config, table, journal
        self.name = name_of(number)
        self.totals = StepTotals()
        self.waiting: dict[int, Live] = {}
        self.prompts: dict[int, Live] = {}
        """Partly computed."""
        self.decodes: dict[int, Live] = {}
        self.round = 0
        """Steps so far: all decodes make a token in each."""
        self.context = 0
        """Tokens that the decodes attend to, in all."""
        self.wanted = 0
        """Prompts of running calls and what the decodes have produced: what the fence counts."""
        self.busy_s = 0.0
        self.busy = False
        self.left_tokens = 0
        """Prompt tokens of calls that wait or are partly computed."""
        self.memory = Memory(config, self)
        self.later: Callable[[float, Live], None] | None = None
        """Set by the simulation: brings a swapped call back when its KV has been moved."""
        self._cut = LaneCut() if config.lanes else None
        self._history = History(config)
        self._chance = random.Random(f"{seed} replica {number}")
        self._seconds = config.cost.timer()
        full = config.serve.step_tokens
        self._token_ns = round(1e9 * self._seconds(Batch(full, 0, 0, 500.0 * full, 0, 0)) / full)
        self._ends: list[tuple[int, int, Live]] = []
        self._due: list[tuple[float, int, Live]] = []
        """Decodes with a TBT by when their next token was due when this was last read; it only grows."""
        self._step_s = 0.0
        self._observed: tuple[Observed, ...] = ()
        self._decision: Decision | None = None
        self._took_s = 0.0
        believed = config.belief
        pace = Pace()
        if believed.profiled and config.serve.policy is not Policy.FCFS:
            pace = profile(config.cost, max(4096, config.serve.step_tokens), believed.bias, believed.noise, seed)
        self._learns = believed.learns and config.serve.policy is not Policy.FCFS
        self._serve = config.serve
        self.planner: Planner = self._planner(ServeState(pace=pace))

    def _planner(self, state: ServeState) -> Planner:
        self.totals.policies = (*self.totals.policies, self._serve.policy.value)
        asking = Asking(self, self._serve, state, self._journal)
        if self.config.ask_always or self._journal is not None or not can_keep(self.config, self._serve):
            return asking
        kept = Kept(self, self._serve, asking)
        kept.resume()
        return kept

    def rule(self, serve: ServeConfig) -> None:
        """Another configuration from the next step on; what was learned stays."""
        self._serve = serve
        self.planner = self._planner(self.planner.state)

    @property
    def policy(self) -> Policy:
        return self._serve.policy

    @property
    def kv_room(self) -> int | None:
        """Memory that running calls may have."""
        return None if self.config.kv_tokens is None else self.config.kv_tokens - self.memory.parked

    @property
    def kv_used(self) -> int:
        return self.memory.held

    @property
    def lane_cut_s(self) -> float | None:
        return None if self._cut is None else self._cut.cut_s

    def view(self, call: Call, program: str) -> View:
        """As a router sees it when the call arrives. A token takes what it does in a full step of prompts, which a
        profile says; what its port receives is not simulated here."""
        kv_tokens = self.config.kv_tokens
        return View(
            name=self.name,
            waiting=len(self.waiting),
            running=len(self.prompts) + len(self.decodes),
            waiting_tokens=self.left_tokens,
            wait_ns=self.left_tokens * self._token_ns,
            token_ns=self._token_ns,
            kv_free_share=1.0 - self.memory.held / kv_tokens if kv_tokens else 1.0,
            cached_tokens=min(call.prompt_tokens - 1, self.memory.cached(call, program)),
        )

    @property
    def prefill_s_per_token(self) -> float:
        return prefill_s_per_token(self.planner.state.pace, self._serve.step_tokens, self._serve.ranks)

    def arrive(self, live: Live, now_s: float) -> None:
        """A new call."""
        serve, call = self._serve, live.call
        if live.program:
            live.inherited = self._table.call_arrived(live.program, self.name, now_s)
            live.program_service_s, live.program_wait_s = live.inherited
        live.output_tokens = self._history.expected(call)
        live.output_tokens_max = self._history.bound(call, live.output_tokens)
        each = self._step_s or None
        live.due_s = prefill_due_s(serve, live.arrival_s, call.ttft_s, call.ttlt_s, live.output_tokens, each)
        if self._cut is not None:
            self._cut.arrived(call.prompt_tokens * 1e-4 + live.output_tokens * (self._step_s or serve.decode_step_s))
        self.memory.arrived(live)
        self.queue(live)

    def queue(self, live: Live) -> None:
        """It waits: new, or its KV was taken."""
        live.state, live.request = WAITING, None
        self.waiting[live.request_id] = live
        self.left_tokens += live.prefill_left
        self.planner.joined(live)

    def requeue(self, live: Live, found: int) -> None:
        """While it waits the cache has come to hold another part of its prompt."""
        self.planner.left(live)
        self.left_tokens -= live.prefill_left
        live.found(found)
        self.left_tokens += live.prefill_left
        self.planner.joined(live)

    def begin(self, now_s: float) -> float | None:
        """Plans a step and begins it; when it ends, or None when there is nothing to compute."""
        if not (self.waiting or self.prompts or self.decodes):
            return None
        if self.config.yield_every and self.round % self.config.yield_every == 0:
            give_way(self, self._serve, now_s)
        decision = self._planned(now_s)
        decision = self.memory.make_room(decision, now_s)
        decodes = len(self.decodes) - len(decision.paused)
        if not decision.pieces and not decodes:
            if self.memory.parked and self.memory.unpark():
                return self.begin(now_s)
            if self.prompts or self.decodes:
                raise RuntimeError(f"replica {self.number} at {now_s} s: no call runs although one could")
            return None
        self._start(decision, now_s)
        batch = self._batch(decision, decodes)
        took = self._seconds(batch)
        if self.config.noise:
            took *= self._chance.lognormvariate(0.0, self.config.noise)
        self._note(decision, batch, took)
        self._decision, self._took_s, self.busy = decision, took, True
        return now_s + took

    def _planned(self, now_s: float) -> Decision:
        observed, self._observed = self._observed, ()
        if self.round % TIMED_EVERY:
            return self.planner.plan(observed, now_s)
        began = time.perf_counter_ns()
        decision = self.planner.plan(observed, now_s)
        self.totals.plan_us.append((time.perf_counter_ns() - began) / 1e3)
        return decision

    def _start(self, decision: Decision, now_s: float) -> None:
        """Who begins to compute has its KV from here on."""
        begun = 0
        for live, _ in decision.pieces:
            if live.state == PROMPT:
                begun += 1
                continue
            del self.waiting[live.request_id]
            self.planner.left(live)
            self.memory.take(live)
            live.state, live.request = PROMPT, None
            self.wanted += live.num_prompt_tokens
            self.prompts[live.request_id] = live
            record = live.record
            if record.begin_s is None:
                record.begin_s, record.cached_tokens = now_s, live.num_cached_tokens
                record.relegated = live.request_id in decision.set_aside
            begun += 1
        if begun < len(self.prompts):
            chosen = {piece.live.request_id for piece in decision.pieces}
            for number, live in self.prompts.items():
                if number not in chosen:
                    live.record.paused += 1
        for live in decision.paused:
            live.record.paused += 1

    def _batch(self, decision: Decision, decodes: int) -> Batch:
        tokens = longest = before = 0
        pairs = 0.0
        for live, count in decision.pieces:
            context = live.num_computed_tokens
            tokens += count
            pairs += count * (context + count / 2)
            before += context
            if context > longest:
                longest = context
        context = self.context
        for live in decision.paused:
            context -= live.held(self.round)
        return Batch(tokens, decodes, context, pairs, longest, before)

    def _note(self, decision: Decision, batch: Batch, took: float) -> None:
        totals = self.totals
        totals.steps += 1
        totals.prefill_tokens += batch.prefill_tokens
        totals.decode_tokens += batch.decodes
        if batch.prefill_tokens:
            sizes = totals.chunk_sizes
            sizes[batch.prefill_tokens] = sizes.get(batch.prefill_tokens, 0) + 1
        if self._learns:
            margin = self._serve.pace_margin
            totals.error_sum += abs(decision.step_s / margin / took - 1)
            totals.errors += 1
            totals.over += decision.step_s < took
            believed = self.config.belief
            seen = took * believed.bias
            if believed.noise:
                seen *= self._chance.lognormvariate(0.0, believed.noise)
            load = StepLoad(
                batch.prefill_tokens, batch.prefill_tokens, batch.decodes, batch.decode_context, batch.prefill_pairs
            )
            self._observed = (Observed(load, seen),)
        weight = PACE_WEIGHT if self._step_s else 1.0
        if batch.decodes:
            self._step_s += weight * (took - self._step_s)

    def finish(self, now_s: float) -> list[Live]:
        """The step has ended; who ends with it."""
        decision = self._decision
        assert decision is not None
        self._decision, self.busy = None, False
        self.round += 1
        self.busy_s += self._took_s
        self.totals.end_s = now_s
        for live in decision.paused:
            self._sit_out(live)
        running = len(self.decodes) - len(decision.paused)
        self.context += running
        self.wanted += running
        self.memory.held += running
        if self._due and self._due[0][0] < now_s:
            self._late(now_s, {live.request_id for live in decision.paused})
        ended = self._ended(now_s)
        for piece in decision.pieces:
            if self._computed(piece, now_s):
                ended.append(piece.live)
        self.totals.kv_peak_tokens = max(self.totals.kv_peak_tokens, self.memory.held)
        return ended

    def _sit_out(self, live: Live) -> None:
        live.offset += 1
        live.end_round += 1

    def _late(self, now_s: float, paused: set[int]) -> None:
        """Tokens that came after they were due."""
        due, back = self._due, []
        while due and due[0][0] < now_s:
            _, number, live = due[0]
            if live.state != DECODE or self.decodes.get(number) is not live:
                heappop(due)
                continue
            made = live.produced(self.round) - 1  # before this step's token
            at = self._token_due_s(live, made)
            if at < now_s and number not in paused:
                record = live.record
                record.late_tokens += 1
                record.token_late_s = max(record.token_late_s, now_s - at)
                heappop(due)
                back.append((self._token_due_s(live, made + 1), number, live))
            elif at < now_s:
                back.append(heappop(due))
            else:
                heapreplace(due, (at, number, live))
        for entry in back:
            heappush(due, entry)

    @staticmethod
    def _token_due_s(live: Live, made: int) -> float:
        assert live.tbt_s is not None and live.first_token_s is not None
        first = live.first_token_s
        if live.ttft_s is not None:
            first = max(first, live.arrival_s + live.ttft_s)
        return first + made * live.tbt_s

    def _ended(self, now_s: float) -> list[Live]:
        ended, ends, round_ = [], self._ends, self.round
        while ends and ends[0][0] <= round_:
            _, number, live = heappop(ends)
            if live.state != DECODE or self.decodes.get(number) is not live:
                continue
            if live.end_round > round_:  # it sat steps out
                heappush(ends, (live.end_round, number, live))
                continue
            self._stop_decoding(live)
            self._end(live, now_s)
            ended.append(live)
        return ended

    def _stop_decoding(self, live: Live) -> None:
        del self.decodes[live.request_id]
        self.context -= live.held(self.round)
        live.service_s += self.busy_s - live.since_busy_s
        live.num_output_tokens = live.produced(self.round)
        self.wanted -= live.num_output_tokens

    def _computed(self, piece: Piece, now_s: float) -> bool:
        """A piece of a prompt has been computed; whether the call ends with it."""
        live, tokens = piece
        live.compute(tokens)
        self.left_tokens -= tokens
        self.memory.held += tokens
        live.service_s += self._took_s
        record = live.record
        record.computed_tokens += tokens
        record.chunks += 1
        if live.prefill_left > 0:
            return False
        del self.prompts[live.request_id]
        self.memory.filled(live)
        live.num_output_tokens = live.folded + 1
        if live.first_token_s is None:
            live.first_token_s = record.first_token_s = now_s
        live.offset = self.round - live.num_output_tokens
        live.end_round = live.offset + live.call.output_tokens
        if live.end_round <= self.round:
            self._end(live, now_s)
            return True
        live.state, live.request = DECODE, None
        live.since_busy_s = self.busy_s
        self.decodes[live.request_id] = live
        self.context += live.held(self.round)
        self.wanted += live.num_output_tokens
        self.planner.decoding(live)
        heappush(self._ends, (live.end_round, live.request_id, live))
        if live.tbt_s is not None:
            heappush(self._due, (self._token_due_s(live, live.num_output_tokens), live.request_id, live))
        return False

    def _end(self, live: Live, now_s: float) -> None:
        held = live.num_prompt_tokens + live.num_output_tokens - live.folded - 1
        self.wanted -= live.num_prompt_tokens
        live.state = ENDED
        self.memory.give(live, held)
        record = live.record
        record.end_s, record.produced, record.service_s = now_s, live.num_output_tokens, live.service_s
        if live.program:
            waited = max(0.0, now_s - live.arrival_s - live.service_s)
            self._table.call_ended(live.program, live.inherited, live.service_s, waited, now_s)
        self._history.ended(live.call, live.output_tokens)

    def evict(self, live: Live, how: Eviction, now_s: float) -> None:
        """A running call gives way: it waits again, with what `how` leaves of its KV."""
        held = live.held(self.round)
        if live.state == DECODE:
            self._stop_decoding(live)
        else:
            del self.prompts[live.request_id]
            self.left_tokens -= live.prefill_left
        self.wanted -= live.num_prompt_tokens
        live.record.evicted += 1
        self.totals.evictions += 1
        live.num_prompt_tokens += live.num_output_tokens - live.folded
        live.folded = live.num_output_tokens
        live.state = WAITING
        self.memory.evicted(live, held, how, now_s)

    def stop(self, now_s: float) -> None:
        """The horizon: what has not ended stays as it is."""
        self.totals.cached_tokens = self.memory.hits
        self.totals.busy_s = self.busy_s
        aside = self._serve.relegation.value != "none"
        for live in (*self.waiting.values(), *self.prompts.values(), *self.decodes.values()):
            live.record.produced, live.record.service_s = live.produced(self.round), live.service_s
            if live.record.begin_s is None:
                live.record.relegated = aside and live.due_s < now_s
