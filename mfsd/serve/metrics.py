"""Prometheus metrics of one engine, in the process where its scheduler runs.

vLLM's `/metrics` contains them if PROMETHEUS_MULTIPROC_DIR is set, since its engine core is a separate process. They
are plain counters, gauges and histograms, because collectors do not work across processes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from mfsd.policy.serve.fetch import REASONS_AGAIN, Choice, Decision, Reason
from mfsd.serve.engine import Engine
from mfsd.serve.status import states_of, tiers_of

COUNTERS: Final = {
    "mfs_serve_requests": ("Requests that ended, by tier and outcome.", ("tier", "outcome")),
    "mfs_serve_tokens": ("Output tokens, by tier.", ("tier",)),
    "mfs_serve_set_aside": ("Requests set aside: lost ones, and relegated so that others are in time.", ("reason",)),
    "mfs_serve_paused": ("Running requests that sat a step out.", ()),
    "mfs_serve_plans": ("Plans made.", ()),
    "mfs_serve_failed_plans": ("Plans that could not be made; the step was first come first served.", ()),
    "mfs_serve_other_errors": ("Errors beside the plans, as in counting what a step made; it was planned.", ()),
    "mfs_serve_first_come_steps": ("Steps without a plan.", ()),
    "mfs_serve_step_tokens": ("Tokens computed, by kind.", ("kind",)),
    "mfs_serve_reuse_decisions": (
        "Requests whose KV a store has, by what was decided (fetch, recompute, part) and why.",
        ("decision", "reason"),
    ),
    "mfs_serve_unusable_words": ("What requests said that could not be used, by word.", ("word",)),
}
GAUGES: Final = {
    "mfs_serve_attainment_ratio": ("Share of ended requests with a deadline that met it, by tier.", ("tier",)),
    "mfs_serve_queue": ("Requests now, by policy and state.", ("policy", "state")),
    "mfs_serve_chunk_tokens": ("Prompt tokens that the latest step had room for.", ()),
    "mfs_serve_step_estimate_seconds": ("Estimate of the latest step, margin included.", ()),
    "mfs_serve_step_error_ratio": ("Median of (measured - estimate) / measured of the latest steps.", ()),
}
HISTOGRAMS: Final = {
    "mfs_serve_computed_chunk_tokens": ("Prompt tokens that a step computed; steps without any are not counted.", ()),
}
CHUNK_BUCKETS_TOKENS: Final = tuple(1 << exponent for exponent in range(4, 15))
STATES: Final = ("computing", "waiting", "paused", "held", "lost", "relegated")
OUTCOMES: Final = ("met", "late", "no_deadline", "aborted")
ENGINE: Final = "engine"
REUSE_REASONS: Final = {
    Choice.FETCH: tuple(r for r in Reason if r not in (*REASONS_AGAIN, Reason.NO_RULE, Reason.ENGINE_BUSY)),
    Choice.RECOMPUTE: REASONS_AGAIN,
    Choice.PART: REASONS_AGAIN,
}
"""Reasons that decisions of a live engine can have."""


@functools.cache
def families(registry: CollectorRegistry = REGISTRY) -> dict[str, Any]:
    """Returns all metrics by name. They are registered once, because a process may make one engine after another."""
    made: dict[str, Any] = {}
    for name, (text, labels) in COUNTERS.items():
        made[name] = Counter(name, text, (ENGINE, *labels), registry=registry)
    for name, (text, labels) in GAUGES.items():
        made[name] = Gauge(name, text, (ENGINE, *labels), registry=registry, multiprocess_mode="livemostrecent")
    for name, (text, labels) in HISTOGRAMS.items():
        made[name] = Histogram(name, text, (ENGINE, *labels), registry=registry, buckets=CHUNK_BUCKETS_TOKENS)
    return made


def reuse_counter(engine: str, registry: CollectorRegistry = REGISTRY) -> Callable[[Decision], None]:
    """Returns a function that counts decisions on reuse. The connector makes them, without a scheduler of ours."""
    family = families(registry)["mfs_serve_reuse_decisions"]
    for choice, reasons in REUSE_REASONS.items():
        for reason in reasons:
            family.labels(engine, choice.value, reason.label)  # so that the metric exists with the value 0

    def count(decision: Decision) -> None:
        family.labels(engine, decision.choice.value, decision.reason.label).inc()

    return count


class Metrics:
    def __init__(self, engine: Engine, registry: CollectorRegistry = REGISTRY) -> None:
        self._engine = engine
        self._families = families(registry)
        self._label = engine.name.rpartition("-")[2] or engine.name
        self._counted: dict[tuple[str, ...], float] = {}
        self._policy = ""
        self._chunks = self._families["mfs_serve_computed_chunk_tokens"].labels(self._label)

    def update(self) -> None:
        engine = self._engine
        for tier, had in tiers_of(engine).items():
            for outcome in OUTCOMES:
                self._count("mfs_serve_requests", getattr(had, outcome), tier, outcome)
            self._count("mfs_serve_tokens", had.tokens, tier)
            if had.met + had.late:
                self._set("mfs_serve_attainment_ratio", had.met / (had.met + had.late), tier)
        counts = engine.counts
        for reason in ("lost", "relegated"):
            self._count("mfs_serve_set_aside", counts[reason], reason)
        for kind in ("prefill", "decode"):
            self._count("mfs_serve_step_tokens", counts[f"{kind}_tokens"], kind)
        for name in ("paused", "plans", "failed_plans", "other_errors", "first_come_steps"):
            self._count(f"mfs_serve_{name}", counts[name])
        for word, number in engine.reader.unusable.items():
            self._count("mfs_serve_unusable_words", number, word)
        for tokens, steps in engine.chunks.items():
            for _ in range(steps):
                self._chunks.observe(tokens)
        engine.chunks.clear()
        self._update_step()

    def _update_step(self) -> None:
        engine = self._engine
        states = states_of(engine)
        now = dict.fromkeys(STATES, 0)
        for entry in engine.entries.values():
            now[states.get(entry.number, "waiting")] += 1
        policy = engine.config.policy.value
        if self._policy not in ("", policy):  # labels cannot be removed where processes share metrics
            for state in STATES:
                self._set("mfs_serve_queue", 0, self._policy, state)
        self._policy = policy
        for state, number in now.items():
            self._set("mfs_serve_queue", number, policy, state)
        if engine.latest is not None:
            self._set("mfs_serve_chunk_tokens", engine.latest.plan.chunk_tokens)
            self._set("mfs_serve_step_estimate_seconds", engine.latest.plan.step_s)
        errors = sorted(engine.steps.errors)
        if errors:
            self._set("mfs_serve_step_error_ratio", errors[len(errors) // 2])

    def _count(self, name: str, total: float, *labels: str) -> None:
        """Raises the counter to the engine's own total."""
        key = (name, *labels)
        before = self._counted.get(key, 0.0)
        self._families[name].labels(self._label, *labels).inc(total - before)
        self._counted[key] = total

    def _set(self, name: str, value: float, *labels: str) -> None:
        self._families[name].labels(self._label, *labels).set(value)
