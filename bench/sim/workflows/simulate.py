"""One event queue: jobs arrive, stages become ready, nodes take them, stages end."""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from bench.sim.workflows.config import ClusterConfig
from bench.sim.workflows.models import MODELS
from bench.sim.workflows.node import Node
from bench.sim.workflows.policies import Order, Placement, WorkflowPolicy
from bench.sim.workflows.templates import Job, Stage
from mfsd.policy.workflow import (
    Candidate,
    Fitness,
    MemoryMargin,
    RemainingTimes,
    StageKey,
    WorkflowConfig,
    effective_remaining_s,
    exec_s,
    intent_bin,
    kv_bytes,
    preempts,
)
from mfsd.serve.learn.features import CallInfo
from mfsd.serve.learn.prior import Prior


class Ended(NamedTuple):
    """A job that has ended."""

    job: Job
    end_s: float
    waited_s: float
    """Sum over all its stages, queueing and activation."""


class Outcome(NamedTuple):
    ended: list[Ended]
    activations: int
    preemptions: int
    overruns: int
    """Stages whose KV outgrew both its reservation and the node, and was swapped."""
    accounting_errors: int
    """Events after which a node's sums were inconsistent or above its memory."""
    kv_reserved_bytes: int
    kv_needed_bytes: int
    """Sum over all stages: what was reserved for them, and what they came to need."""


class _Running:
    """A job under way."""

    def __init__(self, job: Job, number: int) -> None:
        self.job, self.number = job, number
        self.ends: dict[int, float] = {}
        self.left = set(range(len(job.stages)))
        """Stages that have not been started."""
        self.waited_s = 0.0
        self.preempted_s = -math.inf
        self.keys: dict[int, StageKey] = {}


class _Waiting(NamedTuple):
    """A stage that can start."""

    run: _Running
    position: int
    ready_s: float
    first: bool
    """Whether its job continues without queueing."""
    key: tuple[int, float, int, int] = (0, 0.0, 0, 0)
    """Place in the queue, smallest first; does not change while it waits."""

    @property
    def stage(self) -> Stage:
        return self.run.job.stages[self.position]


class _Placed(NamedTuple):
    waiting: _Waiting
    node: int
    need_bytes: int
    predicted_bytes: int


_READY, _END = 0, 1


class _Simulation:
    def __init__(
        self, jobs: Sequence[Job], policy: WorkflowPolicy, config: ClusterConfig, recorded: Sequence[Job]
    ) -> None:
        self._policy, self._config = policy, config
        rules = config.rules
        self._placing = rules if policy.placement is not Placement.PACK else _without_network(config)
        self._nodes = [Node(n, config, policy.restart) for n in range(config.nodes)]
        self._fitness, self._margin = Fitness(self._placing), MemoryMargin(rules)
        self._times, self._prior = RemainingTimes(rules), Prior()
        self._waiting: list[_Waiting] = []
        self._events: list[tuple[float, int, int, _Waiting | _Placed]] = []
        self._sequence = 0
        self._reserved = [0] * config.nodes
        self._ended: list[Ended] = []
        self._activations = self._preemptions = self._overruns = self._errors = 0
        self._kv_reserved = self._kv_needed = 0
        for job in recorded:
            self._replay(job)
        for number, job in enumerate(jobs):
            run = _Running(job, number)
            for index, stage in enumerate(job.stages):
                if not stage.after:
                    self._push(job.arrival_s, _READY, _Waiting(run, index, job.arrival_s, False))

    def run(self) -> Outcome:
        while self._events:
            now_s = self._events[0][0]
            while self._events and self._events[0][0] == now_s:
                _, _, kind, item = heapq.heappop(self._events)
                if kind == _READY and isinstance(item, _Waiting):
                    self._ready(item, now_s)
                elif isinstance(item, _Placed):
                    self._end(item, now_s)
            self._dispatch(now_s)
            self._check()
        return Outcome(
            self._ended, self._activations, self._preemptions, self._overruns, self._errors, self._kv_reserved,
            self._kv_needed,
        )  # fmt: skip

    # Jobs

    def _ready(self, waiting: _Waiting, now_s: float) -> None:
        """Adds a stage to the queue; a job that continues may have to give way."""
        run, first = waiting.run, waiting.first
        run.keys[waiting.position] = self._stage_key(run.job, waiting.stage)
        value = self._key(waiting)
        others = next((w.key[1] for w in self._waiting if w.key[0]), None)
        if first and self._policy.preempt and others is not None:
            since_s = now_s - run.preempted_s
            aged_s = effective_remaining_s(self._config.rules, 0.0, now_s)
            if preempts(self._config.rules, value + aged_s, others + aged_s, since_s, run.job.interactive):
                run.preempted_s, first = now_s, False
                self._preemptions += 1
        key = (0 if first else 1, value, run.number, waiting.position)
        insort(self._waiting, waiting._replace(first=first, key=key), key=lambda w: w.key)

    def _end(self, placed: _Placed, now_s: float) -> None:
        waiting, run = placed.waiting, placed.waiting.run
        stage = waiting.stage
        self._nodes[placed.node].ended(stage.model, placed.need_bytes)
        self._reserved[placed.node] -= placed.need_bytes
        self._margin.ended(placed.predicted_bytes, _true_kv_bytes(stage))
        self._prior.ended(_call(run.job, stage).role, stage.output_tokens)
        run.ends[waiting.position] = now_s
        for index, other in enumerate(run.job.stages):
            if waiting.position in other.after and all(i in run.ends for i in other.after):
                at_s = max(run.ends[i] + run.job.stages[i].tool_s for i in other.after)
                self._push(at_s, _READY, _Waiting(run, index, at_s, self._policy.keeps_turn))
        if len(run.ends) == len(run.job.stages):
            self._ended.append(Ended(run.job, now_s, run.waited_s))
            self._learn(run)

    def _replay(self, job: Job) -> None:
        """Learns from a job of an earlier recording what a job that ends here teaches."""
        run = _Running(job, -1)
        for index, stage in enumerate(job.stages):
            run.keys[index] = self._stage_key(job, stage)
            self._prior.ended(_call(job, stage).role, stage.output_tokens)
        self._learn(run)

    def _stage_key(self, job: Job, stage: Stage) -> StageKey:
        intent, _ = self._prior.predict(_call(job, stage))
        bins = self._config.rules.intent_bins
        return StageKey(job.template, stage.role, stage.model, stage.invocation, intent_bin(intent, bins))

    def _learn(self, run: _Running) -> None:
        """Learns what followed each stage, without waiting."""
        stages = run.job.stages
        for index, key in run.keys.items():
            later = [s for i, s in enumerate(stages) if i > index]
            self._times.ended(key, sum(s.exec_s + s.tool_s for s in later))

    # Order

    def _key(self, waiting: _Waiting) -> float:
        """Relative to the start of the simulation: all waiting jobs age alike."""
        job = waiting.run.job
        match self._policy.order:
            case Order.FCFS:
                return job.arrival_s
            case Order.EDF:
                return -math.inf if job.interactive else job.arrival_s + job.slo_s
            case Order.HINDSIGHT:
                return sum(job.stages[i].exec_s for i in waiting.run.left)
        return effective_remaining_s(self._config.rules, self._remaining_s(waiting), -waiting.ready_s)

    def _remaining_s(self, waiting: _Waiting) -> float:
        stage = waiting.stage
        own_s = exec_s(MODELS[stage.model], stage.prompt_tokens, self._expected_tokens(waiting))
        return self._times.remaining_s(waiting.run.keys[waiting.position], own_s)

    def _expected_tokens(self, waiting: _Waiting) -> float:
        return self._prior.predict(_call(waiting.run.job, waiting.stage))[1]

    # Placement

    def _dispatch(self, now_s: float) -> None:
        if not self._waiting or all(node.running >= self._config.slots for node in self._nodes):
            return
        skipped, left = 0, []
        for place, waiting in enumerate(self._waiting):
            if skipped > self._config.skips:
                left += self._waiting[place:]
                break
            if not self._place(waiting, now_s):
                skipped += 1
                left.append(waiting)
        self._waiting = left

    def _place(self, waiting: _Waiting, now_s: float) -> bool:
        stage, job = waiting.stage, waiting.run.job
        model = MODELS[stage.model]
        predicted = kv_bytes(model, stage.prompt_tokens, self._expected_tokens(waiting))
        need = self._margin.need_bytes(predicted)
        found = [node.candidate(model, need, now_s, job.slo_s) for node in self._nodes]
        candidates = [c for c in found if c is not None]
        number = self._choose(candidates, need, job.interactive)
        if number is None:
            return False
        node = self._nodes[number]
        started = node.start(model, need, now_s)
        if started is None:
            return False
        self._reserved[number] += need
        self._activations += started.activated
        begin_s = started.begin_s + node.rtt_s
        took_s = stage.exec_s * (1 + self._config.slowdown * (node.running - 1))
        true_bytes = _true_kv_bytes(stage)
        if true_bytes > need and not node.grow(stage.model, true_bytes - need):
            self._overruns += 1
            took_s += 2 * (true_bytes - need) / self._config.speeds.host_bytes_per_s
        self._kv_reserved += need
        self._kv_needed += true_bytes
        waiting.run.waited_s += begin_s - waiting.ready_s
        waiting.run.left.discard(waiting.position)
        self._push(begin_s + took_s, _END, _Placed(waiting, number, need, predicted))
        return True

    def _choose(self, candidates: Sequence[Candidate], need: int, interactive: bool) -> int | None:
        if not candidates:
            return None
        if self._policy.placement is Placement.BALANCE:
            return min(candidates, key=lambda c: (self._nodes[c.node].running, c.node)).node
        choice = self._fitness.choose(candidates, need, interactive)
        return None if choice is None else choice.node

    def _check(self) -> None:
        for node, reserved in zip(self._nodes, self._reserved, strict=True):
            within = node.residency.gpu_used_bytes + node.kv_bytes <= self._config.gpu_bytes
            self._errors += not (within and node.kv_bytes == reserved)

    def _push(self, at_s: float, kind: int, item: _Waiting | _Placed) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (at_s, self._sequence, kind, item))


def _true_kv_bytes(stage: Stage) -> int:
    return kv_bytes(MODELS[stage.model], stage.prompt_tokens, stage.output_tokens)


def _call(job: Job, stage: Stage) -> CallInfo:
    return CallInfo(role=f"{job.template}/{stage.role}", invocation=stage.invocation, tools=int(stage.tools))


def _without_network(config: ClusterConfig) -> WorkflowConfig:
    return msgspec.structs.replace(config.rules, network_share=0.0, network_share_interactive=0.0)


def simulate(
    jobs: Sequence[Job], policy: WorkflowPolicy, config: ClusterConfig, recorded: Sequence[Job] = ()
) -> Outcome:
    """Runs until all jobs have ended. `recorded`: jobs that ended before the simulation, from which lengths and
    remaining times are estimated. Equal input gives equal output."""
    return _Simulation(jobs, policy, config, recorded).run()
