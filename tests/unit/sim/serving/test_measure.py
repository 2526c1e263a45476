"""Measures of calls written by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.sim.serving import Outcome, Record, ReplicaConfig, StepTotals, drift_row, is_late, program_row, row, simulate
from bench.sim.serving.measure import covered, spread, spread_of_gap
from tests.unit.sim.serving.workloads import calls, programs


def record(**given: Any) -> Record:
    plain: dict[str, Any] = {
        "call": 0, "arrival_s": 10.0, "prompt_tokens": 100, "output_tokens": 5, "begin_s": 11.0, "first_token_s": 12.0,
        "end_s": 14.0, "produced": 5,
    }  # fmt: skip
    return Record(**{**plain, **given})


@pytest.mark.parametrize(
    ("given", "late"),
    [
        ({}, False),
        ({"ttft_slo_s": 2.0}, False),
        ({"ttft_slo_s": 1.9}, True),
        ({"ttlt_slo_s": 4.0}, False),
        ({"ttlt_slo_s": 3.9}, True),
        ({"tbt_slo_s": 0.1, "late_tokens": 1}, True),
        ({"end_s": None}, False),
        ({"end_s": None, "ttft_slo_s": 5.0}, True),
        ({"end_s": None, "ttlt_slo_s": 99.0}, True),
    ],
)
def test_late_is_any_slo_missed(given: dict[str, Any], late: bool) -> None:
    assert is_late(record(**given)) is late


def test_a_row_counts_by_tier_length_and_importance() -> None:
    records = [
        record(tier="a", ttft_slo_s=1.0, importance=0),
        record(tier="a", prompt_tokens=10),
        record(tier="b", prompt_tokens=10, arrival_s=11.0, relegated=True, paused=3),
        record(tier="b", prompt_tokens=10, arrival_s=12.0, evicted=1),
    ]
    totals = StepTotals(steps=4, busy_s=7.0, chunk_sizes={10: 3, 100: 1}, error_sum=0.2, errors=4, over=1)
    found = row(Outcome(seed=7, records=records, replicas=[totals], end_s=14.0))
    violations = found["violations"]
    assert (violations["all"], violations["important"]) == (0.25, 0.0)
    assert violations["tiers"] == {"a": 0.5, "b": 0.0}
    assert (violations["long"], violations["short"]) == (1.0, 0.0)
    assert (found["requests"], found["goodput_qps"]) == (4, 1.5)
    assert (found["relegated"], found["paused"], found["evicted"]) == (0.25, 0.25, 0.25)
    assert found["step_error"] == {"mape": 0.05, "over": 0.25} and found["busy"] == 0.5
    assert found["chunk_tokens"] == {"mean": 32.5, "p50": 10, "p90": 100, "p99": 100}
    assert row(Outcome(seed=7, records=records, replicas=[totals], end_s=14.0), 11.5)["requests"] == 1


def test_a_programs_latency_is_without_its_gaps() -> None:
    assert covered([(0.0, 2.0), (1.0, 3.0), (10.0, 11.0)]) == 4.0
    records = [
        record(program=0, arrival_s=0.0, end_s=2.0),
        record(program=0, position=1, arrival_s=10.0, end_s=11.0, cached_tokens=50),
        record(program=1, arrival_s=0.0, end_s=None),
    ]
    found = program_row(Outcome(seed=1, records=records, replicas=[], end_s=20.0), short_tokens=50)
    assert (found["latency_s"]["mean"], found["with_gaps_s"]["mean"]) == (3.0, 11.0)
    assert found["per_token_s"]["mean"] == 0.3 and (found["programs"], found["unfinished"]) == (2, 1)
    assert found["hit_rate"]["short"] is None and found["hit_rate"]["long"] == pytest.approx(50 / 300)


def test_drift_measures() -> None:
    records = [
        record(arrival_s=0.0, first_token_s=1.0, end_s=5.0, ttft_slo_s=2.0, tbt_slo_s=0.5),
        record(arrival_s=12.0, first_token_s=13.0, end_s=17.0, ttft_slo_s=2.0, tbt_slo_s=2.0),
    ]
    totals = StepTotals(policies=("fcfs", "edf"))
    found = drift_row(Outcome(seed=1, records=records, replicas=[totals], end_s=20.0), phases_s=(0.0, 10.0))
    assert (found["ttft_ok"], found["tpot_ok"], found["goodput_rate"], found["switches"]) == (1.0, 0.5, 0.5, 1)
    # worth 110 each; due after 2 + 5 x 0.5 and 2 + 5 x 2 seconds, they took 5 both
    assert found["esg"] == pytest.approx((110 * 4.5 / 5 + 110) / 20)
    assert found["mismatch"] == {"mean": 0.0, "p95": 0.0, "stalled": 0.0} and found["recovery"] is None


def test_windows_in_which_nothing_was_served_are_counted() -> None:
    """They have no mismatch that is a number: without them an engine that stood still would seem to keep up."""
    records = [record(arrival_s=10.0 * n, end_s=12.0 if n == 0 else 55.0) for n in range(6)]
    assert spread_of_gap(records, 10.0)["stalled"] == pytest.approx(4 / 6)


def test_rows_are_json() -> None:
    outcome = simulate(ReplicaConfig(), [*calls(30, 5.0), *programs(4, 1.0)])
    for measured in (row(outcome), program_row(outcome), drift_row(outcome)):
        json.dumps(measured, allow_nan=False)
    empty = Outcome(seed=1, records=[], replicas=[], end_s=0.0)
    for measured in (row(empty), program_row(empty), drift_row(empty)):
        json.dumps(measured, allow_nan=False)
    assert spread([]) == {} and spread([3.0, 1.0])["p99"] == 3.0
