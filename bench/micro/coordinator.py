"""One coordinator at the scale of a large cluster: 1,024 nodes, 2,048 ports, 10,000 batches; then it is killed."""

from __future__ import annotations

import asyncio
import json
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.micro.coordinator_load import NODES, Load, ports_of
from bench.micro.daemon import ROOT
from bench.ports import free_port
from mfsd.children import python_module
from mfsd.node.link import Link
from mfsd.node.link_interface import Identity, LinkSettings, OrderChange

STREAMS = 64
BATCHES = 10_000
LIMIT_S = 60.0
"""For any one step of the daemons; the coordinator's own take longer on a busy machine."""
MEASURE_LIMIT_S = 300.0


class Outside:
    """A daemon with a real stream; it notes when orders come."""

    def __init__(self, number: int, addresses: tuple[str, ...]) -> None:
        self.ranks: dict[int, int] = {}
        self.term = 0
        self.complete_at_s = 0.0
        self.waiting: dict[int, float] = {}
        self.took_ms: list[float] = []
        identity = Identity(f"node-{number}", "bench", 1)
        self.link = Link(LinkSettings(addresses=addresses), identity, ports_of(number), self, self)

    def order(self, change: OrderChange) -> None:
        now_s = time.monotonic()
        if change.complete:
            self.term, self.complete_at_s = change.term, now_s
            self.ranks = {}
        self.ranks.update(change.ranks)
        for batch_id in change.ranks:
            if (sent_s := self.waiting.pop(batch_id, None)) is not None:
                self.took_ms.append((now_s - sent_s) * 1e3)

    def order_lost(self) -> None: ...
    def info(self, event: str, **values: object) -> None: ...
    def warning(self, event: str, **values: object) -> None: ...


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            sys.exit(f"bench: {what} takes more than {LIMIT_S:g} s")
        await asyncio.sleep(0.002)


async def receive(leader: subprocess.Popen[str]) -> dict[str, Any]:
    assert leader.stdout is not None
    reading = asyncio.create_task(asyncio.to_thread(leader.stdout.readline))
    await asyncio.wait({reading}, timeout=MEASURE_LIMIT_S)
    if not reading.done():
        leader.kill()  # so that the reading ends
    line = await reading
    if not line:
        sys.exit(f"bench: the coordinator has ended, or says nothing for {MEASURE_LIMIT_S:g} s")
    return dict(json.loads(line))


def tell(leader: subprocess.Popen[str], word: str) -> None:
    assert leader.stdin is not None
    leader.stdin.write(word + "\n")
    leader.stdin.flush()


async def measure(etcd: str, started: list[subprocess.Popen[str]], snapshot: Path) -> dict[str, Any]:
    ports = [free_port(), free_port()]
    addresses = tuple(f"127.0.0.1:{port}" for port in ports)
    leader = subprocess.Popen(
        [
            *(sys.executable, "-m", "bench.micro.coordinator_leader"),
            *(etcd, *map(str, (ports[0], STREAMS, NODES, BATCHES)), str(snapshot)),
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    started.append(leader)
    await receive(leader)
    next_leader = [*python_module("mfsd.cli.daemon"), "--coordinator", "--etcd", etcd]
    started.append(
        subprocess.Popen(
            [*next_leader, "--listen", addresses[1], "--advertise", addresses[1]],
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    )
    load = Load(2)
    nodes = [Outside(number, addresses) for number in range(STREAMS)]
    links = [asyncio.create_task(node.link.run()) for node in nodes]
    batches = {number: [load.batch(number) for _ in range(BATCHES // NODES)] for number in range(STREAMS)}
    for number, node in enumerate(nodes):
        for batch in batches[number]:
            node.link.arrived(batch)
    await until(lambda: all(len(n.ranks) == BATCHES // NODES for n in nodes), "the first order")
    first_term = nodes[0].term
    tell(leader, "fill")
    await receive(leader)
    tell(leader, "measure")
    measured = asyncio.create_task(receive(leader))
    while not measured.done():  # meanwhile daemons with real streams come and go, too
        number = load.node(range(STREAMS))
        batch = load.batch(number)
        nodes[number].waiting[batch.batch_id] = time.monotonic()
        nodes[number].link.arrived(batch)
        gone = batches[number].pop(0).batch_id
        nodes[number].link.departed(gone)
        nodes[number].waiting.pop(gone, None)  # a busy leader may not have come to it
        batches[number].append(batch)
        await asyncio.sleep(0.01)
    results = measured.result()
    await until(lambda: not any(n.waiting for n in nodes), "the last order")
    term = nodes[0].term
    if any(n.term != first_term for n in nodes):
        sys.exit(f"bench: the lead was lost while events were handled: {term} leads, {first_term} did")
    leader.kill()
    killed_s = time.monotonic()
    await until(lambda: all(n.term > term for n in nodes), "the takeover")
    for number, node in enumerate(nodes):
        if set(node.ranks) != {b.batch_id for b in batches[number]}:
            sys.exit(f"bench: node-{number} has another order after the takeover: {node.ranks}")
    took_ms = [ms for node in nodes for ms in node.took_ms]
    for link in links:
        link.cancel()
    await asyncio.gather(*links, return_exceptions=True)
    return {
        **{k: round(v, 3) if isinstance(v, float) else v for k, v in results.items()},
        "stream_ms_p50": round(float(np.percentile(took_ms, 50)), 3),
        "stream_ms_p99": round(float(np.percentile(took_ms, 99)), 3),
        "reference_event_ms": round(pickle.loads(snapshot.read_bytes()).reference_ms(), 1),  # our own
        "takeover_s": round(max(n.complete_at_s for n in nodes) - killed_s, 3),
    }


def run() -> dict[str, Any]:
    """event_ms: from a report's bytes to the bytes of all orders that it changes, inside the coordinator;
    event_cpu_ms: of it, on the processor; *_round: the spread of their 99th percentiles over five parts of the run.
    stream_ms: from a daemon's call to its order, over gRPC, while the coordinator is never idle. bytes_per_event: both
    ways. rss_mib: of the coordinator. fill_s: all batches arrive, as after a takeover of the whole cluster.
    takeover_s: from SIGKILL of the leader until all real streams have the next leader's order. reference_event_ms:
    planning afresh, once. overloaded_*: the same with so many bytes that the plan prunes."""
    unpacked = ROOT / "build/debian/etcd-server/usr/bin/etcd"  # by tools/system-packages
    program = str(unpacked) if unpacked.exists() else shutil.which("etcd")
    if program is None:
        sys.exit("bench: no etcd found; run tools/system-packages, or install it: apt-get install etcd-server")
    client, peer = (f"127.0.0.1:{free_port()}" for _ in range(2))
    started: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory(prefix="mfs-") as folder:
        started.append(
            subprocess.Popen(
                [
                    *(program, "--data-dir", str(Path(folder) / "etcd"), "--name", "bench", "--logger", "zap"),
                    *(f"--listen-client-urls=http://{client}", f"--advertise-client-urls=http://{client}"),
                    *(f"--listen-peer-urls=http://{peer}", f"--initial-advertise-peer-urls=http://{peer}"),
                    f"--initial-cluster=bench=http://{peer}",
                ],
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
        try:
            return asyncio.run(measure(client, started, Path(folder) / "snapshot"))
        finally:
            for process in started:
                process.kill()
                process.wait()
