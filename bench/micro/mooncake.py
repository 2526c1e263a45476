"""What the adapter adds to a 1 MiB write of the stock Mooncake wheel, with a real daemon (bar: under 1 %).

Stock and adapted writes take turns on one engine, over Mooncake's TCP transport on loopback and over RDMA on soft RoCE,
a minute each. A pair is what the adapted write of a round took by what the stock one did; the orders of a round take
turns, so that neither gains from its place. The machine and the network under it add to both far more than the adapter:
so the median of the pairs is stated with the interval in which it lies (95 %). A bar is shown to hold where the whole
interval is below it, and only not refuted where its end is above.

The CPU time that the calling thread spends depends less on the machine: it is stated for all that the adapter does, for
the session's permit, and for the native client's in both (medians, less what the clocks and an empty call take), with
the caches as a transfer leaves them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.micro.daemon import ROOT, mfsd
from bench.micro.paired import median_interval
from mfsd.children import python_module

SECONDS = 60.0
LINE_400G_US = 2**20 * 8 / 400e3
"""1 MiB at 400 Gbit/s."""


def run(seconds: float = SECONDS) -> dict[str, Any]:
    """By transport: medians, and what a pair of writes differs by."""
    return {protocol: measured(protocol, seconds) for protocol in ("tcp", "rdma")} | {
        "line_400g_us": round(LINE_400G_US, 1)
    }


def measured(protocol: str, seconds: float) -> dict[str, Any]:
    program = ROOT / "bench/programs/mooncake_pair.py"
    command = [sys.executable, str(program), "--seconds", str(seconds), "--protocol", protocol]
    if protocol == "rdma":
        launcher = (*python_module("mfsd.soft_roce.launcher"), "--address", "127.0.0.1", "--")
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
    return compared(found["wall_us"], found["cpu_us"])


def compared(wall: dict[str, list[float]], cpu: dict[str, list[float]]) -> dict[str, Any]:
    """What the writes' times (by kind, by round) and what the CPU times of the rest say."""

    def pairs(name: str) -> list[float]:
        """By how much a round's write took longer than its stock one (%)."""
        return [100 * (a / b - 1) for a, b in zip(wall[name], wall["as_stock"], strict=True)]

    def added(name: str) -> list[float]:
        """The CPU time of a round less that of doing nothing in it (us)."""
        return [a - b for a, b in zip(cpu[name], cpu["nothing"], strict=True)]

    def rounded(values: Iterable[float]) -> list[float]:
        return [round(value, 2) for value in values]

    overhead, stock_us = pairs("adapted"), statistics.median(wall["as_stock"])
    adapter_us = statistics.median(added("around_nothing"))
    return {
        "pairs": len(overhead),
        "stock_us": round(stock_us, 1),
        "adapted_us": round(statistics.median(wall["adapted"]), 1),
        "unscheduled_us": round(statistics.median(wall["unscheduled"]), 1),
        "overhead_percent": round(statistics.median(overhead), 2),
        "overhead_percent_interval": rounded(median_interval(overhead)),
        "overhead_quartiles_percent": rounded(statistics.quantiles(overhead, n=4)),
        "overhead_unscheduled_percent": round(statistics.median(pairs("unscheduled")), 2),
        "overhead_unscheduled_percent_interval": rounded(median_interval(pairs("unscheduled"))),
        "adapter_cpu_us": round(adapter_us, 1),
        "adapter_cpu_us_interval": rounded(median_interval(added("around_nothing"))),
        "adapter_cpu_percent": round(100 * adapter_us / stock_us, 2),
        "session_permit_cpu_us": round(statistics.median(added("session_permit")), 1),
        "native_permit_cpu_us": round(statistics.median(added("native_permit")), 1),
    }
