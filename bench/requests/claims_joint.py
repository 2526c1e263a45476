"""What requests and network decide better together: batches formed by deadline, under the network's order."""

from __future__ import annotations

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


CLAIMS = (
    Claim("j2", "joint", "python -m bench sim --scheduler fcfs,fit --policy mfs", "beyond the papers: who shares a "
          "batch, by deadline", "points over FCFS: base >= 3, hot, fan-in, egress >= 1, base QwenB >= 6", j2),
)  # fmt: skip
