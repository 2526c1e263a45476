"""What requests and network decide better together: batches formed by deadline, under the network's order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.requests.claim import Claim, Measured
from bench.requests.lab import Lab
from bench.sim import moves_study
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
MOVES_SETTINGS = ("base", "fan-in", "egress")
MOVES_SHARE, MOVES_LOAD = 0.2, 0.8
HARM = 1.01
"""A mean completion time of collectives from which on it counts as slower: one percent."""


def j7(lab: Lab) -> Measured:
    results = Results(lab.beside("network") or Path("out/claims-network.jsonl"))
    requests = QUICK_REQUESTS if lab.quick else REQUESTS
    notes, holds = [], True
    for setting in MOVES_SETTINGS:
        base = base_of(setting, "dbrx", "qwen-a", requests, 8)
        top = results.knee(base, knee_name(setting, base), SETTINGS[setting].knee_seeds)
        point = msgspec.structs.replace(base, rate=round(MOVES_LOAD * top, 4))
        moved = moves_study.with_moves(point, MOVES_SHARE, "background")
        mine, without = (results.of_seeds(one, "mfs", lab.scale.joint_seeds) for one in (moved, point))
        found = moves_study.cost(mine, without)
        half = "" if found.collective_half is None else f"±{found.collective_half:.3f}"
        notes.append(f"{setting} {found.collective_ratio:.3f}{half} (requests {found.gain:+.1f} points)")
        holds = holds and found.collective_ratio <= HARM
    scale = f"a fifth of the prefill NICs, {requests} requests, eight classes, seeds {lab.scale.joint_seeds}"
    return Measured(holds, "mean collective with moves / without: " + ", ".join(notes), scale)


CLAIMS = (
    Claim("j2", "joint", "python -m bench sim --scheduler fcfs,fit --policy mfs", "beyond the papers: who shares a "
          "batch, by deadline", "points over FCFS: base >= 3, hot, fan-in, egress >= 1, base QwenB >= 6", j2),
    Claim("j3", "joint", "python -m bench sim", "beyond the papers: prefill units by wait, expected fetch and what "
          "their port owes", "points over static locality under mfs: hot and egress >= 2", j3),
    Claim("j7", "joint", "python -m bench sim", "beyond the papers: swap and activation as flows with deadlines",
          "collectives no slower than without them", j7),
)  # fmt: skip
