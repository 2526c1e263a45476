"""H-MAS' claims, on one replica: more first tokens are in time while rate or mix drifts, and every part helps."""

from __future__ import annotations

from bench.requests.claim import Claim, Measured
from bench.requests.lab import Lab
from bench.requests.point import Point, Result

QPS = 4.0
"""Base rate (Eq 13): 0.6 of it in the calm phase, 1.4 in the surge."""
WHOLE = "meta-rules"
PARTS = ("hmas", "hmas-no-lanes", "hmas-no-regulation", "hmas-no-bounds")
"""All without the meta controller; the later ones also without another part."""
FIXED = ("fcfs", "edf", "srpf", "hybrid", "wfq")
"""Policies of the pool that need no tables of an engine's own; chunks and relegation as in the whole."""
WORKLOADS = ("rate", "mix")
SLICES = ("burst", "gradual", "shift")
REPLAY = "replay"


def h1(lab: Lab) -> Measured:
    notes, holds = [], True
    for workload in SLICES:
        whole, fcfs = (_mean(_rows(lab, workload, name), "ttft_ok") for name in (WHOLE, "fcfs"))
        holds = holds and 100 * (whole - fcfs) >= 20
        fixed = {name: _mean(_rows(lab, workload, name), "ttft_ok") for name in FIXED}
        best = max(fixed, key=lambda name: fixed[name])
        notes.append(
            f"{workload}: {fcfs:.1%} -> {whole:.1%} of first tokens in time, best fixed {best} {fixed[best]:.1%}"
        )
    whole, fcfs = (_mean(_rows(lab, REPLAY, name), "goodput_rate") for name in (WHOLE, "fcfs"))
    holds = holds and whole >= 1.2 * fcfs
    notes.append(f"{REPLAY}: goodput {whole / fcfs:.2f} x FCFS ({fcfs:.1%} -> {whole:.1%})")
    return Measured(holds, "; ".join(notes), f"one replica, {QPS:g} requests/s, arrivals and mixes generated")


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
        parts = (
            f"{part.removeprefix('hmas').removeprefix('-no-') or 'meta'} {esg / whole[1] - 1:+.1%} ({good:.1%} in time)"
            for part, (good, esg) in removed.items()
        )
        notes.append(
            f"{workload}: {whole[0]:.1%} in time, best fixed {best} {fixed[best][0]:.1%}; service gain without a part: "
            + ", ".join(parts)
        )
    return Measured(holds, "; ".join(notes), "one replica")


def _rows(lab: Lab, workload: str, policy: str) -> list[Result]:
    base = Point(what="drift", workload=workload, policy=policy, qps=QPS, seconds=600.0)
    return lab.of_seeds(base, lab.scale.seeds)


def _mean(rows: list[Result], of: str) -> float:
    return sum(float(row[of]) for row in rows) / len(rows)


def _of(lab: Lab, workload: str, policy: str) -> tuple[float, float]:
    """Returns the share in time and the service gain, over seeds."""
    rows = _rows(lab, workload, policy)
    return _mean(rows, "goodput_rate"), _mean(rows, "esg")


CLAIMS = (
    Claim("h1", "hmas", "H-MAS 4.2, table 1", "first tokens in time 19, 29, 11 % -> 82, 88, 60 %; goodput 1.2-3 x",
          ">= 20 points more in each slice; on replays goodput >= 1.2 x FCFS", h1, Lab.drift_scale),
    Claim("h2", "hmas", "H-MAS 4.3, table 2", "service gain 0.23 x without regulation, 0.88 x without lanes",
          "no part's removal gains more than 2 %; in time at most 1 point below the best fixed order", h2,
          Lab.drift_scale),
)  # fmt: skip
