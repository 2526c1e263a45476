"""What a daemon costs that has clients and nothing to do: share of one core, and memory."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

from bench.micro.daemon import mfsd
from mfsd._native import Client

CLIENTS, SECONDS = 8, 10
SETTLE_S = 1.0


def cpu_s(pid: int) -> float:
    """CPU time of all threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(field)


def run(clients: int = CLIENTS, seconds: int = SECONDS) -> dict[str, Any]:
    """cpu_fraction: of one core over all `seconds` with `clients` attached on two NICs. rss_mib: all resident
    memory; rss_private_mib: without the pages of shared libraries and segments."""
    with mfsd() as (socket, process):
        attached = [Client.attach(str(socket), timeout_ms=5000) for _ in range(clients)]
        for client in attached:
            client.nic("bench0", 0, 12_500_000_000)
            client.nic("bench1", 0, 12_500_000_000)
        time.sleep(SETTLE_S)
        each = []
        for _ in range(seconds):
            before, start = cpu_s(process.pid), time.monotonic()
            time.sleep(1)
            each.append((cpu_s(process.pid) - before) / (time.monotonic() - start))
        results = {
            "cpu_fraction": round(statistics.fmean(each), 5),
            "cpu_fraction_each_s": [round(share, 4) for share in each],
            "rss_mib": round(memory_mib(process.pid, "VmRSS"), 1),
            "rss_private_mib": round(memory_mib(process.pid, "RssAnon"), 1),
            "clients": clients,
        }
        for client in attached:
            client.detach()
    return results
