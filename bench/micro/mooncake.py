"""What the adapter adds to a 1 MiB write of the stock Mooncake wheel, with a real daemon (bar: under 1 %).

Adapted and stock writes take turns on one engine, over Mooncake's TCP transport on loopback, block by block, so that
both see the same machine. Beside the ratio: the adapter without a permit, and a permit without a transfer.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import Any

from bench.micro.daemon import ROOT, mfsd

BLOCKS, ROUNDS = 20, 50


def run(blocks: int = BLOCKS, rounds: int = ROUNDS) -> dict[str, Any]:
    """Medians over blocks of the blocks' medians; overhead_percent: of adapted to stock, block by block."""
    program = ROOT / "bench/programs/mooncake_pair.py"
    command = [sys.executable, str(program), "--blocks", str(blocks), "--rounds", str(rounds)]
    with mfsd() as (socket, _):
        environment = {**os.environ, "MFS_SOCKET": str(socket), "PYTHONPATH": str(ROOT), "GLOG_minloglevel": "2"}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    measured: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])

    def overhead(name: str) -> float:
        pairs = zip(measured[name], measured["stock_us"], strict=True)
        return round(100 * (statistics.median(a / b for a, b in pairs) - 1), 2)

    return {
        **{name: round(statistics.median(values), 1) for name, values in measured.items()},
        "overhead_percent": overhead("adapted_us"),
        "overhead_unscheduled_percent": overhead("unscheduled_us"),
    }
