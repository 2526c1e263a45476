"""H-MAS' claim, on one replica: its parts help, and none of the fixed orders is better than all of it."""

from __future__ import annotations

import msgspec

from bench.requests.claim import Claim, Measured
from bench.requests.lab import Lab
from bench.requests.point import Point

QPS = 4.0
"""Base rate (Eq 13): 0.6 of it in the calm phase, 1.4 in the surge."""
WHOLE = "hmas"
PARTS = ("hmas-no-lanes", "hmas-no-regulation", "hmas-no-bounds")
FIXED = ("fcfs", "edf", "srpf", "hybrid", "wfq")
"""Of the pool, those that serve without tables of an engine's own; chunks and relegation as in the whole."""
WORKLOADS = ("rate", "mix")


def h2(lab: Lab) -> Measured:
    notes, holds = [], True
    for workload in WORKLOADS:
        whole = _of(lab, workload, WHOLE)
        removed = {part: _of(lab, workload, part) for part in PARTS}
        fixed = {name: _of(lab, workload, name) for name in FIXED}
        best = max(fixed, key=lambda name: fixed[name][0])
        gained = max(esg / whole[1] - 1 for _, esg in removed.values())
        behind = 100 * (fixed[best][0] - whole[0])
        holds = holds and gained <= 0.02 and behind <= 1.0
        parts = (f"{part.removeprefix('hmas-no-')} {esg / whole[1] - 1:+.1%}" for part, (_, esg) in removed.items())
        notes.append(
            f"{workload}: {whole[0]:.1%} in time, best fixed {best} {fixed[best][0]:.1%}; service gain without a part: "
            + ", ".join(parts)
        )
    return Measured(holds, "; ".join(notes), "one replica, no meta controller: orders are fixed for a run")


def _of(lab: Lab, workload: str, policy: str) -> tuple[float, float]:
    """Share in time and service gain, over seeds."""
    base = Point(what="drift", workload=workload, policy=policy, qps=QPS, seconds=600.0)
    rows = [lab.run(msgspec.structs.replace(base, seed=seed)) for seed in lab.scale.seeds]
    return (
        sum(float(row["goodput_rate"]) for row in rows) / len(rows),
        sum(float(row["esg"]) for row in rows) / len(rows),
    )


CLAIMS = (
    Claim("h2", "hmas", "H-MAS 4.3, table 2", "service gain 0.23 x without regulation, 0.88 x without lanes",
          "no part's removal gains more than 2 %; in time at most 1 point below the best fixed order", h2,
          Lab.drift_scale),
)  # fmt: skip
