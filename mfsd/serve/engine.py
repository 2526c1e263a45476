"""The request tier of one engine: facts in, plans out. It has no code for particular kinds of engine.

An adapter calls `arrived` and `ended` once per request, `plan` before a step, `step_began` with the load that the step
really computes, and `step_ended` and `produced` after it. If a plan cannot be made it is None, and that step is first
come first served. After three such plans in a row all steps are, until the engine restarts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from mfsd.policy.serve import (
    LaneCut,
    Policy,
    ProgramTable,
    Request,
    ServeConfig,
    ServeState,
    StepLoad,
    StepPlan,
    StepView,
    plan_step,
    prefill_due_s,
    queue_order,
)
from mfsd.policy.serve.fence import held_tokens
from mfsd.policy.serve.keys import service_s
from mfsd.policy.serve.pace import prefill_s_per_token
from mfsd.serve.history import Lengths, Programs
from mfsd.serve.promise import Reader, Warn, Words
from mfsd.serve.records import SUFFIX, Recorder
from mfsd.serve.requests import Entry, Fact
from mfsd.serve.settings import Settings
from mfsd.serve.steps import Begun, Clock, Steps

FAILURES_MAX: Final = 3
"""Number of failed plans in a row after which no more are tried."""
ARRIVAL_AGE_MAX_S: Final = 3600.0
_OF_WAITING: Final = frozenset({Policy.MLFQ})
"""Policies that order by how long a call has waited, so that its view changes from step to step."""

PlanStep = Callable[[StepView, ServeState, ServeConfig, float], tuple[StepPlan, ServeState]]


class Decision(NamedTuple):
    """A plan, with the engine's own names of requests."""

    plan: StepPlan
    tokens: dict[str, int]
    """Number of tokens of each request that is computed, in order."""
    paused: frozenset[str]


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


class TierCount:
    """Counts of the requests of one tier."""

    __slots__ = ("aborted", "late", "met", "no_deadline", "tokens")

    def __init__(self) -> None:
        self.met = self.late = self.no_deadline = self.aborted = self.tokens = 0


class Engine:
    def __init__(
        self,
        settings: Settings,
        config: ServeConfig,
        warn: Warn,
        name: str = "engine",
        clock: Callable[[], float] = time.monotonic,
        plan: PlanStep = plan_step,
    ) -> None:
        """config: the numbers of the settings, within the engine's own limits."""
        self.config, self.name = config, name
        self.base: Final = config
        """The configuration from the settings; `config` is the current one."""
        self.clock = Clock(clock)
        self.reader = Reader(settings, warn)
        self.programs = Programs(ProgramTable(settings.programs))
        self.lengths, self.steps = Lengths(), Steps()
        self.state = ServeState()
        self.entries: dict[str, Entry] = {}
        self.latest: Decision | None = None
        self.counts: Counter[str] = Counter()
        """plans, failed_plans, other_errors, first_come_steps, paused, relegated, lost, held, prefill_tokens,
        decode_tokens."""
        self.chunks: Counter[int] = Counter()
        """Number of prompt tokens -> steps that computed as many, since the reader last cleared it."""
        self.tiers: dict[str, TierCount] = {}
        self.reuse_counts: Callable[[], Mapping[str, int]] = dict
        """Returns the decisions on reuse, counted by choice. The adapter sets it if there are such decisions."""
        self._names: dict[int, str] = {}
        self._running_facts: Sequence[Fact] = ()
        self._computing: tuple[str, ...] = ()
        self._view = StepView()
        self._lanes = LaneCut()
        self._warn, self._plan = warn, plan
        self._next_number, self._failures, self._to_follow = 1, 0, False
        self._seen_aside: frozenset[int] = frozenset()
        self._recorder: Recorder | None = None
        record = settings.record
        if record.folder:
            path = Path(record.folder) / f"{name}{SUFFIX}"
            self._recorder = Recorder(
                path, lambda text: warn("serve-record", text), name, record.size_max_bytes, record.files
            )

    @property
    def gave_up(self) -> bool:
        return self._failures >= FAILURES_MAX

    @property
    def running(self) -> frozenset[str]:
        """Names of the requests that held KV at the latest plan, and of those in the step since then."""
        return frozenset([*[fact.name for fact in self._running_facts], *self._computing])

    def use(self, config: ServeConfig) -> None:
        """Uses another configuration from the next plan on. Requests stay as they are and are ordered anew."""
        if config.policy is Policy.TWO_LANE and self._lanes.cut_s is None:
            now_s = self.clock()
            for name, entry in self.entries.items():
                self._count_in_lane(entry.view(Fact(name, 0), now_s))
        for entry in self.entries.values():
            entry.shown = None
        self.config = config

    def _count_in_lane(self, request: Request) -> None:
        each = prefill_s_per_token(self.state.pace, self.config.step_tokens, self.config.ranks)
        self._lanes.arrived(service_s(request, each, self._decode_step_s()))

    # ---- requests ----------------------------------------------------------------------------------------------------

    def arrived(self, name: str, words: Words, age_s: float, prompt_tokens: int, output_limit: int) -> Entry:
        """Adds a request that the client sent age_s ago."""
        now_s = self.clock()
        age_s = age_s if 0 <= age_s <= ARRIVAL_AGE_MAX_S else 0.0  # the clocks of two processes may differ
        decode_s = self._decode_step_s()
        measured = self.state.pace.small.steps > 0
        wanted = self.reader.wanted(words, decode_s if measured else 0.0)
        arrival_s = now_s - age_s
        expected, bound = self.lengths.expected(wanted, prompt_tokens, float(max(1, output_limit)))
        due_s = prefill_due_s(self.config, arrival_s, wanted.ttft_s, wanted.ttlt_s, expected, decode_s)
        entry = Entry(name, self._next_number, arrival_s, prompt_tokens, wanted, due_s)
        self._next_number += 1
        entry.expected, entry.expected_max = expected, bound
        entry.program, known = self.programs.program_of(wanted)
        if not known:
            self.reader.unusable["parent"] += 1
            self._warn("serve-parent", f"parent {wanted.parent!r} is not known here; its sessions count for themselves")
        entry.inherited = self.programs.arrived(entry.program, self.name, now_s)
        before = self.entries.pop(name, None)
        if before is not None:
            self._names.pop(before.number, None)
            self.programs.ended(before.program, before.inherited, 0.0, 0.0, now_s)
        self.entries[name], self._names[entry.number] = entry, name
        if self.config.policy is Policy.TWO_LANE:
            self._count_in_lane(entry.view(Fact(name, 0), now_s))
        return entry

    def ended(self, name: str, aborted: bool = False, at_limit: bool = False) -> None:
        """Removes a request that has ended. at_limit: its own limit has cut its output."""
        entry = self.entries.pop(name, None)
        if entry is None:
            return
        self._names.pop(entry.number, None)
        now_s = self.clock()
        self.programs.ended(
            entry.program, entry.inherited, entry.service_s, now_s - entry.arrival_s - entry.service_s, now_s
        )
        count = self._tier(entry)
        if aborted:
            count.aborted += 1
            return
        self.lengths.ended(entry.wanted, entry.prompt_tokens, entry.outputs, entry.expected, at_limit)
        in_time = entry.in_time(now_s)
        if in_time is None:
            count.no_deadline += 1
        elif in_time:
            count.met += 1
        else:
            count.late += 1

    def _tier(self, entry: Entry) -> TierCount:
        tier = entry.wanted.tier
        if tier not in self.tiers:
            self.tiers[tier] = TierCount()
        return self.tiers[tier]

    def _decode_step_s(self) -> float:
        pace = self.state.pace
        return pace.step_s(StepLoad(decodes=1)) if pace.small.steps else self.config.decode_step_s

    # ---- steps -------------------------------------------------------------------------------------------------------

    def plan(
        self,
        waiting: Sequence[Fact],
        running: Sequence[Fact],
        kv_tokens: int | None = None,
        kv_used_tokens: int = 0,
        pruned: Iterable[str] = (),
        promised: Iterable[Fact] = (),
    ) -> Decision | None:
        """Plans the next step; None: first come first served. Requests that never arrived are planned without words.
        promised: requests that hold KV memory and cannot be planned yet."""
        self._running_facts, self._computing = running, ()
        if self.gave_up:
            self.first_come()
            return None
        try:
            decision = self._planned(waiting, running, kv_tokens, kv_used_tokens, pruned, promised)
        except Exception as error:  # the engine must go on serving after any error here
            self.failed(error)
            return None
        self._count(decision)
        self.latest, self._to_follow = decision, True
        return decision

    def _planned(
        self,
        waiting: Sequence[Fact],
        running: Sequence[Fact],
        kv_tokens: int | None,
        kv_used_tokens: int,
        pruned: Iterable[str],
        promised: Iterable[Fact],
    ) -> Decision:
        now_s = self.clock()
        view = StepView(
            waiting=tuple([self._waiting(fact, now_s) for fact in waiting]),
            running=tuple([self._running(fact, now_s) for fact in running]),
            observed=self.steps.taken(),
            kv_tokens=kv_tokens,
            kv_used_tokens=kv_used_tokens,
            kv_promised_tokens=sum([held_tokens(self._entry(fact, now_s).view(fact, now_s)) for fact in promised], 0.0),
            pruned=tuple([self.entries[name].number for name in pruned if name in self.entries]),
            lane_cut_s=self._lanes.cut_s,
        )
        before, self._view = self.state, view
        plan, self.state = self._plan(view, before, self.config, now_s)
        if self._recorder is not None:
            self._recorder.step(self.config, before, view, now_s, plan, self.state)
        names = self._names
        return Decision(
            plan,
            {names[one.request_id]: one.num_tokens for one in plan.scheduled},
            frozenset([names[number] for number in plan.paused]),
        )

    def queue_order(self) -> tuple[list[str], frozenset[str]]:
        """Returns the requests that waited at the latest plan, in the order of its policy, and the relegated ones among
        them. It takes about as long as a plan, so call it seldom."""
        if self.latest is None:
            return [], frozenset()
        plan, names = self.latest.plan, self._names
        order = queue_order(self._view, plan, self.state, self.config)
        relegated = frozenset([names[number] for number in plan.relegated if number in names])
        return [names[number] for number in order if number in names], relegated

    def _entry(self, fact: Fact, now_s: float) -> Entry:
        entry = self.entries.get(fact.name)
        if entry is None:
            entry = self.arrived(fact.name, Words(), 0.0, fact.num_computed_tokens + 1, 1 << 20)
        if fact.again_tokens and fact.again_tokens != entry.to_compute:
            entry.again(fact.again_tokens, fact.num_output_tokens, now_s)
            entry.shown = None
        return entry

    def _waiting(self, fact: Fact, now_s: float) -> Request:
        """Returns the view of a waiting request. It is made anew only after a change, because most requests do not
        change."""
        entry = self._entry(fact, now_s)
        shown = entry.shown
        if (
            shown is None
            or shown.num_computed_tokens != fact.num_computed_tokens
            or shown.num_cached_tokens != fact.num_cached_tokens
            or shown.may_load != fact.may_load
            or self.config.policy in _OF_WAITING
        ):
            shown = entry.shown = entry.view(fact, now_s)
        return shown

    def _running(self, fact: Fact, now_s: float) -> Request:
        shown = self._entry(fact, now_s).view(fact, now_s)
        self.entries[fact.name].shown = None
        return shown

    def failed(self, error: Exception) -> None:
        """Counts a plan that could not be made, or that the adapter could not follow."""
        self.counts["failed_plans"] += 1
        self.counts["first_come_steps"] += 1
        self._failures += 1
        self._to_follow = False
        self._warn("serve-plan", f"a plan failed ({_cause(error)}); that step is first come first served")
        if self.gave_up:
            self._warn("serve-gave-up", f"{FAILURES_MAX} plans in a row failed; first come first served until restart")

    def erred(self, error: Exception) -> None:
        """Counts an error outside of a plan, as in counting produced tokens. Plans are still made."""
        self.counts["other_errors"] += 1
        self._warn("serve-error", f"an error beside the plans ({_cause(error)}); requests are served and planned on")

    def _count(self, decision: Decision) -> None:
        plan, counts = decision.plan, self.counts
        counts["plans"] += 1
        counts["paused"] += len(plan.paused)
        counts["held"] += len(plan.held)
        aside = frozenset(plan.lost) | frozenset(plan.relegated)
        if aside != self._seen_aside:
            new = aside - self._seen_aside
            counts["lost"] += len(new & frozenset(plan.lost))
            counts["relegated"] += len(new & frozenset(plan.relegated))
            self._seen_aside = aside

    def first_come(self) -> None:
        """Counts a step that the adapter serves first come first served, whatever the plan says."""
        self.counts["first_come_steps"] += 1
        self._running_facts = ()

    def step_began(self, load: StepLoad, names: tuple[str, ...], key: object) -> None:
        """Takes the load that the engine really computes, which may be less than the plan. `key` is given again to
        `step_ended`."""
        self._computing = names
        if self._to_follow:
            self._failures, self._to_follow = 0, False
        self.counts["prefill_tokens"] += load.prefill_tokens
        self.counts["decode_tokens"] += load.decodes
        if load.prefill_tokens:
            self.chunks[load.prefill_tokens] += 1
        pace = self.state.pace
        estimate_s = pace.step_s(load) if load.tokens and (pace.small.steps or pace.large.steps) else 0.0
        self.steps.began(Begun(key, load, names, self.clock(), estimate_s))

    def step_ended(self, key: object) -> None:
        """Ends the step. Call it before `produced`."""
        ended = self.steps.ended(key, self.clock())
        if ended is None:
            return
        begun, seconds = ended
        for name in begun.names:
            entry = self.entries.get(name)
            if entry is not None:
                entry.service_s += seconds

    def produced(self, name: str, tokens: int) -> None:
        """Counts the tokens that the step that has just ended produced for the request."""
        entry = self.entries.get(name)
        if entry is not None:
            entry.produced(self.config, tokens, self.clock())
            self._tier(entry).tokens += tokens

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
