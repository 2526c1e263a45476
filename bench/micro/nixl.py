"""What the adapter adds to a 1 MiB write of the stock NIXL wheel, with a real daemon (bar: under 1 %).

Stock and adapted writes take turns on one connection of one agent, over UCX's TCP transport on loopback and over its
verbs transport on soft RoCE, a minute each. The median of the pairs is stated with the interval in which it lies
(95 %), as for Mooncake; and the CPU time that the calling thread spends on all that the adapter does, and on the
session's permit alone, with the caches as a transfer leaves them; once more for transfers that have ended when they are
asked about, and not when they are posted; and how many functions in Python the thread runs for each.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from bench.micro.daemon import ROOT, mfsd
from bench.micro.nccl_wheel import unpacked
from bench.micro.paired import median_interval
from mfsd.children import python_module

SECONDS = 60.0
NIXL = "1.5.1"
TRANSPORTS = {"tcp": "tcp", "rdma": "rc_v"}


def run(seconds: float = SECONDS) -> dict[str, Any]:
    """By transport: medians, and what a pair of writes differs by."""
    return {name: measured(name, transport, seconds) for name, transport in TRANSPORTS.items()}


def measured(name: str, transport: str, seconds: float) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "bench/programs/nixl_pair.py"), "--seconds", str(seconds)]
    if name == "rdma":
        command = [*python_module("mfsd.soft_roce.launcher"), "--address", "127.0.0.1", "--", *command]
    with mfsd() as (socket, _), tempfile.TemporaryDirectory(prefix="mfs-") as folder:
        environment = {
            **os.environ,
            "MFS_SOCKET": str(socket),
            "PYTHONPATH": os.pathsep.join((str(unpacked("nixl-cu12", NIXL)), str(ROOT))),
            "XDG_RUNTIME_DIR": folder,
            "MFS_NIXL": "1",
            "UCX_TLS": transport,
            "NIXL_LOG_LEVEL": "ERROR",
        }
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return compared(found["wall_us"], found["cpu_us"]) | {"calls": found["calls"]}


def compared(wall: dict[str, list[float]], cpu: dict[str, list[float]]) -> dict[str, Any]:
    """What the writes' times (by kind, by round) and what the CPU times of the rest say."""
    overhead = [100 * (a / b - 1) for a, b in zip(wall["adapted"], wall["as_stock"], strict=True)]
    added, added_later = (
        [a - b for a, b in zip(cpu[f"around_{name}"], cpu[name], strict=True)] for name in ("nothing", "nothing_later")
    )
    stock_us, adapter_us = statistics.median(wall["as_stock"]), statistics.median(added)
    return {
        "pairs": len(overhead),
        "stock_us": round(stock_us, 1),
        "adapted_us": round(statistics.median(wall["adapted"]), 1),
        "overhead_percent": round(statistics.median(overhead), 2),
        "overhead_percent_interval": [round(value, 2) for value in median_interval(overhead)],
        "adapter_cpu_us": round(adapter_us, 1),
        "adapter_cpu_us_interval": [round(value, 2) for value in median_interval(added)],
        "adapter_cpu_percent": round(100 * adapter_us / stock_us, 2),
        "adapter_later_cpu_us": round(statistics.median(added_later), 1),
        "session_permit_cpu_us": round(statistics.median(cpu["session_permit"]), 1),
    }
