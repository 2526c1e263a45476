"""Agentix's claim about its router: short prompts go to the least loaded replica, long ones to their program's."""

from __future__ import annotations

from statistics import fmean

from bench.requests.claim import Claim, Measured
from bench.requests.claims_programs import FEWEST, knee
from bench.requests.lab import Lab
from bench.requests.point import Point, Result
from bench.requests.settings import Settings

WORKLOAD, POLICY, REPLICAS = "mixed", "atlas", 4
SYSTEM_TOKENS = 1000
"""Shared by all programs of a kind; the paper gives no length."""
LOADS = (0.8, 1.2)
"""Multiples, for each replica, of the knee of first come first served on one replica."""
OTHERS = ("least-loaded", "sticky")
SHORT_HITS = 0.75


def point(lab: Lab, router: str, qps: float, system_tokens: int = SYSTEM_TOKENS) -> Point:
    return Point(
        what="programs",
        workload=WORKLOAD,
        policy=POLICY,
        qps=round(qps, 5),
        seconds=max(lab.scale.routed_s, FEWEST / qps),
        traces=str(lab.traces) if lab.traces else None,
        settings=Settings(replicas=REPLICAS, router=router, system_tokens=system_tokens),
    )


def _rows(lab: Lab, at: Point) -> list[Result]:
    return lab.of_seeds(at, lab.scale.seeds)


def _ratios(mine: list[Result], other: list[Result], part: str) -> list[float]:
    """Returns ratios seed by seed: both had the same programs."""
    return [a["latency_s"][part] / b["latency_s"][part] for a, b in zip(mine, other, strict=True)]


def _text(ratios: list[float]) -> str:
    return f"{fmean(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def a2(lab: Lab) -> Measured:
    one = knee(lab, WORKLOAD)
    holds, parts = True, []
    for load in LOADS:
        qps = load * REPLICAS * one
        mine = _rows(lab, point(lab, "locality", qps))
        for other in OTHERS:
            theirs = _rows(lab, point(lab, other, qps))
            mean, p95 = _ratios(mine, theirs, "mean"), _ratios(mine, theirs, "p95")
            holds = holds and fmean(mean) <= 1 and fmean(p95) <= 1
            parts.append(f"{load:g} x knee over {other}: mean {_text(mean)}, p95 {_text(p95)}")
        hits = fmean(row["hit_rate"]["short"] for row in mine)
        holds = holds and hits >= SHORT_HITS
        parts.append(f"short prompts hit {hits:.0%}")
    bare = _rows(lab, point(lab, "locality", LOADS[0] * REPLICAS * one, 0))
    note = f"{REPLICAS} replicas, knee {one:.2f} programs/s each, system prompts of {SYSTEM_TOKENS} tokens; "
    note += f"without any, short prompts hit {fmean(row['hit_rate']['short'] for row in bare):.0%}"
    return Measured(holds, "; ".join(parts), note)


CLAIMS = (
    Claim("a2", "agentix", "Agentix 4.3", "short prompts to the least loaded engine and long ones to their program's "
          "beat both", "chats, tree search and best of n: mean and p95 <= least loaded and sticky; short prompts hit "
          ">= 75 %", a2, Lab.routed_scale),
)  # fmt: skip
