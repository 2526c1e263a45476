"""What is gained by keeping and fetching an agent's KV while its tool runs, against a cache that goes by use."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from bench.requests.claim import Claim, Measured
from bench.requests.lab import Lab
from bench.requests.point import Point
from bench.requests.settings import Settings
from bench.sim.compare import half_width

BAR = 0.7
QPS = 0.1
WORKING_SET_TOKENS = 137_000
"""Mean KV of all agents that have begun and not ended at QPS, with unlimited memory: 1,800 s, seed 1."""
SHARES = (0.2, 0.4, 0.7, 1.0)
MINE, BASE, BARE, BOUND = "retain-prefetch", "store", "sticky", "retain-prefetch-hindsight"


def point(lab: Lab, policy: str, share: float) -> Point:
    """A replica with its own port to the store; persons may take ten minutes."""
    return Point(
        what="agents",
        workload="coding",
        policy=policy,
        qps=QPS,
        seconds=lab.scale.agents_s,
        settings=Settings(replicas=1, gap_max_s=600.0, kv_tokens=round(share * WORKING_SET_TOKENS)),
    )


def _ttfts(lab: Lab, policy: str, share: float) -> list[float]:
    at = point(lab, policy, share)
    return [row["ttft_s"]["mean"] for row in lab.of_seeds(at, lab.scale.agents_seeds)]


def _ratio(mine: Sequence[float], other: Sequence[float]) -> tuple[float, str]:
    """Returns the ratio seed by seed, with half of the 95 % interval of the mean: both had the same agents."""
    each = [a / b for a, b in zip(mine, other, strict=True)]
    half = half_width(each)
    return fmean(each), f"{fmean(each):.2f}" + ("" if half is None else f"±{half:.2f}")


def j6(lab: Lab) -> Measured:
    holds, parts, notes = True, [], []
    for share in SHARES:
        of = {policy: _ttfts(lab, policy, share) for policy in (MINE, BASE, BARE, BOUND)}
        ratio, text = _ratio(of[MINE], of[BASE])
        holds = holds and ratio <= BAR
        parts.append(f"{share:g} x: {text} ({fmean(of[BASE]):.2f} to {fmean(of[MINE]):.2f} s)")
        _, bound = _ratio(of[BOUND], of[BASE])
        _, bare = _ratio(of[MINE], of[BARE])
        notes.append(f"{share:g} x: {bound} and {bare}")
    noted = f"ends of gaps known beforehand, and over a cache without a store: {'; '.join(notes)}"
    return Measured(holds, "; ".join(parts), noted)


CLAIMS = (
    Claim("j6", "joint", "python -m bench requests run --what agents", "beyond the papers: a program's KV is kept or "
          "fetched while its tool runs", "mean TTFT of coding agents <= 0.7 of least recently used with a store, at "
          "caches of 0.2 to 1 x the working set", j6, Lab.agents_scale),
)  # fmt: skip
