"""What the adapter adds to a 1 MiB write of the stock Mooncake wheel, with a real daemon (bar: under 1 %).

Stock and adapted writes take turns on one engine, over Mooncake's TCP transport on loopback and over RDMA on soft RoCE.
Wall time is compared round by round: it depends on what else the machine does. The CPU time that the calling thread
spends does so less: it is stated (first decile: caches warm, no interrupt) for all that the adapter does, for the
session's permit in it, and for the native client's in that. What of a permit's wall time is not CPU time is the wait
for the daemon's thread to be woken and to answer.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.micro.daemon import ROOT, mfsd

ROUNDS = 400
LINE_400G_US = 2**20 * 8 / 400e3
"""1 MiB at 400 Gbit/s."""


def run(rounds: int = ROUNDS) -> dict[str, Any]:
    """By transport: medians, and the quartiles of what a pair of writes differs by."""
    return {protocol: measured(protocol, rounds) for protocol in ("tcp", "rdma")} | {
        "line_400g_us": round(LINE_400G_US, 1)
    }


def measured(protocol: str, rounds: int) -> dict[str, Any]:
    program = ROOT / "bench/programs/mooncake_pair.py"
    command = [sys.executable, str(program), "--rounds", str(rounds), "--protocol", protocol]
    if protocol == "rdma":
        launcher = (sys.executable, "-m", "mfsd.soft_roce.launcher", "--address", "127.0.0.1", "--")
        command = [*launcher, *command]
    with mfsd() as (socket, _), tempfile.TemporaryDirectory(prefix="mfs-") as folder:
        topology = Path(folder) / "topology.json"
        topology.write_text('{"cpu:0": [["mfs0"], []]}')
        environment = {
            **os.environ,
            "MFS_SOCKET": str(socket),
            "PYTHONPATH": str(ROOT),
            "XDG_RUNTIME_DIR": folder,
            "GLOG_minloglevel": "2",
        }
        if protocol == "rdma":
            environment |= {"MC_GID_INDEX": "0", "MC_CUSTOM_TOPO_JSON": str(topology), "MC_WORKERS_PER_CTX": "1"}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, dict[str, list[float]]] = json.loads(done.stdout.splitlines()[-1])
    wall, cpu = found["wall_us"], found["cpu_us"]

    def least(name: str) -> float:
        return round(statistics.quantiles(cpu[name], n=10)[0], 1)

    def percent(name: str) -> list[float]:
        pairs = zip(wall[name], wall["as_stock"], strict=True)
        return [round(100 * (q - 1), 2) for q in statistics.quantiles((a / b for a, b in pairs), n=4)]

    return {
        "stock_us": round(statistics.median(wall["as_stock"]), 1),
        "adapted_us": round(statistics.median(wall["adapted"]), 1),
        "unscheduled_us": round(statistics.median(wall["unscheduled"]), 1),
        "overhead_percent": percent("adapted")[1],
        "overhead_quartiles_percent": percent("adapted"),
        "overhead_unscheduled_percent": percent("unscheduled")[1],
        "permit_us": round(statistics.median(wall["session_permit"]), 1),
        "native_permit_us": round(statistics.median(wall["native_permit"]), 1),
        "adapter_cpu_us": least("around_nothing"),
        "session_permit_cpu_us": least("session_permit"),
        "native_permit_cpu_us": least("native_permit"),
    }
