"""Agentix's claim: programs ordered by what they have had end sooner than calls in turn."""

from __future__ import annotations

from bench.requests.claim import Claim, Measured
from bench.requests.lab import Lab
from bench.requests.point import Point

BEYOND_KNEE = 1.2
KNEE_TIMES = 2.0
"""FCFS' time per token at the knee, as a multiple of that of an idle engine."""
IDLE_QPS = {"chat": 0.05, "tree-search": 0.02, "mixed": 0.02, "claudecode": 0.002}
HIGHEST_QPS = {"chat": 4.0, "tree-search": 1.0, "mixed": 2.0, "claudecode": 0.4}
STEPS = 6
FEWEST = 40
"""Least number of programs in a run, whatever the rate."""
POLICY = {"chat": "plas", "tree-search": "atlas", "claudecode": "plas"}


def point(lab: Lab, workload: str, policy: str, qps: float) -> Point:
    return Point(
        what="programs",
        workload=workload,
        policy=policy,
        qps=round(qps, 5),
        seconds=max(lab.scale.programs_s, FEWEST / qps),
        traces=str(lab.traces) if lab.traces else None,
    )


def knee(lab: Lab, workload: str) -> float:
    """Returns the highest rate tried at which FCFS takes at most twice the time per token of an idle engine; first
    seed."""
    seed = lab.scale.seeds[0]
    idle_s = _of(lab, point(lab, workload, "fcfs", IDLE_QPS[workload]), "per_token_s", (seed,))
    low, high = IDLE_QPS[workload], HIGHEST_QPS[workload]
    for _ in range(STEPS):
        middle = (low + high) / 2
        took_s = _of(lab, point(lab, workload, "fcfs", middle), "per_token_s", (seed,))
        low, high = (middle, high) if took_s <= KNEE_TIMES * idle_s else (low, middle)
    return low


def compared(lab: Lab, workload: str) -> tuple[float, dict[str, tuple[float, float]]]:
    """Returns the rate and, for each policy, mean time per token and mean latency relative to FCFS."""
    qps = BEYOND_KNEE * knee(lab, workload)
    names = ("fcfs", "las", POLICY[workload], "srpt")
    points = {name: point(lab, workload, name, qps) for name in names}
    per_token = {name: _of(lab, p, "per_token_s", lab.scale.seeds) for name, p in points.items()}
    latency = {name: _of(lab, p, "latency_s", lab.scale.seeds) for name, p in points.items()}
    return qps, {n: (per_token[n] / per_token["fcfs"], latency[n] / latency["fcfs"]) for n in names}


def _of(lab: Lab, at: Point, measure: str, seeds: tuple[int, ...]) -> float:
    rows = lab.of_seeds(at, seeds)
    return sum(float(row[measure]["mean"]) for row in rows) / len(rows)


def _seeds(lab: Lab, workload: str, qps: float) -> str:
    """Formats the means relative to FCFS, seed by seed."""
    mine, fcfs = (point(lab, workload, name, qps) for name in (POLICY[workload], "fcfs"))
    each = [_of(lab, mine, "latency_s", (s,)) / _of(lab, fcfs, "latency_s", (s,)) for s in lab.scale.seeds]
    return f" (mean by seed {', '.join(f'{ratio:.2f}' for ratio in each)})"


def _others(ratios: dict[str, tuple[float, float]], mine: str) -> str:
    return "; ".join(f"{n} {t:.2f} and {m:.2f}" for n, (t, m) in ratios.items() if n not in ("fcfs", mine))


def chats(lab: Lab) -> Measured:
    qps, ratios = compared(lab, "chat")
    token, mean = ratios["plas"]
    text = f"per token {token:.2f}, mean {mean:.2f} of FCFS at {qps:.2f} programs/s"
    return Measured(token <= 0.4 and mean <= 0.85, text, f"per token and mean: {_others(ratios, 'plas')}")


def sessions(lab: Lab) -> Measured:
    qps, ratios = compared(lab, "claudecode")
    _, mean = ratios["plas"]
    text = f"mean {mean:.2f} of FCFS at {qps:.4f} programs/s{_seeds(lab, 'claudecode', qps)}"
    kind = "recorded sessions, prompts / 8" if lab.traces else "generated sessions"
    return Measured(mean <= 1.03, text, f"{kind}; per token and mean: {_others(ratios, 'plas')}")


def trees(lab: Lab) -> Measured:
    qps, ratios = compared(lab, "tree-search")
    token, mean = ratios["atlas"]
    text = f"per token {token:.2f}, mean {mean:.2f} of FCFS at {qps:.3f} programs/s{_seeds(lab, 'tree-search', qps)}"
    return Measured(token <= 1.0 and mean <= 1.0, text, f"per token and mean: {_others(ratios, 'atlas')}")


WHERE = "Agentix 4.2"
CLAIMS = (
    Claim("a1", "agentix", WHERE, "4-15 x the programs at equal latency",
          "chats: per token <= 0.4 of FCFS at 1.2 x its knee, mean <= 0.85",
          chats, Lab.programs_scale),
    Claim("a1-claudecode", "agentix", WHERE, "the same on coding sessions", "mean within 3 % of FCFS",
          sessions, Lab.programs_scale),
    Claim("a1-tree", "agentix", WHERE, "the same on tree search", "run, the factor stated; not above FCFS",
          trees, Lab.programs_scale),
)  # fmt: skip
