"""The record of what the testbed's run was to serve and to show, made before it (docs/testbed-plan.json)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.testbed.marks import PLANNING_SEEDS, marks_of
from bench.testbed.modes import MODES
from bench.testbed.plan import IN_TIME, load_plan, save_plan
from bench.testbed.scenario import WORKLOADS, Scenario
from mfsd.policy.types import Stage


def test_the_record_is_of_seeds_that_are_never_run_and_of_every_mode(tmp_path: Path) -> None:
    plan = load_plan()
    assert plan.planning_seeds == list(PLANNING_SEEDS) and plan.run_seeds == list(range(1, 11))
    assert not set(plan.planning_seeds) & set(plan.run_seeds)
    since = {"paper"}  # measured apart: bench.testbed.variants
    assert plan.modes == [name for name in MODES if name not in since] and set(plan.workloads) == set(WORKLOADS)
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_rate_is_where_fifo_meets_half_of_the_deadlines_and_nothing_else_was_chosen(workload: str) -> None:
    part = load_plan().workloads[workload]
    best = min(part.fifo_in_time, key=lambda rate: abs(part.fifo_in_time[rate] - IN_TIME))
    duration_s = part.scenario.duration_s
    assert part.scenario == Scenario(workload=workload, rate=float(best), duration_s=duration_s)
    marks = marks_of(part.scenario)
    assert (part.reuse_edges_bytes, part.p2d_edges_bytes) == (
        list(marks.sizes[Stage.REUSE]),
        list(marks.sizes[Stage.P2D]),
    )
    assert all(bar.wanted is None or bar.wanted == pytest.approx(bar.expected / 2) for bar in part.bars)


def test_a_record_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"day": "2026-01-01"}')
    with pytest.raises(msgspec.ValidationError, match="planning_seeds"):
        load_plan(tmp_path / "plan.json")
