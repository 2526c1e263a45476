"""The submit ring beside DPDK rte_ring, Concurrency Kit ck_ring, moodycamel ConcurrentQueue and boost::lockfree.

`native/ring_main.c` runs all of them in turn, many rounds: the same 56-byte items, the same batches, one consumer that
takes up to 64 at once. rte_ring stands for the better of its default and its relaxed tail mode. The program runs before
ordinary processes where the system allows it.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from statistics import median
from typing import Any

from bench.micro.daemon import BUILD, NATIVE, ROOT, compiler, realtime

ROUNDS, ITEMS = 15, 200_000
PRODUCERS, BATCHES = (1, 2, 4), (1, 8)
PEERS = {
    "rte_ring": ("rte_ring", "rte_ring_rts"),
    "ck_ring": ("ck_ring",),
    "moodycamel": ("moodycamel",),
    "boost": ("boost",),
}
HEADLINE = "producers_2_batch_1"


def build() -> str:
    BUILD.mkdir(parents=True, exist_ok=True)
    # DPDK's headers need at least SSSE3: all are built for this machine.
    flags = ["-O3", "-g", "-march=native", f"-I{ROOT}/csrc/include"]
    query = subprocess.run(["pkg-config", "--cflags-only-I", "libdpdk"], capture_output=True, text=True)
    objects = []
    for source in sorted(NATIVE.glob("ring_*.c*")):
        objects.append(str(BUILD / f"{source.stem}.o"))
        if source.suffix == ".cc":
            command = [compiler("c++", "g++"), *flags, "-std=c++17"]
        else:
            command = [compiler("cc", "gcc"), *flags, "-std=gnu11"]
        if source.stem == "ring_rte":
            command += [*query.stdout.split(), "-include", "rte_config.h"]
        done = subprocess.run([*command, "-c", str(source), "-o", objects[-1]], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"bench ring: {source.name}: {done.stderr[:1500]}\nPeers missing? tools/system-packages bench")
    program = str(BUILD / "ring")
    subprocess.run(["c++", *objects, "-o", program, "-lpthread", "-lrte_ring", "-lrte_eal"], check=True)
    return program


def run(rounds: int = ROUNDS, items: int = ITEMS) -> dict[str, Any]:
    """ops_per_s and peers: median messages a second with two producers, one message a call, as the shim does it. Every
    number of producers and both batch sizes have a table of their own with [min, median, max], and
    lead_over_best_peer: median over the rounds of MFS's speed over that of the peer which is best in the median."""
    done = subprocess.run(
        [build(), str(rounds), str(items)], check=True, capture_output=True, text=True, preexec_fn=realtime
    )
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in done.stdout.splitlines():
        name, producers, batch, ops_per_s = line.split()
        samples[f"producers_{producers}_batch_{batch}", name].append(float(ops_per_s))
    tables: dict[str, Any] = {}
    for case in (f"producers_{p}_batch_{b}" for b in BATCHES for p in PRODUCERS):
        best = {
            peer: max((samples[case, mode] for mode in modes), key=median)
            for peer, modes in (("mfs", ("mfs",)), *PEERS.items())
        }
        table: dict[str, Any] = {name: spread(values) for name, values in best.items()}
        rival = max(PEERS, key=lambda peer: median(best[peer]))
        leads = [ours / theirs for ours, theirs in zip(best["mfs"], best[rival], strict=True)]
        table["lead_over_best_peer"] = round(median(leads), 3)
        table["best_peer"] = rival
        tables[case] = table
    return {
        "ops_per_s": tables[HEADLINE]["mfs"][1],
        "peers": {name: tables[HEADLINE][name][1] for name in PEERS},
        "smallest_lead": min(table["lead_over_best_peer"] for table in tables.values()),
        **tables,
    }


def spread(values: list[float]) -> list[int]:
    return [round(min(values)), round(median(values)), round(max(values))]
