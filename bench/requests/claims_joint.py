"""What requests and network decide better together: batches formed by deadline, units chosen by what ports owe, under
the network's order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.requests.claim import Claim, Measured
from bench.requests.lab import Lab
from bench.sim import moves_study, outlook, router_study
from bench.sim.compare import Comparison, Results, compare, half_width
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


def _gain_of_decisions(
    results: Results, case: outlook.Case, requests: int, reuse: ReuseConfig, seeds: range
) -> Comparison:
    """Compares these decisions with none."""
    point = outlook.point_of(results, case, requests)
    decided = msgspec.structs.replace(point, reuse=reuse)
    return compare(results.of_seeds(decided, "mfs", seeds), results.of_seeds(point, "mfs", seeds))


def j3(lab: Lab) -> Measured:
    results, requests = _results(lab)
    seeds = range(router_study.FIRST_SEED, router_study.FIRST_SEED + (1 if lab.quick else router_study.CLAIM_SEEDS))
    gains = [
        _gain_of_decisions(results, case, requests, ReuseConfig(router="transfer"), seeds)
        for case in router_study.ASKED
    ]
    notes = [f"{case.setting} {_points(found)}" for case, found in zip(router_study.ASKED, gains, strict=True)]
    holds = all(found.gain >= ROUTED_BAR for found in gains)
    return Measured(holds, ", ".join(notes), f"eight classes, {requests} requests, seeds {seeds[0]} to {seeds[-1]}")


def _results(lab: Lab) -> tuple[Results, int]:
    """Returns the points of the layer-level simulator, and the number of requests in each."""
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


AGENTS_BAR, AGENTS_TTFT = 10.0, 0.25
WRONG, WRONG_BAR = (0.25, 4.0), 8.0
"""Bars in points over mfs with everything fetched: AGENTS_BAR for agents with a view of the measured age, WRONG_BAR
with expected times multiplied by each of WRONG."""


def j1(lab: Lab) -> Measured:
    results, requests = _results(lab)
    seeds = _outlook_seeds(lab)
    agents = outlook.point_of(results, outlook.AGENTS, requests)
    fetched = results.of_seeds(agents, "mfs", seeds)

    def against(rows: list[dict[str, Any]], reuse: ReuseConfig) -> Comparison:
        return compare(results.of_seeds(msgspec.structs.replace(agents, reuse=reuse), "mfs", seeds), rows)

    old = outlook.aged("slo", outlook.MEASURED_AGE_S)
    known = against(fetched, old)
    wrong = {error: against(fetched, ReuseConfig(rule="slo", error=error)) for error in WRONG}
    best = max(outlook.TIMEOUTS, key=lambda row: against(fetched, row.reuse).attainment)
    timed = results.of_seeds(msgspec.structs.replace(agents, reuse=best.reuse), "mfs", seeds)
    over_best = against(timed, old)
    holds = (
        known.gain >= AGENTS_BAR
        and known.ttft_ratio <= AGENTS_TTFT
        and all(found.gain >= WRONG_BAR for found in wrong.values())
        and over_best.gain > 0
    )
    notes = [
        f"agents, a view {outlook.MEASURED_AGE_S * 1e3:g} ms old: {_points(known)}, mean TTFT x{known.ttft_ratio:.2f}",
        f"over {best.reuse.rule}, the best of {len(outlook.TIMEOUTS)} time-outs on these seeds, {_points(over_best)}",
        *(f"expected times x{error:g} {_points(found)}" for error, found in wrong.items()),
    ]
    return Measured(holds, "; ".join(notes), _outlook_scale(requests, seeds))


SHORT_BAR = -0.5
"""Points over mfs with everything fetched, where fetches are mostly in time."""


def j1_short(lab: Lab) -> Measured:
    results, requests = _results(lab)
    seeds = _outlook_seeds(lab)
    cases = outlook.QWEN.values()
    gains = [_gain_of_decisions(results, case, requests, ReuseConfig(rule="slo"), seeds) for case in cases]
    notes = [f"{case.name} {_points(found)}" for case, found in zip(cases, gains, strict=True)]
    holds = all(found.gain >= SHORT_BAR for found in gains)
    return Measured(holds, ", ".join(notes), _outlook_scale(requests, seeds))


PLACED_TTFT = 0.9


def j4(lab: Lab) -> Measured:
    results, requests = _results(lab)
    seeds = _outlook_seeds(lab)
    point = outlook.point_of(results, outlook.QWEN["fan-in"], requests)
    other = results.of_seeds(point, "mfs", seeds)
    notes, holds = [], True
    for age_s in (outlook.MEASURED_AGE_S, 0.1):
        placed = msgspec.structs.replace(point, reuse=outlook.aged("always", age_s, placement="backlog"))
        found = compare(results.of_seeds(placed, "mfs", seeds), other)
        half = "" if found.ttft_half is None else f"±{found.ttft_half:.2f}"
        notes.append(f"{age_s * 1e3:g} ms old x{found.ttft_ratio:.2f}{half} ({_points(found)} points)")
        holds = holds and found.ttft_ratio <= PLACED_TTFT
    return Measured(holds, "mean TTFT: " + ", ".join(notes), _outlook_scale(requests, seeds))


LOST_BAR = -20.0
"""Percent."""


def j5(lab: Lab) -> Measured:
    results, requests = _results(lab)
    seeds = _outlook_seeds(lab)
    notes, changes = [], []
    for case in (outlook.AGENTS, outlook.CONVERSATIONS):
        point = outlook.point_of(results, case, requests)
        reuse = outlook.aged("slo", outlook.MEASURED_AGE_S)
        mine, other = (
            results.of_seeds(one, "mfs", seeds) for one in (msgspec.structs.replace(point, reuse=reuse), point)
        )
        change, half = lost_bytes(mine, other)
        changes.append(change)
        spread = "" if half is None else f"±{half:.0f}"
        before, after = (sum(lost_of(row) for row in rows) / len(rows) / 1e12 for rows in (other, mine))
        pruned = sum(row["lost"]["pruned"] for row in mine)
        notes.append(f"{case.name} {change:+.0f}{spread} % ({before:.2f} to {after:.2f} TB, {pruned} of them pruned)")
    return Measured(changes[0] <= LOST_BAR, ", ".join(notes), _outlook_scale(requests, seeds))


def lost_of(row: dict[str, Any]) -> float:
    """Returns the bytes that the network moved for requests that ended late or pruned."""
    return float(row["lost"]["fetched_bytes"] + row["lost"]["shipped_bytes"])


def lost_bytes(mine: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> tuple[float, float | None]:
    """Returns the difference in percent of the other's mean, paired by seed, and half of the 95 % interval."""
    mean = sum(lost_of(row) for row in other) / len(other)
    if not mean:
        return 0.0, None
    changes = [100 * (lost_of(a) - lost_of(b)) / mean for a, b in zip(mine, other, strict=True)]
    return sum(changes) / len(changes), half_width(changes)


def _outlook_seeds(lab: Lab) -> range:
    """Returns seeds that chose nothing: the rule was chosen on others, and time-outs on none."""
    return range(outlook.FIRST_SEED, outlook.FIRST_SEED + (1 if lab.quick else outlook.SEEDS))


def _outlook_scale(requests: int, seeds: range) -> str:
    return f"exact order, {requests} requests, seeds {seeds[0]} to {seeds[-1]}"


MOVES_SETTINGS = ("base", "fan-in", "egress")
MOVES_SHARE, MOVES_LOAD = 0.2, 0.8
HARM = 1.01
"""Ratio of the mean completion time of collectives that counts as slower: one percent."""


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
    Claim("j1", "joint", "python -m bench sim outlook", "beyond the papers: reuse fetched or computed again, by what "
          "ports owe", "agents, points over mfs: >= 10 at <= 0.25 of the mean TTFT, >= 8 with expected times x0.25 and "
          "x4; above the best time-out", j1),
    Claim("j1-short", "joint", "python -m bench sim outlook", "beyond the papers: the same rule costs nothing where "
          "fetches are mostly in time", "QwenA's settings, points over mfs: >= -0.5", j1_short),
    Claim("j2", "joint", "python -m bench sim --scheduler fcfs,fit --policy mfs", "beyond the papers: who shares a "
          "batch, by deadline", "points over FCFS: base >= 3, hot, fan-in, egress >= 1, base QwenB >= 6", j2),
    Claim("j3", "joint", "python -m bench sim routers", "beyond the papers: prefill units by wait, expected "
          "fetch and what their port owes", "points over static locality under mfs: hot and egress >= 2", j3),
    Claim("j4", "joint", "python -m bench sim outlook", "beyond the papers: decode workers by what their ports owe",
          "fan-in: mean TTFT <= 0.9 of workers at random, also with a view 100 ms old", j4),
    Claim("j5", "joint", "python -m bench sim outlook", "beyond the papers: bytes moved for requests that are lost "
          "all the same, where reuse goes by what ports owe", "agents: 20 % fewer than with all of it fetched", j5),
    Claim("j7", "joint", "python -m bench sim", "beyond the papers: swap and activation as flows with deadlines",
          "collectives no slower than without them", j7),
)  # fmt: skip
