"""The simulation's clock: calls arrive, replicas step, ends make the next calls of programs arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.sim.serving.config import ReplicaConfig
from bench.sim.serving.outcome import Outcome
from bench.sim.serving.router import Router
from bench.sim.serving.work import Call, Program
from mfsd.policy.serve import ServeConfig

Control = Callable[[int, float, object], ServeConfig | None]


def simulate(
    config: ReplicaConfig | Sequence[ReplicaConfig],
    work: Sequence[Call | Program],
    seed: int = 1,
    *,
    replicas: int = 1,
    router: Router | None = None,
    until_s: float | None = None,
) -> Outcome:
    """Serves the work, calls and programs in any mix and order. config: of all replicas, or one for each; router:
    round robin by default; until_s: stop then, what has not ended is reported unfinished."""
    raise NotImplementedError
