"""Batches as production's request tier plans them: each unit asks `mfsd.policy.serve.plan_step` what it computes next.

A unit knows step times from a profile of batches alone, as measured offline, and from its own batches since, which
include contention. A unit of several attention groups steps as one engine of as many ranks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from bench.sim.batching import RequestScheduler
from bench.sim.cluster import Cluster, ConfigError
from bench.sim.states import State
from mfsd.policy.serve import (
    Observed,
    Pace,
    Policy,
    Preemption,
    Relegation,
    Request,
    ServeConfig,
    ServeState,
    StepLoad,
    StepView,
    learn,
    plan_step,
)
from mfsd.policy.serve.pace import prefill_s_per_token

UNBOUNDED = 1 << 20  # requests that compute or wait with KV at once: units here have KV memory for all
PROFILED = 240  # batches of the profile

SCHEDULERS: dict[str, tuple[str, ServeConfig]] = {
    "fcfs": (
        "first come first served, whole prompts (default)",
        ServeConfig(policy=Policy.FCFS, cut_prompts=False, relegation=Relegation.NONE, preemption=Preemption.ALWAYS),
    ),
    "edf": ("by deadline", ServeConfig(policy=Policy.EDF, relegation=Relegation.NONE)),
    "srpf": ("fewest prompt tokens left first", ServeConfig(policy=Policy.SRPF, relegation=Relegation.NONE)),
    "hybrid": ("QoServe's key, lost requests last", ServeConfig(policy=Policy.HYBRID)),
    "fit": ("by deadline, what makes no request of the batch late; lost requests last", ServeConfig(policy=Policy.FIT)),
}


def config_of(name: str) -> ServeConfig:
    """Returns the configuration of one of SCHEDULERS. Raises ConfigError with one line if there is no such
    scheduler."""
    if name not in SCHEDULERS:
        raise ConfigError(f"--scheduler {name}: use {', '.join(SCHEDULERS)}")
    return SCHEDULERS[name][1]


def scheduler(name: str, cluster: Cluster) -> RequestScheduler:
    return Planner(cluster, config_of(name))


class _Begun(NamedTuple):
    """A batch that a unit computes."""

    since_s: float
    load: StepLoad


class Planner:
    """One engine for each unit."""

    def __init__(self, cluster: Cluster, config: ServeConfig, switches: bool = False) -> None:
        """switches: whether `use` may change the order of units."""
        self._cluster = cluster
        self._configs = [self._sized(config, part) for part in cluster.parts]
        self._of_unit: dict[int, ServeConfig] = {}
        # First come first served uses no estimate, so it needs no profile.
        self._learns = switches or config.policy is not Policy.FCFS
        self._fresh = [ServeState(pace=profile(part) if self._learns else Pace()) for part in cluster.parts]
        self._states: dict[int, ServeState] = {}
        self._begun: dict[int, _Begun] = {}
        self._observed: dict[int, Observed] = {}

    def _sized(self, config: ServeConfig, part: Cluster) -> ServeConfig:
        tokens = self._cluster.config.batch_tokens
        return msgspec.structs.replace(
            config,
            step_tokens=tokens,
            chunk_max=tokens,
            chunk_min=min(config.chunk_min, tokens),
            requests_max=UNBOUNDED,
            ranks=part.model.groups,
        )

    def use(self, unit: int, config: ServeConfig) -> None:
        """From its next batch on, the unit plans by this."""
        self._of_unit[unit] = self._sized(config, self._cluster.of(unit))

    def prefill_s_per_token(self, unit: int) -> float:
        """Returns what a token of a full batch takes, by what the unit has learned."""
        part = self._cluster.of(unit)
        config = self._configs[part.number]
        pace = self._states.get(unit, self._fresh[part.number]).pace
        return prefill_s_per_token(pace, config.step_tokens, config.ranks)

    def plan(self, queue: Sequence[State], budget_tokens: int, now: float) -> list[tuple[State, int]]:
        if not queue:
            return []
        unit, part = queue[0].request.unit, queue[0].cluster.number
        config = self._of_unit.get(unit, self._configs[part])
        by_number = {state.request.number: state for state in queue}
        ended = self._observed.pop(unit, None)
        view = StepView(
            waiting=tuple(described(state) for state in queue if not state.done_tokens),
            running=tuple(described(state) for state in queue if state.done_tokens),
            observed=(ended,) if ended and self._learns else (),
        )
        plan, self._states[unit] = plan_step(view, self._states.get(unit, self._fresh[part]), config, now)
        if plan.scheduled:
            self._begun[unit] = _Begun(now, plan.load)
        return [(by_number[s.request_id], s.num_tokens) for s in plan.scheduled]

    def computed(self, unit: int, now: float) -> None:
        begun = self._begun.pop(unit)
        self._observed[unit] = Observed(begun.load, now - begun.since_s)


def described(state: State) -> Request:
    """Returns the request as an engine sees it. Its TTFT ends when its KV has been shipped, which the engine does not
    count."""
    request = state.request
    return Request(
        request_id=request.number,
        arrival_s=request.arrival_s,
        num_prompt_tokens=request.context_tokens + request.new_tokens,
        num_computed_tokens=request.context_tokens + state.done_tokens,
        num_cached_tokens=request.context_tokens,
        due_s=request.deadline_s,
        ttft_s=request.budget_s,
        rank=request.group,
    )


def profile(cluster: Cluster) -> Pace:
    """Returns the step times of batches alone in the cluster: one to twelve prompts, up to the token budget in all."""
    chance = random.Random("profile")
    observed = []
    for _ in range(PROFILED):
        left = max(1, int(cluster.config.batch_tokens * 2 ** chance.uniform(-8, 0)))
        lengths: list[tuple[int, int]] = []
        for _ in range(chance.randint(1, 12)):
            if left <= 0:
                break
            new = max(1, int(left * chance.uniform(0.1, 1.0)))
            lengths.append((new, chance.choice((0, 0, 500, 2000, 8000))))
            left -= new
        observed.append(Observed(load_of(cluster, lengths), cluster.batch_s(lengths)))
    return learn(Pace(), observed)


def load_of(cluster: Cluster, lengths: Sequence[tuple[int, int]]) -> StepLoad:
    """Returns what the batch's time depends on, spread over the groups as `Cluster.batch_s` does."""
    tokens = [0] * cluster.model.groups
    pairs = [0.0] * cluster.model.groups
    for new, context in lengths:
        at = tokens.index(min(tokens))
        tokens[at] += new
        pairs[at] += new * (context + new / 2)
    return StepLoad(sum(tokens), max(tokens), 0, 0, max(pairs))
