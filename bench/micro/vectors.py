"""Loops of Python over ports and requests beside the same with numpy, interleaved in one run.

Each pair gives one answer (checked). `numpy` starts from the objects that the room has, as it would there; `arrays`
from arrays that are there already, which the room would have to keep.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from operator import mul
from typing import Any

import msgspec
import numpy as np

from bench.micro.serve_plan import requests
from mfsd.cli import cluster_page
from mfsd.coordinator.ports import CLASSES_MAX, Moved, Port, Use, moved
from mfsd.policy.marks import Marks
from mfsd.policy.types import Stage
from mfsd.proto import mfs_pb2 as pb

PORTS, NODES = 2048, 1024
WAITING = 1000
MARKED = 1000
QUEUED = 40
ROUNDS = 60
RATE_BYTES_PER_S = 50_000_000_000
Calls = dict[str, Callable[[], object]]


def ports() -> list[Port]:
    """All in use, as no cluster's are: the most that there is to do."""
    chance = np.random.default_rng(1)
    found = []
    for number in range(PORTS):
        direction = "out" if number % 2 else "in"
        use = Use(tuple(int(x) for x in chance.integers(1, 100, CLASSES_MAX)), 7, 3)
        found.append(Port(f"node-{number // 2}/mlx5_0/{direction}", RATE_BYTES_PER_S, use=use))
    return found


def columns(found: list[Port]) -> Moved:
    """Without numpy, a class at a time."""
    rates = [port.rate_bytes_per_s for port in found]
    classes = [
        sum(map(mul, shares, rates)) // 1000 for shares in zip(*(port.use.permille for port in found), strict=True)
    ]
    out = (port.use.unscheduled if port.name.endswith("/out") else 0 for port in found)
    passed = (port.use.passed for port in found)
    busiest = max(port.use.total() for port in found)
    return Moved(classes, sum(map(mul, out, rates)) // 1000, sum(map(mul, passed, rates)) // 1000, busiest)


def anew(found: list[Port]) -> Moved:
    """With arrays made from the objects each time."""
    rates = np.array([port.rate_bytes_per_s for port in found], dtype=np.float64)
    classes = np.array([port.use.permille for port in found], dtype=np.float64)
    out = np.array([port.use.unscheduled if port.name.endswith("/out") else 0 for port in found])
    passed = np.array([port.use.passed for port in found])
    busiest = max(port.use.total() for port in found)
    return Moved(
        [int(x) // 1000 for x in rates @ classes], int(out @ rates) // 1000, int(passed @ rates) // 1000, busiest
    )


class Kept:
    """Uses as arrays, which each report of a port changes."""

    def __init__(self, found: list[Port]) -> None:
        self.rates = np.array([port.rate_bytes_per_s for port in found], dtype=np.float64)
        self.out = np.array([port.name.endswith("/out") for port in found], dtype=np.float64)
        self.permille = np.zeros((len(found), CLASSES_MAX + 2))
        for number, port in enumerate(found):
            self.report(number, port.use)

    def report(self, number: int, use: Use) -> None:
        self.permille[number] = (*use.permille, use.unscheduled, use.passed)

    def moved(self) -> Moved:
        *classes, unscheduled, passed = self.rates @ self.permille
        unscheduled = (self.rates * self.out) @ self.permille[:, CLASSES_MAX]
        busiest = int(self.permille.sum(axis=1).max())
        return Moved([int(x) // 1000 for x in classes], int(unscheduled) // 1000, int(passed) // 1000, busiest)


def loads() -> Calls:
    """The bytes that all ports move, added up every few seconds; and a report of one port, of which thousands come."""
    found = ports()
    kept, plain, use = Kept(found), list(found), found[7].use

    def report() -> None:
        plain[7].use = use

    return {
        "python": lambda: moved(found),
        "columns": lambda: columns(found),
        "numpy": lambda: anew(found),
        "arrays": kept.moved,
        "one_report_python": report,
        "one_report_arrays": lambda: kept.report(7, use),
    }


def page() -> Calls:
    """The coordinator's page as bytes, and what of it numpy could take: the use of the ports, and the busiest."""
    reply = pb.StatusReply(leads=True)
    for number in range(NODES):
        node = reply.nodes.add(node=f"node-{number}", connected=True)
        for direction in ("in", "out"):
            port = node.ports.add(name=f"node-{number}/mlx5_0/{direction}", rate_bytes_per_s=RATE_BYTES_PER_S, rho=0.25)
            port.used.permille.extend([number % 90] * CLASSES_MAX)
    known = str(cluster_page.view(reply, "", history=False, ports_known="")["ports"]["key"])

    def whole() -> bytes:
        return msgspec.json.encode(cluster_page.view(reply, "", history=False, ports_known=known))

    def part_python() -> tuple[list[int], list[int]]:
        used = [sum(port.used.permille) for node in reply.nodes for port in node.ports]
        return used, sorted(range(len(used)), key=lambda at: -used[at])[:100]

    def part_numpy() -> tuple[list[int], list[int]]:
        rows = [port.used.permille for node in reply.nodes for port in node.ports]
        used = np.array(rows, dtype=np.int64).sum(1)
        return used.tolist(), np.argsort(-used, kind="stable")[:100].tolist()

    return {"whole": whole, "python": part_python, "numpy": part_numpy}


def serve_order() -> Calls:
    """A thousand waiting requests by deadline, as plan_step orders them; on a copy."""
    import random

    waiting = requests(WAITING, 100.0, 0, random.Random(1))
    due = np.array([r.due_s for r in waiting])

    def by_numpy(values: Any) -> list[int]:
        return [waiting[i].request_id for i in np.argsort(values, kind="stable").tolist()]

    return {
        "python": lambda: [r.request_id for r in sorted(waiting, key=lambda r: r.due_s)],
        "numpy": lambda: by_numpy(np.fromiter((r.due_s for r in waiting), float, WAITING)),
        "arrays": lambda: by_numpy(due),
    }


def serve_sums() -> Calls:
    """Work ahead of each of a thousand waiting requests, as relegation adds it up; on a copy."""
    import random
    from itertools import accumulate

    waiting = requests(WAITING, 100.0, 0, random.Random(1))
    tokens = np.array([r.num_prompt_tokens for r in waiting])
    return {
        "python": lambda: list(accumulate(r.num_prompt_tokens for r in waiting)),
        "numpy": lambda: np.cumsum(np.fromiter((r.num_prompt_tokens for r in waiting), np.int64, WAITING)).tolist(),
        "arrays": lambda: np.cumsum(tokens).tolist(),
    }


def marking() -> Calls:
    """Classes of transfers by their sizes: a thousand at once, and one, which is how they come."""
    marks = Marks(
        tuple(range(8)), {Stage.P2D: (1, 2, 3, 4), Stage.BACKGROUND: (7,)}, {Stage.P2D: (1 << 16, 1 << 20, 1 << 24)}
    )
    sizes = [int(x) for x in np.random.default_rng(1).integers(1, 1 << 26, MARKED)]
    classes, edges = np.array(marks.stages[Stage.P2D]), np.array(marks.sizes[Stage.P2D])
    return {
        "python": lambda: [marks.wire_class(Stage.P2D, size) for size in sizes],
        "numpy": lambda: classes[np.searchsorted(edges, np.array(sizes))].tolist(),
        "one_python": lambda: marks.wire_class(Stage.P2D, 1 << 21),
        "one_numpy": lambda: int(classes[np.searchsorted(edges, 1 << 21)]),
    }


def queue_order() -> Calls:
    """Forty flows of a NIC by the five parts of their keys, as the readable specification in tests/ orders them; a test
    has 5 to 40."""
    chance = np.random.default_rng(1)
    keys = [(*(int(x) for x in chance.integers(0, (4, 40, 1 << 60, 4))), flow) for flow in range(QUEUED)]
    kept = np.array(keys, dtype=np.int64)

    def by_numpy(values: Any) -> list[int]:
        order: list[int] = np.lexsort(values.T[::-1]).tolist()
        return order

    return {
        "python": lambda: sorted(range(QUEUED), key=keys.__getitem__),
        "numpy": lambda: by_numpy(np.array(keys, dtype=np.int64)),
        "arrays": lambda: by_numpy(kept),
    }


ROOMS: dict[str, Callable[[], Calls]] = {
    "coordinator_loads_2048": loads,
    "coordinator_page_2048": page,
    "serve_order_1000": serve_order,
    "serve_sums_1000": serve_sums,
    "marks_1000": marking,
    "specification_order_40": queue_order,
}


def measured(calls: Calls) -> dict[str, float]:
    answers = {repr(call()) for name, call in calls.items() if name in ("python", "columns", "numpy", "arrays")}
    if len(answers) > 1:
        sys.exit(f"bench: the ways differ: {[a[:80] for a in answers]}")
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            began = time.thread_time_ns()
            call()
            took[name].append((time.thread_time_ns() - began) / 1e3)
    return {f"{name}_us": round(statistics.median(values), 1) for name, values in took.items()}


def imported(module: str) -> tuple[float, float]:
    """Milliseconds and MiB that the import costs a Python that has it not."""
    program = (
        "import re, time\n"
        "def rss(): return int(re.search(r'VmRSS:[^0-9]*([0-9]+)', open('/proc/self/status').read())[1])\n"
        f"m, t = rss(), time.process_time()\nimport {module}\n"
        "print((time.process_time() - t) * 1e3, (rss() - m) / 1024)"
    )
    took = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True) for _ in range(5)
    ]
    times, sizes = zip(*(map(float, done.stdout.split()) for done in took), strict=True)
    return statistics.median(times), statistics.median(sizes)


def run() -> dict[str, Any]:
    """*_us: processor time of one call, median; import_*: what a process pays once for having numpy."""
    results: dict[str, Any] = {name: measured(make()) for name, make in ROOMS.items()}
    took_ms, size_mib = imported("numpy")
    return {**results, "import_ms": round(took_ms, 1), "import_mib": round(size_mib, 1)}
