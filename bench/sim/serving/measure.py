"""Rows of measures from an outcome: plain dictionaries, ready for JSON."""

from __future__ import annotations

from typing import Any

from bench.sim.serving.outcome import Outcome, Record


def is_late(record: Record) -> bool:
    """Whether any SLO of the call was missed: first token, a later token, last token. Unfinished is late."""
    raise NotImplementedError


def row(outcome: Outcome, warmup_s: float = 0.0, until_s: float | None = None) -> dict[str, Any]:
    """Of the calls that arrived from warmup_s to until_s: requests, violations, ttft_s, tbt_s, ttlt_s, goodput_qps,
    relegated, paused, evicted, chunk_tokens, step_error, plan_us, kv, cpu_s."""
    raise NotImplementedError


def program_row(outcome: Outcome, warmup_s: float = 0.0) -> dict[str, Any]:
    """What programs had: latency_s, per_token_s, hit_rate."""
    raise NotImplementedError


def drift_row(outcome: Outcome, warmup_s: float = 0.0) -> dict[str, Any]:
    """H-MAS's measures: goodput_rate, esg, ttft_ok, tpot_ok, mismatch, cv, recovery, switches."""
    raise NotImplementedError
