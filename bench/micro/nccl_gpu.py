"""What MFS costs NCCL, where a GPU is at hand: ranks on one GPU over soft RoCE, alone and with shim, plugin and
an idle daemon in turns.

``ratio_*``: median time of an operation with MFS over without it, one value for each pair of runs; 1: it costs nothing.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.micro.shim import SHIM, daemon, shimmed
from mfsd.children import python_module

PROGRAM = Path(__file__).parents[1] / "programs/nccl_ranks.py"
PAIRS, RANKS, ROUNDS, COUNT = 5, 2, 12, 262144
LIMIT_S = 120


def seconds(library: str, environment: dict[str, str]) -> dict[str, float]:
    """Median time of every operation, over rounds and ranks."""
    shape = ("--ranks", str(RANKS), "--rounds", str(ROUNDS), "--count", str(COUNT))
    device = (*python_module("mfsd.soft_roce.launcher"), "--address", "127.0.0.1", "--")
    with tempfile.TemporaryDirectory(prefix="mfs-") as runtime:
        done = subprocess.run(
            [*device, sys.executable, str(PROGRAM), "--library", library, *shape],
            env={**environment, "XDG_RUNTIME_DIR": runtime},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    if done.returncode:
        raise SystemExit(f"nccl_gpu: the ranks failed: {done.stderr.strip()}")
    ranks = [json.loads(line)["seconds"] for line in done.stdout.splitlines() if line.startswith("{")]
    return {name: statistics.median(s for rank in ranks for s in rank[name]) for name in ranks[0]}


def run() -> dict[str, object]:
    library = os.environ.get("MFS_BENCH_NCCL", "libnccl.so.2")
    ratios: dict[str, list[float]] = {}
    with daemon() as path:
        profiled = {**shimmed(path), "NCCL_PROFILER_PLUGIN": str(SHIM)}
        for pair in range(PAIRS):
            order = (dict(os.environ), profiled)
            first, second = (seconds(library, e) for e in (order if pair % 2 == 0 else order[::-1]))
            bare, ours = (first, second) if pair % 2 == 0 else (second, first)
            for name in bare:
                ratios.setdefault(f"ratio_{name}", []).append(ours[name] / bare[name])
    return {"ranks": RANKS, "bytes": 4 * COUNT, **{name: sorted(values) for name, values in ratios.items()}}
