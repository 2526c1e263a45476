"""The row of a run of workflows (--what workflows): several models on nodes of one GPU, bench.sim.workflows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from bench.requests.errors import UsageError
from bench.requests.settings import Settings
from bench.requests.workload import Workload
from bench.sim.serving import Call, Program
from bench.sim.workflows import POLICIES, ClusterConfig, Job, Stage, generate, row, simulate
from bench.sim.workflows.templates import SOURCE

NAMES = ("maestro",)
RECORDED_SEED = 900_001
"""Seed of the jobs from which lengths and remaining times are estimated; no run uses it."""
RECORDED_QPS, RECORDED_S = 1.0, 1000.0


def as_programs(name: str, settings: Settings, qps: float, seed: int, seconds: float, traces: Path | None) -> Workload:
    """Returns the same jobs as programs of one model, for replicas; `run` has them on nodes of several models."""
    programs = [
        Program(arrival_s=job.arrival_s, calls=tuple(_call(job, stage) for stage in job.stages))
        for job in generate(qps, seconds, settings.batch_share, seed)
    ]
    return Workload(programs, SOURCE)


def _call(job: Job, stage: Stage) -> Call:
    pause_s = max((job.stages[i].tool_s for i in stage.after), default=0.0)
    return Call(
        prompt_tokens=stage.prompt_tokens, output_tokens=stage.output_tokens, after=stage.after, gap_s=pause_s,
        app=f"{job.template}/{stage.role}",
    )  # fmt: skip


def run(policy: str, settings: Settings, qps: float, seed: int, seconds: float) -> dict[str, Any]:
    if settings.remote_nodes >= settings.nodes:
        raise UsageError(f"--set remote_nodes={settings.remote_nodes}: use fewer than nodes, {settings.nodes}")
    jobs = generate(qps, seconds, settings.batch_share, seed)
    if not jobs:
        raise UsageError(f"--qps {qps:g} for {seconds:g} s: nothing arrives; raise one of them")
    recorded = generate(RECORDED_QPS, RECORDED_S, settings.batch_share, RECORDED_SEED)
    config = ClusterConfig(nodes=settings.nodes, remote_nodes=settings.remote_nodes)
    began = time.process_time()
    measures = row(simulate(jobs, POLICIES[policy], config, recorded))
    return {
        **measures, "policy": policy, "seed": seed, "qps": qps, "source": SOURCE,
        "cpu_s": time.process_time() - began,
    }  # fmt: skip
