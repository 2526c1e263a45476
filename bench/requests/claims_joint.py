"""What requests and network decide better together: batches formed by deadline, units chosen by what ports owe, under
the network's order."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bench.requests.claim import Claim, Measured
from bench.requests.lab import Lab
from bench.sim import moves_study, outlook, router_study
from bench.sim.compare import Comparison, Results, compare
from bench.sim.reuse import ReuseConfig
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
    results, requests = _results(lab)
    notes, holds = [], True
    for (setting, workload), bar in BARS.items():
        found = _gain(results, setting, workload, requests, lab.scale.joint_seeds)
        notes.append(f"{setting} {workload} {_points(found)}")
        holds = holds and found.gain >= bar
    return Measured(holds, ", ".join(notes), f"{requests} requests, seeds {lab.scale.joint_seeds}")


ROUTED_BAR = 2.0
"""Points of attainment over static locality, under mfs."""


def j3(lab: Lab) -> Measured:
    results, requests = _results(lab)
    seeds = range(router_study.FIRST_SEED, router_study.FIRST_SEED + (1 if lab.quick else router_study.CLAIM_SEEDS))
    notes, holds = [], True
    for case in router_study.ASKED:
        point = outlook.point_of(results, case, requests)
        routed = msgspec.structs.replace(point, reuse=ReuseConfig(router="transfer"))
        mine, other = (results.of_seeds(one, "mfs", seeds) for one in (routed, point))
        found = compare(mine, other)
        notes.append(f"{case.setting} {_points(found)}")
        holds = holds and found.gain >= ROUTED_BAR
    return Measured(holds, ", ".join(notes), f"eight classes, {requests} requests, seeds {seeds[0]} to {seeds[-1]}")


def _results(lab: Lab) -> tuple[Results, int]:
    """Points of the layer-level simulator, and how many requests each has."""
    results = Results(lab.beside("network") or Path("out/claims-network.jsonl"))
    return results, QUICK_REQUESTS if lab.quick else REQUESTS


def _points(found: Comparison) -> str:
    return f"{found.gain:+.1f}" + ("" if found.gain_half is None else f"±{found.gain_half:.1f}")


def _gain(results: Results, setting: str, workload: str, requests: int, seeds: tuple[int, ...]) -> Comparison:
    base = base_of(setting, "dbrx", workload, requests, 0, "loaded")
    top = results.knee(base, knee_name(setting, base), SETTINGS[setting].knee_seeds)
    point = msgspec.structs.replace(base, rate=round(top, 4))
    mine, other = (results.of_seeds(point, name, seeds) for name in ("mfs+fit", "mfs"))
    return compare(mine, other)


MOVES_SETTINGS = ("base", "fan-in", "egress")
MOVES_SHARE, MOVES_LOAD = 0.2, 0.8
HARM = 1.01
"""A mean completion time of collectives from which on it counts as slower: one percent."""


def j7(lab: Lab) -> Measured:
    results, requests = _results(lab)
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
    Claim("j3", "joint", "python -m bench sim routers", "beyond the papers: prefill units by wait, expected "
          "fetch and what their port owes", "points over static locality under mfs: hot and egress >= 2", j3),
    Claim("j7", "joint", "python -m bench sim", "beyond the papers: swap and activation as flows with deadlines",
          "collectives no slower than without them", j7),
)  # fmt: skip
