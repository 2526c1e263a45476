"""What a permit costs the arbiter's thread, against NICs, clients, queue pairs and held tasks.

The arbiter's own code in one process (`native/permits.c`), its turns driven and its clients played there: no sockets,
no second thread whose core could be another's. Figures are processor time of the turns, and so permits a second that
one thread could give if it had a core to itself. Cases take turns, so that ratios compare what ran at the same time;
of each the fastest round counts. `heartbeat_cpu_ns` is what a heartbeat costs where nothing goes on.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bench.micro.daemon import BUILD, NATIVE, ROOT, compiler

NICS, IDLE_NICS, CLIENTS = (1, 2, 4, 8), (0, 7, 63), (10, 100, 1000)
QUEUE_PAIRS, HELD = (100, 1_000, 10_000), (1_000, 10_000, 100_000)
SOME_CLIENTS, SOME_QUEUE_PAIRS = 100, 100
ROUND_TASKS = 1000
BEATS = ((1, 1), (1, 8), (64, 1), (64, 8))
"""NICs and programs."""
BEAT_ROUNDS = 20_000
DESCRIPTORS = 8192


class Case(NamedTuple):
    nics: int = 1
    idle_nics: int = 0
    active: int = SOME_CLIENTS
    attached: int = SOME_CLIENTS
    queue_pairs: int = SOME_QUEUE_PAIRS
    held: int = 0
    tasks: int = ROUND_TASKS
    """Of a round; a turn takes as many of them as it can."""


def cases(most_clients: int) -> dict[str, Case]:
    few = CLIENTS[0]
    clients = [n for n in CLIENTS if n <= most_clients]
    return {
        **{f"nics/{n}": Case(nics=n) for n in NICS},
        **{f"idle_nics/{n}": Case(idle_nics=n, active=1, attached=1, tasks=1) for n in IDLE_NICS},
        **{f"clients_attached/{n}": Case(active=few, attached=n) for n in clients},
        **{f"clients_active/{n}": Case(active=n, attached=n) for n in clients},
        **{f"queue_pairs/{n}": Case(queue_pairs=n) for n in QUEUE_PAIRS},
        **{f"held/{n}": Case(held=n) for n in HELD},
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=300, metavar="N", help="of 1,000 permits each (default 300)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="of every case (default 5)")
    parser.add_argument(
        "--clients-max",
        type=int,
        default=CLIENTS[-1],
        metavar="N",
        help="leave out cases with more; one takes up to 3 MiB (default 1000)",
    )


@cache
def build() -> tuple[str, str]:
    """The programs that measure permits and heartbeats. What both have of the core, nearly all, is compiled once."""
    BUILD.mkdir(parents=True, exist_ok=True)
    apart = ("soft_roce", "nixl", "nixl_stand_in")  # libraries of their own
    sources = [path for path in sorted((ROOT / "csrc").glob("*/*.c")) if path.parent.name not in apart]
    sources.remove(ROOT / "csrc/arbiter/arbiter.c")  # the programs include it
    flags = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/csrc/include")

    def compiled(*words: str | Path) -> str:
        command = [compiler("cc", "gcc"), *flags, *map(str, words)]
        subprocess.run(command, check=True)
        return command[-1]

    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        core = [compiled("-c", path, "-o", f"{folder}/{path.parent.name}-{path.stem}.o") for path in sources]

        def linked(name: str) -> str:
            program = compiled(NATIVE / f"{name}.c", *core, "-lpthread", "-lm", "-o", f"{folder}/{name}")
            return str(Path(program).rename(BUILD / name))

        return linked("permits"), linked("heartbeat")


def measured(program: str, case: Case, rounds: int) -> dict[str, float]:
    words = [str(number) for number in (*case, rounds * ROUND_TASKS // case.tasks)]
    done = subprocess.run([program, *words], check=True, capture_output=True, text=True, preexec_fn=_descriptors)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def run(options: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """permit_cpu_ns and permits_per_s of each case; per group `cost_ratio`, of the last case and the first; and
    heartbeat_cpu_ns."""
    program, heartbeat = build()
    chosen = cases(options.clients_max)
    costs: dict[str, list[float]] = {name: [] for name in chosen}
    beats: dict[str, float] = {}
    results: dict[str, Any] = {}
    for _ in range(options.repeats):
        for name, case in chosen.items():
            costs[name].append(measured(program, case, options.rounds)["permit_cpu_ns"])
        for nics, programs in BEATS:
            name, words = f"nics_{nics}_programs_{programs}", [heartbeat, *map(str, (nics, programs, BEAT_ROUNDS))]
            cpu_ns = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)["cpu_ns"]
            beats[name] = min(beats.get(name, cpu_ns), cpu_ns)
        results = {**summary(costs), "heartbeat_cpu_ns": dict(beats)}
        keep(results)
    return results


def summary(costs: dict[str, list[float]]) -> dict[str, Any]:
    groups: dict[str, Any] = {}
    for name, values in costs.items():
        group, _, size = name.partition("/")
        groups.setdefault(group, {})[size] = {
            "permit_cpu_ns": min(values),
            "permit_cpu_ns_most": max(values),
            "permits_per_s": round(1e9 / min(values)),
        }
    for group in groups.values():
        first, *_, last = group.values()
        group["cost_ratio"] = round(last["permit_cpu_ns"] / first["permit_cpu_ns"], 3)
    return groups


def _descriptors() -> None:
    """A client has two or three, and there are a thousand."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
