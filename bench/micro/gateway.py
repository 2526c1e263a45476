"""What the gateway adds to a request, at 500 requests/s on one core: beside the same engine asked directly.

The engine is a stand-in (bench/programs/openai_stand_in.py), the gateway one process on a core of its own where there
are two. Requests come at random times (Poisson), the same ones for both, and count from when they are due, so that
what a late one waits counts, too. Each pair is a leg of requests to the engine and a leg through the gateway, in turns;
what counts is the difference of a pair's quantiles, and the median of all pairs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.micro.daemon import ROOT
from bench.micro.paired import median_interval
from bench.ports import free_port
from bench.programs.openai_stand_in import DONE, MODEL, WHOLE
from mfsd.children import python_module

EVENTS, GAP_MS = 8, 5
PROMPT = "word " * 400
KINDS = ("whole", "stream")
LEGS = ("direct", "gateway")
START_S, LEFT_S = 60.0, 30.0
"""Until a program answers; that the last requests of a leg may take."""


class Timed(NamedTuple):
    """Of one request, from when it was due."""

    first_s: float
    """Its first event, or its head."""
    end_s: float


class Incomplete(Exception):
    """An answer was not the engine's."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=float, default=500.0, metavar="N", help="requests a second (default 500)")
    parser.add_argument("--pairs", type=int, default=15, metavar="N", help="(default 15)")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="of a leg (default 2)")


def run(options: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """By kind of answer: quantiles of both legs in ms, added_ms_p50 and added_ms_p99 with their intervals, and the
    gateway's processor time of a request."""
    results: dict[str, Any] = {}
    with programs() as (ports, cpu_ns):
        for kind, found, cpu_us in pairs(options, LEGS, ports, cpu_ns):
            results[kind] = {**summary(found), "gateway_cpu_us": cpu_us}
            keep(results)
    return results


def pairs(
    options: argparse.Namespace, legs: tuple[str, str], ports: dict[str, int], cpu_ns: Callable[[], int]
) -> Iterator[tuple[str, dict[str, list[list[Timed]]], float]]:
    """After each pair: the kind of answer, what its legs have taken so far, and the gateway's processor time of a
    request in us. The second leg is the one that goes by the gateway."""
    for kind in KINDS:
        found: dict[str, list[list[Timed]]] = {one: [] for one in legs}
        asyncio.run(leg(ports[legs[1]], kind, due_times(options.rate, 1.0, -1)))  # warm
        began_ns, count = cpu_ns(), 0
        for pair in range(options.pairs):
            due = due_times(options.rate, options.seconds, pair)
            for one in legs if pair % 2 == 0 else legs[::-1]:
                found[one].append(asyncio.run(leg(ports[one], kind, due)))
            count += len(due)
            yield kind, found, round((cpu_ns() - began_ns) / count / 1e3, 1)


def due_times(rate: float, seconds: float, seed: int) -> list[float]:
    times, at, random_times = [], 0.0, random.Random(seed)
    while (at := at + random_times.expovariate(rate)) < seconds:
        times.append(at)
    return times or [0.0]


def summary(found: dict[str, list[list[Timed]]], legs: tuple[str, str] = LEGS) -> dict[str, Any]:
    """legs: without what is measured, and with it."""
    row: dict[str, Any] = {"pairs": len(found[legs[-1]])}
    pairs = list(zip(found[legs[0]], found[legs[1]], strict=False))
    for name, of in (("", end_s), ("first_", first_s)):
        for share, label in ((0.5, "p50"), (0.99, "p99")):
            added = [1e3 * (quantile(b, of, share) - quantile(a, of, share)) for a, b in pairs]
            row[f"{name}added_ms_{label}"] = round(statistics.median(added), 3)
            row[f"{name}added_ms_{label}_interval"] = [round(end, 3) for end in median_interval(added)]
            for leg, parts in found.items():
                row[f"{name}{leg}_ms_{label}"] = round(
                    1e3 * statistics.median(quantile(part, of, share) for part in parts), 3
                )
    return row


def first_s(timed: Timed) -> float:
    return timed.first_s


def end_s(timed: Timed) -> float:
    return timed.end_s


def quantile(timed: Sequence[Timed], of: Callable[[Timed], float], share: float) -> float:
    ordered = sorted(map(of, timed))
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# ---- programs --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def programs() -> Iterator[tuple[dict[str, int], Callable[[], int]]]:
    """The ports of both, and the gateway's processor time. The last core is the gateway's alone."""
    cores = sorted(os.sched_getaffinity(0))
    ports = {leg: free_port() for leg in LEGS}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        config = Path(folder) / "gateway.toml"
        config.write_text(
            f'listen = "127.0.0.1:{ports["gateway"]}"\n'
            f'[[replicas]]\nurl = "http://127.0.0.1:{ports["direct"]}"\nrequests_max = 100000\n'
            '[metrics]\nlisten = ""\n[tiers.chat]\nttft_ms = 500\nimportance = 1\n'
        )
        stand_in = str(ROOT / "bench/programs/openai_stand_in.py")
        if len(cores) > 1:
            os.sched_setaffinity(0, cores[:-1])
            stack.callback(os.sched_setaffinity, 0, cores)
        start(stack, [sys.executable, stand_in, str(ports["direct"]), str(EVENTS), str(GAP_MS)], cores[:-1])
        until_answers(ports["direct"])
        daemon = python_module("mfsd.cli.daemon")
        gateway = start(stack, [*daemon, "--gateway", "--config", str(config)], cores[-1:])
        until_answers(ports["gateway"])
        yield ports, lambda: int(Path(f"/proc/{gateway}/schedstat").read_text().split()[0])


def start(stack: contextlib.ExitStack, command: list[str], cores: list[int]) -> int:
    process = subprocess.Popen(command, cwd=ROOT)
    os.sched_setaffinity(process.pid, cores or os.sched_getaffinity(0))
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process.pid


def until_answers(port: int) -> None:
    end_s = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as answer:
                if json.load(answer)["data"]:
                    return
        except OSError:
            if time.monotonic() > end_s:
                raise
        time.sleep(0.05)


# ---- the client ------------------------------------------------------------------------------------------------------


def request(kind: str, number: int) -> bytes:
    body = json.dumps(
        {"model": MODEL, "prompt": PROMPT, "max_tokens": EVENTS, "stream": kind == "stream"}, separators=(",", ":")
    ).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"x-tier: chat\r\nx-session-id: chat-{number % 64}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def leg(port: int, kind: str, due: Sequence[float]) -> list[Timed]:
    """Each request at its time, however many are not answered yet. Incomplete."""
    client, loop = Client(port, kind), asyncio.get_running_loop()
    begin_s, tasks = loop.time() + 0.05, []
    for number, at_s in enumerate(due):
        await asyncio.sleep(max(0.0, begin_s + at_s - loop.time()))
        tasks.append(asyncio.create_task(client.ask(number, begin_s + at_s)))
    try:
        return list(await asyncio.wait_for(asyncio.gather(*tasks), LEFT_S))
    except asyncio.TimeoutError as error:
        raise Incomplete(f"no answer within {LEFT_S:g} s: {client.open()}") from error
    finally:
        client.close()


class Client:
    """Connections are kept; one that is free is used before a new one is made."""

    def __init__(self, port: int, kind: str) -> None:
        self._port, self._kind, self._free = port, kind, list[Connection]()
        self._all: list[Connection] = []

    async def ask(self, number: int, due_s: float) -> Timed:
        self._free = [one for one in self._free if not one.transport.is_closing()]  # the server ends idle ones
        if self._free:
            connection = self._free.pop()
        else:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(lambda: Connection(self._kind), "127.0.0.1", self._port)
            self._all.append(connection)
        first_s, end_s = await connection.ask(request(self._kind, number))
        self._free.append(connection)
        return Timed(first_s - due_s, end_s - due_s)

    def open(self) -> str:
        """What has come of the answers that are not whole."""
        waiting = [one for one in self._all if one not in self._free]
        return ", ".join(f"{one.read!r:.300} (closing: {one.transport.is_closing()})" for one in waiting)

    def close(self) -> None:
        for connection in self._all:
            connection.transport.close()


class Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, kind: str) -> None:
        self._loop, self._stream = asyncio.get_running_loop(), kind == "stream"
        self.read, self._first_s = b"", 0.0
        self._done: asyncio.Future[tuple[float, float]] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(Incomplete(f"the connection ended: {error}"))
            self._done.exception()  # a free connection has no request that reads it

    async def ask(self, content: bytes) -> tuple[float, float]:
        self.read, self._first_s, self._done = b"", 0.0, self._loop.create_future()
        self.transport.write(content)
        return await self._done

    def data_received(self, data: bytes) -> None:
        self.read += data
        if not self._first_s and (not self._stream or b"data: " in self.read):
            self._first_s = self._loop.time()
        chunked = self._stream or b"\r\ntransfer-encoding: chunked\r\n" in self.read
        if not self.read.endswith(b"0\r\n\r\n" if chunked else b"}"):
            return
        good = self.read.startswith(b"HTTP/1.1 200") and (DONE if self._stream else WHOLE) in self.read
        if self._done.done():
            return
        if good:
            self._done.set_result((self._first_s, self._loop.time()))
        else:
            self._done.set_exception(Incomplete(f"not the engine's answer: {self.read[:300]!r}"))
