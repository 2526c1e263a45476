"""Maestro's claims, on generated workflows; that of the prediction on recorded requests, with a folder of traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.requests.claim import Claim, Measured
from bench.requests.errors import UsageError
from bench.requests.lab import Lab
from bench.requests.lengths import trace_file
from bench.requests.point import Point
from bench.requests.programs import SESSIONS
from bench.requests.settings import Settings
from bench.sim.workflows import POLICIES, ClusterConfig, one, simulate
from bench.sim.workload import records
from mfsd.serve.learn.rows import RequestRow, checked

SECONDS = 600.0
CONTENDED_QPS = 0.55
"""On four nodes, with four of five jobs batch: EDF has about half in time, as in the paper."""
FEW_QPS, FEW_BATCH, FEW_NODES = 1.0, 0.6, (1, 2, 4)
FEW_JUDGED = (2, 4)
"""Numbers of nodes with which the paper's gain is the largest."""
AWAY_QPS = (0.4, 0.6, 0.8)
EXPECTED = "lengths expected are medians of roles, not those of a trained predictor"
SWITCH_JOBS, SWITCH_APART_S = 2, 5000.0


def point(policy: str, qps: float, **given: Any) -> Point:
    return Point(
        what="workflows", workload="maestro", policy=policy, qps=qps, seconds=SECONDS, settings=Settings(**given)
    )


def mean(lab: Lab, at: Point, name: str) -> float:
    """Returns the mean over seeds."""
    rows = [row[name] for row in lab.of_seeds(at, lab.scale.seeds)]
    return sum(float(r["mean"] if isinstance(r, dict) else r) for r in rows) / len(rows)


def scale(lab: Lab) -> str:
    seeds = ", ".join(map(str, lab.scale.seeds))
    return f"workflows generated, {SECONDS:g} s of arrivals, seeds {seeds}"


def contended(lab: Lab) -> Measured:
    names = ("fcfs", "edf", "edf-fitness", "srtf", "maestro")
    slo = {n: 100 * mean(lab, point(n, CONTENDED_QPS), "slo") for n in names}
    delay = {n: mean(lab, point(n, CONTENDED_QPS), "interactive_delay_s") for n in names}
    gain, ratio = slo["maestro"] - slo["edf"], delay["maestro"] / delay["edf"]
    others = "; ".join(f"{n} {slo[n]:.1f} % and {delay[n]:.1f} s" for n in names if n not in ("edf", "maestro"))
    text = f"{slo['maestro']:.1f} v {slo['edf']:.1f} % ({gain:+.1f} points), queueing {ratio:.2f}x of EDF's"
    return Measured(gain >= 10 and ratio <= 0.5, text, f"in time and interactive queueing: {others}; {EXPECTED}")


def preempting(lab: Lab) -> Measured:
    gains = {}
    for nodes in FEW_NODES:
        given = {"nodes": nodes, "batch_share": FEW_BATCH}
        with_, without = (
            100 * mean(lab, point(name, FEW_QPS, **given), "slo") for name in ("maestro", "maestro-no-preempt")
        )
        gains[nodes] = with_ - without
    text = ", ".join(f"{gain:+.1f} points on {nodes}" for nodes, gain in gains.items())
    return Measured(max(gains[n] for n in FEW_JUDGED) >= 10, text)


def one_gpu(lab: Lab) -> Measured:
    """Measures the last of two jobs, which finds the contexts of the first."""
    took = {}
    for name in ("maestro", "maestro-restart"):
        jobs = one("travel assistant", SWITCH_JOBS, SWITCH_APART_S, 1)
        last = max(simulate(jobs, POLICIES[name], ClusterConfig(nodes=1)).ended, key=lambda e: e.end_s)
        took[name] = last.end_s - last.job.arrival_s
    ratio = took["maestro"] / took["maestro-restart"]
    return Measured(ratio <= 0.5, f"{took['maestro']:.1f} v {took['maestro-restart']:.1f} s ({ratio:.2f}x)")


def placed(lab: Lab) -> Measured:
    ratios, packed = [], []
    for qps in AWAY_QPS:
        away = {n: mean(lab, point(n, qps, nodes=5, remote_nodes=2), "interactive_delay_s") for n in (
            "maestro", "maestro-pack", "maestro-balance")}  # fmt: skip
        ratios.append(away["maestro"] / away["maestro-balance"])
        packed.append(away["maestro-pack"] / away["maestro-balance"])
    text = ", ".join(f"{r:.2f}x at {q:g}/s" for r, q in zip(ratios, AWAY_QPS, strict=True))
    return Measured(max(ratios) <= 0.95, text, "without the network: " + ", ".join(f"{r:.2f}x" for r in packed))


def accounted(lab: Lab) -> Measured:
    rows = lab.of_seeds(point("maestro", CONTENDED_QPS), lab.scale.seeds)
    errors = sum(r["accounting_errors"] for r in rows)
    kv = sum(r["kv_reserved_over_needed"] for r in rows) / len(rows)
    overruns = sum(r["overruns"] for r in rows)
    text = f"{errors} events at which sums differ or exceed the GPU; {rows[0]['overcommit']:.2f}x reserved side by side"
    return Measured(errors == 0, text, f"stages reserve {kv:.2f}x of what they need, {overruns} outgrew their node")


def predicted(lab: Lab) -> Measured:
    if lab.traces is None:
        return Measured(None, "", "needs recorded sessions: --traces DIR")
    try:
        from mfsd.serve.learn import measure, train
    except ImportError as error:
        return Measured(None, "", f"needs {error.name}: pip install 'mfsd[learn]'")
    path = trace_file(lab.traces, SESSIONS)
    learned = train.learn(checked(sessions(path), path.name), lambda line: None)
    found = measure.measure(learned.model, learned.test)
    auc = found.auc or 0.0
    apart = max(abs(c.covered - (1 - c.epsilon)) for c in found.coverage)
    covered = ", ".join(f"{c.covered:.3f} of {1 - c.epsilon:g}" for c in found.coverage)
    f1 = 0.0 if found.f1 is None else found.f1
    text = f"AUC {auc:.3f}, F1 {f1:.3f}; bounds cover {covered}; MAE {found.mae:.0f} tokens, R2 {found.r2:.2f}"
    note = (
        f"{path.name}, sessions kept apart, structure alone; {found.requests} requests not seen; lengths do not carry"
    )
    return Measured(auc >= 0.87 and apart <= 0.015, text, note)


def sessions(path: Path) -> list[RequestRow]:
    """Returns rows of the coding sessions. An answer whose kind is not recorded is used for lengths only."""
    columns = ("session_id", "timestamp", "type", "input_length", "output_length", "input_types", "output_types",
               "tool_tokens", "fork_group")  # fmt: skip
    rows = []
    for where, row in records(path, columns):
        kinds, given = row.get("output_types"), row.get("input_types")
        try:
            rows.append(
                RequestRow(
                    session_id=row["session_id"], timestamp=float(row["timestamp"]), role=row.get("type") or "",
                    input_length=int(row["input_length"]), output_length=int(row["output_length"]),
                    tools=int(row.get("tool_tokens") or 0), group=row.get("fork_group"),
                    after_tool="tool_result" in given if given else None,
                    tool_call="tool_use" in kinds if kinds else None,
                )
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{where}: {error!r}: expected {', '.join(columns)}") from error
    return rows


CLAIMS = (
    Claim("m1", "maestro", "Maestro 4.2", "73.6 v 50.0 % of EDF, queueing -84.8 %",
          ">= +10 points over EDF, queueing <= 0.5x, contended", contended, scale),
    Claim("m2-preempt", "maestro", "Maestro table II", "preemption: +33 points on 2 nodes, +16 on 4",
          ">= +10 points on 2 or 4 nodes", preempting, scale),
    Claim("m2-one-gpu", "maestro", "Maestro table IV", "one GPU: 92.4 v 309.1 s with restarts",
          "<= 0.5x of restarts", one_gpu),
    Claim("m2-placement", "maestro", "Maestro table VIII", "queueing 0.25-0.83x of load balance",
          "<= 0.95x at every rate", placed, scale),
    Claim("m2-memory", "maestro", "Maestro table V", "3.05x KV beside five models", "accounting exact",
          accounted, scale),
    Claim("m3", "maestro", "Maestro tables III, VI", "AUC 0.9625, R2 0.777",
          "AUC >= 0.87, coverage within 0.015, R2 reported", predicted),
)  # fmt: skip
