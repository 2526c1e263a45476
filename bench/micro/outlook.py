"""What reading the outlook page costs, beside a real daemon that writes it: a port, a far port, a request, a
forecast."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from typing import Any

from bench.micro.daemon import BUILD, NATIVE, ROOT, compiler, mfsd, realtime
from mfsd._native import Client

BLOCKS, ROUNDS, CALLS = 100, 2_000, 20_000


def build() -> str:
    BUILD.mkdir(parents=True, exist_ok=True)
    program = str(BUILD / "outlook")
    sources = [NATIVE / "outlook.c", *sorted((ROOT / "csrc/client").glob("*.c"))]
    flags = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/csrc/include")
    subprocess.run([compiler("cc", "gcc"), *flags, *map(str, sources), "-o", program], check=True)
    return program


def run(blocks: int = BLOCKS, rounds: int = ROUNDS, calls: int = CALLS) -> dict[str, Any]:
    """NAME_ns_p50, NAME_ns_best: of the means of blocks, in C; python_fetch_ns: a call of the binding's."""
    program = build()
    with mfsd(first=True) as (socket, _):
        command = [program, str(socket), str(blocks), str(rounds)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, preexec_fn=realtime)
        measured: dict[str, list[float]] = json.loads(done.stdout)
        with Client.attach(str(socket), timeout_ms=5000) as client:
            nic, peer = client.nic("bench0", 0, 12_500_000_000), bytes(15) + b"\1"
            begin_ns = time.perf_counter_ns()
            for _ in range(calls):
                client.fetch_ns(nic, 1 << 20, peer, 1)
            python_ns = (time.perf_counter_ns() - begin_ns) / calls
    results = {}
    for name, blocks_ns in measured.items():
        results[f"{name}_ns_p50"] = round(statistics.median(blocks_ns), 1)
        results[f"{name}_ns_best"] = round(min(blocks_ns), 1)
    return {**results, "python_fetch_ns": round(python_ns, 1)}
