"""The request tier of one engine: facts in, plans out. Knows requests, steps and programs, and no engine by name.

An adapter calls `arrived` and `ended` once a request, `plan` before a step, `step_began` with what the step really
computes, and `step_ended` with the tokens that came out. A plan that cannot be made is None: that step is first come
first served. Three in a row, and all are until the engine starts again.
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
"""Plans in a row that cannot be made before no more are tried."""
ARRIVAL_AGE_MAX_S: Final = 3600.0
_OF_WAITING: Final = frozenset({Policy.MLFQ})
"""Orders by how long a call has waited: its view changes from step to step."""

PlanStep = Callable[[StepView, ServeState, ServeConfig, float], tuple[StepPlan, ServeState]]


class Decision(NamedTuple):
    """A plan by the engine's own names."""

    plan: StepPlan
    tokens: dict[str, int]
    """Of each request that is computed, first in order first."""
    paused: frozenset[str]


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


class TierCount:
    """Requests of one tier."""

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
        """config: the settings' numbers within the engine's own limits."""
        self.config, self.name = config, name
        self.base: Final = config
        """As configured; `config` is what holds now."""
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
        """Steps that computed so many prompt tokens, since who reads it has cleared it."""
        self.tiers: dict[str, TierCount] = {}
        self.reuse_counts: Callable[[], Mapping[str, int]] = dict
        """What was decided on reuse, by choice; the adapter sets it where something decides that."""
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
        """Names of the requests that hold KV: those that did at the latest plan, and those of the step since then."""
        return frozenset([*[fact.name for fact in self._running_facts], *self._computing])

    def use(self, config: ServeConfig) -> None:
        """Another configuration from the next plan on. Requests stay as they are; the order is made anew from them."""
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
        """A request that the client sent age_s ago."""
        now_s = self.clock()
        age_s = age_s if 0 <= age_s <= ARRIVAL_AGE_MAX_S else 0.0  # clocks of two processes may differ
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
        """at_limit: its output was cut by its own limit."""
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
        """What the next step computes; None: first come first served. Requests that never arrived are taken as without
        words. promised: those that hold KV memory and cannot be planned yet."""
        self._running_facts, self._computing = running, ()
        if self.gave_up:
            self.first_come()
            return None
        try:
            decision = self._planned(waiting, running, kv_tokens, kv_used_tokens, pruned, promised)
        except Exception as error:  # the engine serves on, whatever is wrong here
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
        """What waited at the latest plan, in the order of its policy, and what of it was relegated. Takes about as long
        as a plan, so it is asked seldom."""
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
        """Made anew only where something changed: many wait, few move."""
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
        """A plan could not be made, or the adapter could not follow it."""
        self.counts["failed_plans"] += 1
        self.counts["first_come_steps"] += 1
        self._failures += 1
        self._to_follow = False
        self._warn("serve-plan", f"a plan failed ({_cause(error)}); that step is first come first served")
        if self.gave_up:
            self._warn("serve-gave-up", f"{FAILURES_MAX} plans in a row failed; first come first served until restart")

    def erred(self, error: Exception) -> None:
        """Something else than a plan went wrong, as in counting what came out: plans are made all the same."""
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
        """The adapter takes this step first come first served, whatever the plan said."""
        self.counts["first_come_steps"] += 1
        self._running_facts = ()

    def step_began(self, load: StepLoad, names: tuple[str, ...], key: object) -> None:
        """What the engine really computes, which may be less than the plan. `key` is given again when it ends."""
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
        """Before its tokens are counted."""
        ended = self.steps.ended(key, self.clock())
        if ended is None:
            return
        begun, seconds = ended
        for name in begun.names:
            entry = self.entries.get(name)
            if entry is not None:
                entry.service_s += seconds

    def produced(self, name: str, tokens: int) -> None:
        """So many tokens of the request came out of the step that has just ended."""
        entry = self.entries.get(name)
        if entry is not None:
            entry.produced(self.config, tokens, self.clock())
            self._tier(entry).tokens += tokens

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
