"""A row of measures of a simulation."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench.sim.workflows.models import GPU_BYTES, virtual_kv_bytes
from bench.sim.workflows.simulate import Ended, Outcome


def in_time(ended: Ended) -> bool:
    """Judges interactive jobs by how long they waited, batch jobs by when they ended."""
    return (ended.waited_s if ended.job.interactive else ended.end_s - ended.job.arrival_s) <= ended.job.slo_s


def row(outcome: Outcome) -> dict[str, Any]:
    interactive = [e for e in outcome.ended if e.job.interactive]
    batch = [e for e in outcome.ended if not e.job.interactive]
    late = {name: _late(of) for name, of in (("interactive", interactive), ("batch", batch))}
    return {
        "requests": len(outcome.ended),
        "slo": 1 - _late(outcome.ended),
        "violations": {"all": _late(outcome.ended), "important": late["interactive"], "tiers": late},
        "interactive_delay_s": _summary([e.waited_s for e in interactive]),
        "latency_s": _summary([e.end_s - e.job.arrival_s for e in outcome.ended]),
        "activations": outcome.activations,
        "preemptions": outcome.preemptions,
        "overruns": outcome.overruns,
        "accounting_errors": outcome.accounting_errors,
        "kv_reserved_over_needed": outcome.kv_reserved_bytes / max(1, outcome.kv_needed_bytes),
        "overcommit": virtual_kv_bytes() / GPU_BYTES,
    }


def _late(of: Sequence[Ended]) -> float:
    return sum(not in_time(e) for e in of) / max(1, len(of))


def _summary(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values) or [0.0]
    last = len(ordered) - 1
    parts = {f"p{percent}": ordered[round(percent / 100 * last)] for percent in (50, 90, 99)}
    return {"mean": statistics.fmean(ordered), **parts}
