"""What requests and network decide better together: batches formed by deadline, under the network's order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.requests.claim import Claim, Measured
from bench.requests.lab import Lab
from bench.sim.compare import Comparison, Results, compare
from bench.sim.settings import SETTINGS, base_of
from bench.sim.study import knee_name

BARS = {
    ("base", "qwen-a"): 3.0,
    ("hot", "qwen-a"): 1.0,
    ("fan-in", "qwen-a"): 1.0,
    ("egress", "qwen-a"): 1.0,
    ("base", "qwen-b"): 6.0,
}
"""Points of attainment over first come first served, both under mfs."""
REQUESTS, QUICK_REQUESTS = 300, 60


def j2(lab: Lab) -> Measured:
    results = Results(lab.beside("network") or Path("out/claims-network.jsonl"))
    requests = QUICK_REQUESTS if lab.quick else REQUESTS
    notes, holds = [], True
    for (setting, workload), bar in BARS.items():
        found = _gain(results, setting, workload, requests, lab.scale.joint_seeds)
        half = "" if found.gain_half is None else f"±{found.gain_half:.1f}"
        notes.append(f"{setting} {workload} {found.gain:+.1f}{half}")
        holds = holds and found.gain >= bar
    return Measured(holds, ", ".join(notes), f"{requests} requests, seeds {lab.scale.joint_seeds}")


def _gain(results: Results, setting: str, workload: str, requests: int, seeds: tuple[int, ...]) -> Comparison:
    base = base_of(setting, "dbrx", workload, requests, 0, "loaded")
    top = results.knee(base, knee_name(setting, base), SETTINGS[setting].knee_seeds)
    point = msgspec.structs.replace(base, rate=round(top, 4))
    mine, other = (results.of_seeds(point, name, seeds) for name in ("mfs+fit", "mfs"))
    return compare(mine, other)


def _not_run(why: str) -> Callable[[Lab], Measured]:
    return lambda lab: Measured(None, "", why)


j3 = _not_run(
    "the layer-level engine gives requests to units before the run, by a router's own estimate, so that all policies "
    "have the same work; none of its routers sees the ports"
)
j7 = _not_run("swaps and wake-ups are no flows of the layer-level engine yet")

CLAIMS = (
    Claim("j2", "joint", "python -m bench sim --scheduler fcfs,fit --policy mfs", "beyond the papers: who shares a "
          "batch, by deadline", "points over FCFS: base >= 3, hot, fan-in, egress >= 1, base QwenB >= 6", j2),
    Claim("j3", "joint", "python -m bench sim", "beyond the papers: prefill units by wait, expected fetch and what "
          "their port owes", "points over static locality under mfs: hot and egress >= 2", j3),
    Claim("j7", "joint", "python -m bench sim", "beyond the papers: swap and activation as flows with deadlines",
          "collectives no slower than without them", j7),
)  # fmt: skip
