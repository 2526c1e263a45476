"""Speed of the reverse multi-level queue: submit + pick pairs per second on one core, 10^5 flows queued.

Compiles `csrc/queue` with `rmlq_load.c` and `rmlq_peers.cpp` into build/bench. The standard library's set
and priority queue sort the same arrivals in the same run by keys that never change; they cannot promote,
cancel or move a batch.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
FLOWS = 100_000
TURNS = 200_000
ROUNDS = 9
MIXED = ("kv_backlog", "all_backlogged")


def build() -> Path:
    """The load generator, compiled when a source is newer. Exits with the remedy without a C++ compiler."""
    folder = ROOT / "build/bench"
    program = folder / "rmlq_load"
    here = Path(__file__).parent
    c_sources = [*sorted((ROOT / "csrc/queue").glob("*.c")), here / "rmlq_load.c"]
    peers = here / "rmlq_peers.cpp"
    headers = [*(ROOT / "csrc").rglob("*.h")]
    newest = max(p.stat().st_mtime for p in [*c_sources, peers, *headers])
    if program.exists() and program.stat().st_mtime > newest:
        return program
    cxx = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if cxx is None:
        sys.exit("bench rmlq: no C++ compiler for the peers; install one: apt-get install g++")
    folder.mkdir(parents=True, exist_ok=True)
    flags = [*shlex.split(os.environ.get("CPPFLAGS", "")), f"-I{ROOT / 'csrc/include'}", "-O2", "-g"]
    objects = []
    for source in c_sources:
        objects.append(str(folder / f"{source.stem}.o"))
        subprocess.run(["cc", "-std=gnu11", *flags, "-c", str(source), "-o", objects[-1]], check=True)
    subprocess.run([cxx, "-std=c++17", *flags, str(peers), *objects, "-o", str(program)], check=True)
    return program


def run(flows: int = FLOWS, turns: int = TURNS, rounds: int = ROUNDS) -> dict[str, Any]:
    """Runs every scenario `rounds` times, in turn.

    ops_per_s: submit + pick pairs per CPU-second in the slower of the two mixed scenarios, from its fastest
    round: what the code costs, not what else ran on the machine. Per scenario: ns per pair (fastest, median,
    slowest round), ns per completion, and of the peers ns per push + pop.
    """
    command = [str(build()), str(flows), str(turns), str(rounds)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        row = json.loads(line)
        rows.setdefault(row["scenario"], []).append(row)
    scenarios = {name: summary(of) for name, of in rows.items()}
    worst = max(scenarios[name]["pair_ns"]["min"] for name in MIXED)
    worst_median = max(scenarios[name]["pair_ns"]["median"] for name in MIXED)
    return {
        "ops_per_s": round(1e9 / worst),
        "ops_per_s_median_round": round(1e9 / worst_median),
        "flows_queued": flows,
        "scenarios": scenarios,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    def spread(key: str) -> dict[str, float]:
        values = [row[key] for row in rows]
        return {"min": min(values), "median": round(median(values), 2), "max": max(values)}

    return {
        "pair_ns": spread("turn_ns"),
        "complete_ns": spread("complete_ns"),
        "peers": {
            "std::set": spread("std_set_ns"),
            "std::priority_queue": spread("std_priority_queue_ns"),
        },
        "promotions": round(median(row["promotions"] for row in rows)),
    }
