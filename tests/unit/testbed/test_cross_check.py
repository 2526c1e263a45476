"""The recorded measurement (docs/testbed-results.json) and today's simulator agree about the same requests."""

from __future__ import annotations

import json
import statistics
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.testbed import simulate
from bench.testbed.marks import marks_of
from bench.testbed.measure import change, over_seeds
from bench.testbed.modes import MODES
from bench.testbed.scale import Scale
from bench.testbed.scenario import WORKLOADS, Scenario
from bench.testbed.simulate import POLICIES, simulated
from bench.testbed.study import PAGE, page
from mfsd.policy.marks import Marks

RECORDED = json.loads((Path(__file__).resolve().parents[3] / "docs" / "testbed-results.json").read_text())
SCALE = msgspec.convert(RECORDED["scale"], Scale)
RECORDED_MODES = [m for m in POLICIES if any(r["mode"] == m for r in RECORDED["workloads"]["agent"]["results"])]
SEEDS = 4  # of those recorded: the simulator's part of this test takes most of a minute
# What was measured against what is simulated: (shorter at most, longer at most), as shares. The widest of these seeds
# are -6 to +6 % of mean TTFT, -9 to +5 % of p99, and 5 points in time. Collectives are shorter everywhere, by 5 to 8 %
# (conversation) and 17 to 19 % (agent), over all ten seeds, too; why was not found.
APART_MOST = {"ttft_s.mean": (0.10, 0.10), "ttft_s.p99": (0.15, 0.15), "cct_s.mean": (0.23, 0.0)}
POINTS_MOST = 0.08
# The paper's rule lets last stages and reuse pass collectives. On ideal links each of them does; in the testbed the
# data plane never holds a collective, and the wire alone lets pass. Since the simulator cuts its messages at 25 MB more
# of them pass in time: collectives are 29 to 36 % shorter on the testbed, and requests faster by it.
PAPER_APART_MOST = {"ttft_s.mean": (0.18, 0.05), "ttft_s.p99": (0.15, 0.15), "cct_s.mean": (0.42, 0.0)}
PAPER_POINTS_MOST = 0.10
CCT_GAINS_APART_MOST = 0.05
"""Mean over modes of how far the two are apart in what priorities take from a collective."""


@cache
def marks(scenario: Scenario) -> Marks:
    return marks_of(scenario)


@pytest.fixture(autouse=True)
def marks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the same whatever the scenario's seed (test_planning.py), and take as long as to simulate one."""
    monkeypatch.setattr(simulate, "marks_of", lambda scenario: marks(msgspec.structs.replace(scenario, seed=0)))


@cache
def both(workload: str, mode: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    part = RECORDED["workloads"][workload]
    scenario = msgspec.convert(part["scenario"], Scenario)
    seeds = sorted({r["seed"] for r in part["results"]})[:SEEDS]
    measured = [r for r in part["results"] if r["mode"] == mode and r["seed"] in seeds]
    return measured, [simulated(msgspec.structs.replace(scenario, seed=s), SCALE, MODES[mode]) for s in seeds]


@pytest.mark.parametrize("mode", RECORDED_MODES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_measured_and_simulated_are_close(workload: str, mode: str) -> None:
    measured, expected = both(workload, mode)
    assert [r["seed"] for r in measured] and len(measured) == len(expected)
    paper = mode == "paper-defaults"
    for figure, (shorter, longer) in (PAPER_APART_MOST if paper else APART_MOST).items():
        here, there = over_seeds(measured, mode, figure).mean, over_seeds(expected, mode, figure).mean
        assert -shorter <= here / there - 1 <= longer, f"{figure}: measured {here:.3f} s, simulated {there:.3f} s"
    here, there = (over_seeds(r, mode, "slo_attainment").mean for r in (measured, expected))
    assert abs(here - there) <= (PAPER_POINTS_MOST if paper else POINTS_MOST), (
        f"in time: measured {here:.0%}, simulated {there:.0%}"
    )


@pytest.mark.parametrize("workload", WORKLOADS)
def test_both_say_by_how_much_priorities_shorten_collectives(workload: str) -> None:
    gains = []
    for at in (0, 1):
        results = [r for mode in ("fifo", "dscp", "mfs") for r in both(workload, mode)[at]]
        gains.append([change(results, mode, "fifo", "cct_s.mean").mean for mode in ("dscp", "mfs")])
    assert all(gain < -0.3 for of_one in gains for gain in of_one)
    assert statistics.fmean(abs(a - b) for a, b in zip(*gains, strict=True)) < CCT_GAINS_APART_MOST


def test_the_page_shows_the_recorded_figures() -> None:
    assert page(RECORDED) in PAGE.read_text(), "write it again: python -m bench.testbed.study --from-results"
