"""The measured coordinator of the benchmark ``coordinator``: a real one, with most of its daemons inside.

Speaks lines of JSON with :mod:`bench.micro.coordinator`: says when it leads, fills itself and measures when
asked, and prints the results. Its clock is virtual, so that ten thousand batches live about a second each, whatever
this machine can do.
"""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.micro.coordinator_load import Load, Snapshot, ports_of
from mfsd.coordinator import messages
from mfsd.coordinator.cluster import Cluster
from mfsd.coordinator.election import Election
from mfsd.coordinator.etcd import Etcd
from mfsd.coordinator.process import GC_THRESHOLDS
from mfsd.coordinator.server import new_server
from mfsd.coordinator.service import Service
from mfsd.coordinator.settings import Settings
from mfsd.coordinator.stream import Session
from mfsd.coordinator.turns import PAUSE_S
from mfsd.node.link_interface import BatchSummary, Identity
from mfsd.node.link_state import LinkState
from mfsd.proto import mfs_pb2 as pb

EVENT_NS = 33_000
"""Virtual time between events: 10,000 batches, a third of the events arrivals, so each lives a second."""
EVENTS = 6_000
EVENTS_OVERLOADED = 2_000
ROUNDS = 5
"""The events of one load in so many parts: how far their 99th percentiles are apart is the spread."""
HELD = 64
"""Batches that are filled in between two judgements, as many as one slice of the service takes."""
OVERLOAD = 160.0
"""So many times the bytes: ports are promised about as much time as the budgets are long, and the plan must prune."""


class Event(NamedTuple):
    took_ns: int
    cpu_ns: int
    """Of it, on the processor: the rest is other programs' on this machine."""
    size_bytes: int
    """Both ways."""


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def __call__(self) -> int:
        return self.now_ns


class Quiet:
    def info(self, event: str, **values: object) -> None: ...
    def warning(self, event: str, **values: object) -> None:
        print(f"{event}: {values}", file=sys.stderr)

    def error(self, event: str, **values: object) -> None:
        self.warning(event, **values)


class Inside:
    """Daemons without a connection: their reports are real bytes, read and answered as those of a stream."""

    def __init__(self, service: Service, cluster: Cluster, clock: Clock, numbers: range, seed: int) -> None:
        self.service, self.cluster, self.clock = service, cluster, clock
        self.nodes = numbers
        self.load = Load(seed, first_batch=1_000_000)
        self.states: dict[int, LinkState] = {}
        self.sessions: dict[str, Session] = {}
        self.active: dict[int, deque[BatchSummary]] = {}
        for number in numbers:
            state = LinkState(Identity(f"node-{number}", "bench", 1), ports_of(number), 10**9)
            session = Session(state.hello().hello, "inside", None)  # type: ignore[arg-type]  # nothing is written to it
            cluster.connect(session.node, ports_of(number), clock())
            service._number_ports(session, session.hello.ports)
            session.welcomed_term = 1
            state.follow("bench", 1, 0)
            state.start_snapshot()
            self.states[number], self.sessions[session.node] = state, session
            self.active[number] = deque()
            cluster.synchronise(session.node, clock())
            cluster.take(session.node)

    def event(self, number: int) -> Event:
        """One report of this node as it is now: handled, and all that it changes written."""
        report = self.states[number].report(self.clock())
        assert report is not None
        raw = report.SerializeToString()
        session = self.sessions[f"node-{number}"]
        size = len(raw)
        start_ns, start_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        for _ in self.service.events(session, self.cluster, pb.FromNode.FromString(raw).report, self.clock()):
            pass
        for name in list(self.cluster.dirty):
            if name in self.sessions and (delta := self.cluster.take(name)) is not None:
                size += len(messages.order(delta, 1, self.cluster.ports))
        event = Event(time.perf_counter_ns() - start_ns, time.thread_time_ns() - start_cpu_ns, size)
        self.service._wake(self.cluster)  # the real streams'
        self.clock.now_ns += EVENT_NS
        return event

    def arrive(self, number: int) -> Event:
        batch = self.load.batch(number)
        self.active[number].append(batch)
        self.states[number].put(batch, self.clock())
        return self.event(number)

    def depart(self, number: int) -> Event:
        self.states[number].depart(self.active[number].popleft().batch_id)
        return self.event(number)

    def update(self, number: int) -> Event:
        active = self.active[number]
        batch = self.load.later(active.popleft())
        active.append(batch)
        self.states[number].put(batch, self.clock())
        return self.event(number)

    def next(self) -> Event:
        """A third each of arrivals, departures and updates."""
        number = self.load.node(self.nodes)
        kind = self.load.random()
        if kind < 1 / 3 or not self.active[number]:
            return self.arrive(number)
        return self.depart(number) if kind < 2 / 3 else self.update(number)

    def overload(self, batches: int) -> None:
        """Heavier batches take the place of all these nodes have; call again and again, with the number done so far."""
        number = self.nodes[batches % len(self.nodes)]
        if batches == 0:
            self.load = Load(3, first_batch=2_000_000, bytes_scale=OVERLOAD)
        if self.active[number]:
            self.depart(number)
        self.arrive(number)


async def measured(inside: Inside, count: int, prefix: str = "") -> dict[str, float]:
    events = []
    for at in range(count):
        events.append(inside.next())
        await asyncio.sleep(PAUSE_S if at % 4 == 0 else 0)  # as the service does after some milliseconds of work
    took_ns, cpu_ns, sizes = np.array(events).T
    rounds = [np.percentile(part, 99) / 1e6 for part in np.array_split(took_ns, ROUNDS)]
    cpu_rounds = [np.percentile(part, 99) / 1e6 for part in np.array_split(cpu_ns, ROUNDS)]
    return {
        f"{prefix}event_ms_p99_least_round": float(min(rounds)),
        f"{prefix}event_ms_p99_most_round": float(max(rounds)),
        f"{prefix}event_cpu_ms_p99_least_round": float(min(cpu_rounds)),
        f"{prefix}event_cpu_ms_p99_most_round": float(max(cpu_rounds)),
        f"{prefix}event_ms_p50": float(np.percentile(took_ns, 50)) / 1e6,
        f"{prefix}event_ms_p99": float(np.percentile(took_ns, 99)) / 1e6,
        f"{prefix}event_ms_max": float(took_ns.max()) / 1e6,
        f"{prefix}event_cpu_ms_p50": float(np.percentile(cpu_ns, 50)) / 1e6,
        f"{prefix}event_cpu_ms_p99": float(np.percentile(cpu_ns, 99)) / 1e6,
        f"{prefix}bytes_per_event": float(sizes.mean()),
        f"{prefix}pruned": len(inside.cluster.pruned()),
        f"{prefix}infeasible": len(inside.cluster.infeasible()),
    }


def rss_mib() -> float:
    with open("/proc/self/status") as file:  # noqa: PTH123
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


async def fill(cluster: Cluster, clock: Clock, count: int, one: Callable[[int], object]) -> None:
    """`one` for each of so many, planned together as the service does while much comes in."""
    for at in range(count):
        cluster.hold()
        one(at)
        if at % HELD == HELD - 1 or at == count - 1:
            cluster.release(clock())
            await asyncio.sleep(PAUSE_S)


async def main(etcd: str, port: int, outside: int, nodes: int, batches: int, snapshot: str) -> None:
    gc.set_threshold(*GC_THRESHOLDS)
    clock = Clock()
    address = f"127.0.0.1:{port}"
    settings = Settings(listen=address, advertise=address, version="bench", etcd=(etcd,))
    election = Election(Etcd([etcd]), address, settings.lease_ttl_s, Quiet())
    service = Service(settings, election, Quiet(), clock_ns=clock)
    server, _ = new_server(service, address, None, Quiet())
    await server.start()
    works = (election.run(service.role_changed), service.beat(), service.tick())
    background = [asyncio.create_task(work) for work in works]
    while service.cluster is None:
        await asyncio.sleep(0.01)
    print(json.dumps({"leads": True}), flush=True)

    await asyncio.to_thread(sys.stdin.readline)  # "fill"
    inside = Inside(service, service.cluster, clock, range(outside, nodes), seed=1)
    start_s = time.perf_counter()
    missing = batches - len(service.cluster.batches)
    await fill(service.cluster, clock, missing, lambda at: inside.arrive(outside + at % (nodes - outside)))
    fill_s = time.perf_counter() - start_s
    print(json.dumps({"filled": len(service.cluster.batches)}), flush=True)

    await asyncio.to_thread(sys.stdin.readline)  # "measure"
    result = await measured(inside, EVENTS) | {
        "rss_mib": rss_mib(),
        "fill_s": fill_s,
        "batches": len(service.cluster.batches),
        "requests": service.cluster.requests_active(),
        "ports": len(service.cluster.ports),
        "events": EVENTS,
    }
    Path(snapshot).write_bytes(pickle.dumps(Snapshot.of(service.cluster, clock())))
    await fill(service.cluster, clock, batches, inside.overload)
    result |= await measured(inside, EVENTS_OVERLOADED, "overloaded_")
    result["overloaded_drop_budget"] = service.cluster.planner.drop_budget()
    print(json.dumps(result), flush=True)
    await asyncio.gather(*background)  # until killed


if __name__ == "__main__":
    address, *numbers, folder = sys.argv[1:]
    asyncio.run(main(address, int(numbers[0]), int(numbers[1]), int(numbers[2]), int(numbers[3]), folder))
