"""The workload of a run, by kind: tiers, programs, agents, drift or workflows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.requests import agents, drift, programs, tiers, workflow_runs
from bench.requests.errors import UsageError
from bench.requests.settings import Settings
from bench.requests.workload import Workload

Generate = Callable[[str, Settings, float, int, float, Path | None], Workload]


class Kind(NamedTuple):
    """What a `--what` can be made of (the first is the default), and how long it runs by default."""

    workloads: tuple[str, ...]
    seconds: float
    generate: Generate


KINDS = {
    "tiers": Kind(tiers.NAMES, 1800.0, tiers.generate),
    "programs": Kind(programs.NAMES, 900.0, programs.generate),
    "agents": Kind(agents.NAMES, 300.0, agents.generate),
    "drift": Kind(drift.NAMES, 600.0, drift.generate),
    "workflows": Kind(workflow_runs.NAMES, 600.0, workflow_runs.as_programs),
}


def kind(what: str) -> Kind:
    if what not in KINDS:
        raise UsageError(f"--what {what}: use {', '.join(KINDS)}")
    return KINDS[what]


def check(what: str, workload: str) -> None:
    known = kind(what).workloads
    if workload not in known:
        raise UsageError(f"--workload {workload}: with --what {what} use {', '.join(known)}")


def generate(
    what: str, name: str, settings: Settings, qps: float, seed: int, seconds: float, traces: Path | None
) -> Workload:
    """Raises UsageError if nothing at all arrives."""
    check(what, name)
    made = kind(what).generate(name, settings, qps, seed, seconds, traces)
    if not made.work:
        raise UsageError(f"--qps {qps:g} for {seconds:g} s: nothing arrives; raise one of them")
    return made
