"""One engine: calls wait, their prompts are computed in chunks, then they decode; one step at a time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from heapq import heappush

from bench.sim.serving.config import Eviction, ReplicaConfig
from bench.sim.serving.cost import Batch, profile
from bench.sim.serving.history import History
from bench.sim.serving.keeper import Keeper
from bench.sim.serving.kept import Kept, can_keep
from bench.sim.serving.live import DECODE, ENDED, PROMPT, WAITING, Live
from bench.sim.serving.memory import Memory
from bench.sim.serving.outcome import StepTotals
from bench.sim.serving.planner import Asking, Decision, Journal, Planner
from bench.sim.serving.router import name_of
from bench.sim.serving.work import Call
from bench.sim.serving.yielding import give_way
from mfsd import _native
from mfsd.policy.route import Replica as View
from mfsd.policy.route import Role
from mfsd.policy.serve import (
    LaneCut,
    Observed,
    Pace,
    Policy,
    ProgramTable,
    ServeConfig,
    ServeState,
    StepLoad,
    again_due_s,
    prefill_due_s,
)
from mfsd.policy.serve.pace import prefill_s_per_token

PACE_WEIGHT = 0.01
"""Weight of the latest step in the mean step time, which estimates how long an output takes."""


class Replica(_native.StepLoop):
    """Call `arrive` and `begin` at any time at which it is not `busy`, and `finish` when the step that `begin` began
    ends. What happens in each step is in its base, in C; this class has what happens once for each call."""

    memory: Memory
    planner: Planner

    def __init__(
        self, number: int, config: ReplicaConfig, seed: int, table: ProgramTable, journal: Journal | None = None
    ) -> None:
        believed, serve = config.belief, config.serve
        learns = believed.learns and serve.policy is not Policy.FCFS
        super().__init__(config, learns, PACE_WEIGHT)
        self.number, self.config, self._table, self._journal = number, config, table, journal
        self.name = name_of(number)
        self.totals = StepTotals()
        self.memory = Memory(config, self)
        self.later: Callable[[float, Live], None] | None = None
        """Set by the simulation: brings a swapped call back when its KV has been moved."""
        self.keeper: Keeper | None = None
        """Set by the simulation if there is a store."""
        self.role = Role.BOTH
        self.hand_over: Callable[[Live, float], None] | None = None
        """Set by the simulation on prefill replicas: takes a call whose prompt is done to where it decodes."""
        self.coming = 0
        """Calls whose KV is on its way here, or has arrived during a step."""
        self._came: list[Live] = []
        self._evictions_idle = 0
        """Number of evictions when a step last would have computed nothing."""
        self._cut = LaneCut() if config.lanes else None
        self.history = History(config)
        self._chance = random.Random(f"{seed} replica {number}")
        self._seconds = config.cost.timer()
        full = serve.step_tokens
        self._token_ns = round(1e9 * self._seconds(Batch(full, 0, 0, 500.0 * full, 0, 0)) / full)
        pace = Pace()
        if believed.profiled and serve.policy is not Policy.FCFS:
            pace = profile(config.cost, max(4096, serve.step_tokens), believed.bias, believed.noise, seed)
        self._serve = serve
        self.planner = self._planner(ServeState(pace=pace))

    def _planner(self, state: ServeState) -> Planner:
        self.totals.policies = (*self.totals.policies, self._serve.policy.value)
        asking = Asking(self, self._serve, state, self._journal)
        if self.config.ask_always or self._journal is not None or not can_keep(self.config, self._serve):
            return asking
        kept = Kept(self, self._serve, asking)
        kept.resume()
        return kept

    def rule(self, serve: ServeConfig) -> None:
        """Uses another configuration from the next step on; what was learned stays."""
        self._serve = serve
        self.ruled(serve.pace_margin)
        self.planner = self._planner(self.planner.state)

    @property
    def policy(self) -> Policy:
        return self._serve.policy

    @property
    def token_s(self) -> float:
        """Time of a prompt token, in a full step of prompts."""
        return self._token_ns / 1e9

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
        """Returns the replica as a router sees it when the call arrives. A token takes the profile's time in a full
        step of prompts. What its port receives is known only to `Handovers`."""
        kv_tokens = self.config.kv_tokens
        return View(
            name=self.name,
            role=self.role,
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
        """A new call arrives."""
        serve, call = self._serve, live.call
        if live.program:
            live.inherited = self._table.call_arrived(live.program, self.name, now_s, call.prompt_tokens)
            live.program_service_s, live.program_wait_s = live.inherited
        live.output_tokens = self.history.expected(call)
        live.output_tokens_max = self.history.bound(call, live.output_tokens)
        each = self.step_s or None
        live.due_s = prefill_due_s(serve, live.arrival_s, call.ttft_s, call.ttlt_s, live.output_tokens, each)
        live.first_due_s = live.due_s
        if self._cut is not None:
            self._cut.arrived(call.prompt_tokens * 1e-4 + live.output_tokens * (self.step_s or serve.decode_step_s))
        self.memory.arrived(live)
        if self.keeper is None or not self.keeper.arrived(live, now_s):
            self.queue(live)

    def queue(self, live: Live) -> None:
        """The call waits: it is new, or its KV was taken."""
        live.state, live.request = WAITING, None
        self.waiting[live.request_id] = live
        self.left_tokens += live.prefill_left
        self.planner.joined(live)

    def requeue(self, live: Live, found: int) -> None:
        """While the call waits, the cache has come to hold another part of its prompt."""
        self.planner.left(live)
        self.left_tokens -= live.prefill_left
        live.found(found)
        self.left_tokens += live.prefill_left
        self.planner.joined(live)

    def give_way(self, now_s: float) -> None:
        """Makes running calls leave their slots, in some steps, to programs that had less."""
        give_way(self, self._serve, now_s)

    def idle(self, now_s: float) -> float | None:
        """Called if the step would compute nothing. If all that it was to compute has given way, it is planned again
        with the calls that were to pause."""
        if self.memory.parked and self.memory.unpark():
            return self.begin(now_s)
        if self.prompts or self.decodes:
            if self.totals.evictions > self._evictions_idle:
                self._evictions_idle = self.totals.evictions
                return self.begin(now_s)
            raise RuntimeError(f"replica {self.number} at {now_s} s: no call runs although one could")
        return None

    def timed(self, now_s: float) -> Decision:
        """Returns a plan, and records how long it took."""
        began = time.perf_counter_ns()
        decision = self.plan(now_s)
        self.totals.plan_us.append((time.perf_counter_ns() - began) / 1e3)
        return decision

    def asked(self, now_s: float) -> Decision:
        """Returns a plan that is not made in C."""
        observed: tuple[Observed, ...] = ()
        if seen := self.take_seen():
            tokens, decodes, context, pairs, seconds = seen
            observed = (Observed(StepLoad(tokens, tokens, decodes, context, pairs), seconds),)
        return self.planner.plan(observed, now_s)

    def begins(self, live: Live, set_aside: bool, now_s: float) -> None:
        """The call has its KV from now on."""
        del self.waiting[live.request_id]
        self.planner.left(live)
        self.memory.take(live)
        live.state, live.request = PROMPT, None
        self.wanted += live.num_prompt_tokens - live.folded
        self.prompts[live.request_id] = live
        record = live.record
        if record.begin_s is None:
            record.begin_s, record.cached_tokens, record.relegated = now_s, live.num_cached_tokens, set_aside

    def seconds(self, tokens: int, decodes: int, context: int, pairs: float, longest: int, before: int) -> float:
        """Returns the time of a step if the cost is not linear."""
        return self._seconds(Batch(tokens, decodes, context, pairs, longest, before))

    def noise(self) -> float:
        return self._chance.lognormvariate(0.0, self.config.noise)

    def noise_observed(self) -> float:
        return self._chance.lognormvariate(0.0, self.config.belief.noise)

    def ends_now(self, live: Live, now_s: float) -> None:
        """The call's last token has been made."""
        self._stop_decoding(live)
        self._end(live, now_s)

    def _stop_decoding(self, live: Live) -> None:
        del self.decodes[live.request_id]
        self.context -= live.held(self.round)
        live.service_s += self.busy_s - live.since_busy_s
        live.num_output_tokens = live.produced(self.round)
        self.wanted -= live.num_output_tokens

    def filled(self, live: Live, now_s: float) -> bool:
        """The call's prompt has been computed; returns whether the call ends with it."""
        del self.prompts[live.request_id]
        self.memory.filled(live)
        live.num_output_tokens = live.folded + 1
        if self.hand_over is not None and live.num_output_tokens < live.call.output_tokens:
            self._leave(live, now_s)
            return False
        if live.first_token_s is None:
            live.first_token_s = live.record.first_token_s = now_s
        live.offset = self.round - live.num_output_tokens
        live.end_round = live.offset + live.call.output_tokens
        if live.end_round <= self.round:
            self._end(live, now_s)
            return True
        self._decode(live)
        return False

    def _decode(self, live: Live) -> None:
        """The call decodes from the next step on."""
        live.state, live.request = DECODE, None
        live.since_busy_s = self.busy_s
        self.decodes[live.request_id] = live
        self.context += live.held(self.round)
        self.wanted += live.num_output_tokens
        self.planner.decoding(live)
        heappush(self.ends, (live.end_round, live.request_id, live))
        if live.tbt_s is not None:
            heappush(self.due, (self.token_due_s(live, live.num_output_tokens), live.request_id, live))

    def _leave(self, live: Live, now_s: float) -> None:
        """The call decodes on another replica. Its KV stays here until it has moved (`left`)."""
        assert self.hand_over is not None
        self.wanted -= live.num_prompt_tokens - live.folded
        live.state = ENDED
        self.memory.lend(live.num_computed_tokens)
        live.record.prefilled_s, live.record.service_s = now_s, live.service_s
        self.hand_over(live, now_s)

    def left(self, live: Live) -> None:
        self.memory.lent(live, live.num_computed_tokens)

    def takes(self, live: Live) -> bool:
        """Whether the call's KV may be sent here, by the same limit as for admission. Calls that gave way here go
        first."""
        if self.waiting or len(self.prompts) + len(self.decodes) + self.coming >= self._serve.requests_max:
            return False
        room = self.kv_room
        if room is None:
            return True
        held = self.wanted + sum(one.num_output_tokens for one in self.prompts.values())
        if not held and not self.memory.parked:
            return True
        wanted = live.num_prompt_tokens + live.num_output_tokens - live.folded
        return bool(held + wanted <= room * (1.0 - self._serve.kv_margin))

    def expect(self, live: Live) -> None:
        """The call's KV is on its way here."""
        self.coming += 1
        self.memory.expect(live.num_computed_tokens)

    def came(self, live: Live, now_s: float) -> None:
        """The call's KV is here, and with it its first token."""
        live.first_token_s = live.record.first_token_s = now_s
        self._came.append(live)
        if not self.busy:
            self.join()

    def join(self) -> None:
        """Between two steps: calls whose KV has arrived decode from the next one on."""
        for live in self._came:
            self.coming -= 1
            self.memory.expected(live.num_computed_tokens)
            self.wanted += live.num_prompt_tokens - live.folded
            live.offset = self.round - live.num_output_tokens
            live.end_round = live.offset + live.call.output_tokens
            self._decode(live)
        self._came.clear()

    def _end(self, live: Live, now_s: float) -> None:
        held = live.num_prompt_tokens + live.num_output_tokens - live.folded - 1
        self.wanted -= live.num_prompt_tokens - live.folded
        live.state = ENDED
        self.memory.give(live, held)
        record = live.record
        record.end_s, record.produced, record.service_s = now_s, live.num_output_tokens, live.service_s
        if live.program:
            waited = max(0.0, now_s - live.arrival_s - live.service_s)
            self._table.call_ended(live.program, live.inherited, live.service_s, waited, now_s)
        self.history.ended(live.call, live.output_tokens)

    def evict(self, live: Live, how: Eviction, now_s: float) -> None:
        """A running call gives way: it waits again, with what `how` leaves of its KV."""
        held = live.held(self.round)
        if live.state == DECODE:
            self._stop_decoding(live)
        else:
            del self.prompts[live.request_id]
            self.left_tokens -= live.prefill_left
        self.wanted -= live.num_prompt_tokens - live.folded
        live.record.evicted += 1
        self.totals.evictions += 1
        live.num_prompt_tokens += live.num_output_tokens - live.folded
        if live.num_output_tokens > live.folded:
            live.due_s = again_due_s(live.first_due_s, live.arrival_s, now_s)
        live.folded = live.num_output_tokens
        live.state = WAITING
        self.memory.evicted(live, held, how, now_s)

    def stop(self, now_s: float) -> None:
        """The horizon has been reached: what has not ended stays as it is."""
        totals = self.totals
        totals.steps, totals.busy_s, totals.end_s = self.steps, self.busy_s, self.end_s
        totals.prefill_tokens, totals.decode_tokens = self.prefill_tokens, self.decode_tokens
        totals.kv_peak_tokens, totals.cached_tokens = self.kv_peak_tokens, self.memory.hits
        totals.chunk_sizes = self.chunk_sizes
        totals.error_sum, totals.errors, totals.over = self.error_sum, self.errors, self.over
        aside = self._serve.relegation.value != "none"
        for live in (*self.waiting.values(), *self.prompts.values(), *self.decodes.values()):
            live.record.produced, live.record.service_s = live.produced(self.round), live.service_s
            if live.record.begin_s is None:
                live.record.relegated = aside and live.due_s < now_s
