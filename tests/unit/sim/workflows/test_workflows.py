"""Workflows on simulated nodes: the same input gives the same output, memory adds up, policies differ as they say."""

from __future__ import annotations

import msgspec
import pytest

from bench.sim.workflows import POLICIES, ClusterConfig, generate, one, row, simulate
from bench.sim.workflows.models import GPU_BYTES, MODELS, virtual_kv_bytes
from bench.sim.workflows.node import Node
from bench.sim.workflows.templates import TEMPLATES, isolated_s

CONFIG = ClusterConfig(nodes=2)
RECORDED = generate(1.0, 300, 0.6, 7)


def test_nine_templates_four_of_them_interactive() -> None:
    assert len(TEMPLATES) == 9 and sum(t.interactive for t in TEMPLATES) == 4
    assert sum(t.jobs for t in TEMPLATES) == 46_769, "table I"
    jobs = generate(2.0, 600, 0.8, 1)
    assert 0.74 < sum(not j.interactive for j in jobs) / len(jobs) < 0.86
    assert all(isolated_s(j.stages) > 0 and j.slo_s > 0 for j in jobs)
    assert {s.model for j in jobs for s in j.stages} == set(MODELS)


def test_table_5_adds_up() -> None:
    assert virtual_kv_bytes() / GPU_BYTES == pytest.approx(3.05, abs=0.005)


@pytest.mark.parametrize("name", POLICIES)
def test_all_jobs_end_memory_adds_up_and_runs_repeat(name: str) -> None:
    jobs = generate(0.3, 120, 0.6, 3)
    outcome = simulate(jobs, POLICIES[name], CONFIG, RECORDED)
    assert len(outcome.ended) == len(jobs) and outcome.accounting_errors == 0
    for ended in outcome.ended:
        assert ended.end_s - ended.job.arrival_s >= isolated_s(ended.job.stages) - 1e-9 and ended.waited_s >= 0
    assert row(outcome) == row(simulate(jobs, POLICIES[name], CONFIG, RECORDED))


def test_only_policies_that_preempt_do() -> None:
    jobs = generate(0.6, 200, 0.6, 3)
    counts = {n: simulate(jobs, POLICIES[n], CONFIG, RECORDED).preemptions for n in ("maestro", "maestro-no-preempt")}
    assert counts["maestro"] > 0 == counts["maestro-no-preempt"]


def test_a_model_that_sleeps_is_back_sooner_than_one_that_starts_anew() -> None:
    jobs = one("travel assistant", 2, 2000.0, 1)
    alone = msgspec.structs.replace(CONFIG, nodes=1)
    took = {
        n: max(simulate(jobs, POLICIES[n], alone).ended, key=lambda e: e.end_s).waited_s
        for n in ("maestro", "maestro-restart")
    }
    assert 0 < took["maestro"] < took["maestro-restart"]


def test_a_node_refuses_what_its_memory_does_not_hold() -> None:
    node = Node(0, CONFIG)
    model = MODELS["qwen3-14b"]
    assert node.candidate(model, CONFIG.gpu_bytes - model.weights_bytes, 0.0, 1.0) is None
    assert node.candidate(model, 10**9, 0.0, 1.0) is not None
    start = node.start(model, 10**9, 0.0)
    assert start is not None and start.activated and start.begin_s > CONFIG.speeds.start_s
    assert node.candidate(MODELS["qwen3-8b"], 10**9, 0.0, 1.0) is None, "the 14b is busy and fills the GPU"
    node.ended("qwen3-14b", 10**9)
    found = node.candidate(MODELS["qwen3-8b"], 10**9, 0.0, 1.0)
    assert found is not None and found.disruption_ms > 0 and node.kv_bytes == 0


@pytest.mark.parametrize(("host_gb", "restarts"), [(64, False), (20, True)])
def test_a_model_falls_asleep_only_where_host_memory_is_free(host_gb: int, restarts: bool) -> None:
    """The 8b sleeps there; beside it 20 GB do not hold the 4b as well."""
    config = msgspec.structs.replace(CONFIG, host_bytes=host_gb * 10**9)
    node = Node(0, config)
    for name in ("qwen3-8b", "qwen3-4b"):
        assert node.start(MODELS[name], 10**9, 0.0) is not None
        node.ended(name, 10**9)
    node.residency.sleep("qwen3-8b")
    model = MODELS["qwen3-14b"]
    found = node.candidate(model, 10**9, 1000.0, 1.0)
    assert found is not None and (found.disruption_ms > 1e3 * config.speeds.start_s) is restarts


def test_the_wait_that_a_node_reports_is_smoothed() -> None:
    node, model = Node(0, CONFIG), MODELS["qwen3-0.6b"]
    start = node.start(model, 10**6, 0.0)
    assert start is not None

    def waits_s(now_s: float) -> float:
        found = node.candidate(model, 10**6, now_s, 1.0)
        assert found is not None
        return found.queue_ms / 1e3

    waits = [waits_s(0.0) for _ in range(12)]
    assert waits[0] == pytest.approx(start.begin_s / 2) and waits == sorted(waits)
    assert waits[-1] == pytest.approx(start.begin_s, rel=1e-3)
    assert 0 < waits_s(start.begin_s) < waits[-1]
