"""Statuses like those of a leader, small and large, and a coordinator that only shows one."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import AsyncGenerator, Iterator
from types import SimpleNamespace
from typing import Any, cast

from mfsd.cli.coordinator_web import web
from mfsd.coordinator.history import INTERVAL_NS, INTERVALS
from mfsd.coordinator.service import Service
from mfsd.node.control import (
    ErrorReply,
    Reply,
    RequestStatus,
    StageBytes,
    WaitSeen,
    WhyReply,
    decode_request,
    encode,
)
from mfsd.proto import mfs_pb2 as pb

S = 1_000_000_000
RATE = 50_000_000_000


class Shown:
    """The part of a coordinator that the page uses."""

    def __init__(self, reply: pb.StatusReply, replies: dict[str, Reply] | None = None) -> None:
        self.reply = reply
        self.replies = replies or {}
        self.settings = SimpleNamespace(tls=None, advertise=reply.address)
        self.questions = self

    def seen(self, batches_max: int, history_max: int = 0, batch_id: int = 0) -> pb.StatusReply:
        shown = pb.StatusReply()
        shown.CopyFrom(self.reply)
        if not history_max:
            shown.ClearField("history")
            shown.ClearField("missed")
        if not any(row.batch_id == batch_id for row in shown.batches):
            shown.ClearField("requests")
        return shown

    async def status(self, request: pb.StatusRequest, context: object) -> pb.StatusReply:
        return self.seen(request.batches_max, request.history_max, request.batch_id)

    async def ask(self, request: pb.AskRequest) -> AsyncGenerator[pb.AskReply, None]:
        yield pb.AskReply(asked=len(self.replies))
        decode_request(request.request)
        for node, reply in self.replies.items():
            yield pb.AskReply(node=node, reply=encode(reply), last=True)


@contextlib.contextmanager
def served(shown: Any) -> Iterator[str]:
    """Serves the page in a loop of its own thread; yields its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def enter() -> tuple[contextlib.AbstractContextManager[int], int]:
        serving = web("127.0.0.1", 0, cast(Service, shown))
        return serving, serving.__enter__()

    serving, port = asyncio.run_coroutine_threadsafe(enter(), loop).result(60)
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        serving.__exit__(None, None, None)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def leader(**more: Any) -> pb.StatusReply:
    reply = pb.StatusReply(
        **{
            "version": "0.1.0", "address": "coord-1:7400", "leads": True, "leader": "coord-1:7400", "term": 12,
            "epoch": 3456, "uptime_ns": 86_400 * S, **more,
        }
    )  # fmt: skip
    reply.attainment.window_ns = 300 * S
    return reply


def small(unit: str = "prefill-b") -> pb.StatusReply:
    """Two nodes with three ports, one of them full, and two batches, one of them with pruned requests."""
    reply = leader(batches_active=2, requests_active=9, drop_budget=3, ports=3)
    reply.batches.add(batch_id=2**64 - 1, unit="prefill-a", requests=4, red_left_ns=S // 4, nodes=["gpu-1", "gpu-2"])
    reply.batches.add(batch_id=7, unit=unit, requests=5, red_left_ns=-S // 50, nodes=["gpu-1"])
    reply.infeasible.add(batch_id=7, request_id=98)
    reply.pruned.add(batch_id=7, request_id=99, for_batch=7, port="10.0.0.1/in")
    reply.requests.add(request_id=98, budget_left_ns=-S // 50, size_bytes=10**9, port="10.0.0.1/in", port_ns=S // 50)
    reply.requests.add(request_id=99, budget_left_ns=S // 10, size_bytes=2**62, port="10.0.0.1/in", port_ns=S)
    reply.requests.add(request_id=100, size_bytes=4096)
    reply.missed.add(request_id=2**63 + 1, age_ns=12 * S, node="gpu-1")
    reply.missed.add(request_id=4242, age_ns=40 * S, node="gpu-2")
    one = reply.nodes.add(node="gpu-1", version="0.1.0", connected=True, batches=2, lag_ns=300_000, silent_ns=1000)
    _port(one, "10.0.0.1/in", 0.12, [0, 0, 0, 210, 0, 0, 760, 0], 20, 0)
    _port(one, "10.0.0.1/out", 0.34, [20, 0, 0, 130, 0, 0, 0, 0], 340, 30)
    two = reply.nodes.add(node="gpu-2", version="0.1.0", connected=True, batches=1, lag_ns=250_000, silent_ns=1000)
    _port(two, "10.0.0.2/in", 0.1, [], 0, 0)
    history(reply, nodes=2, most=2 * RATE)
    return reply


def large(nodes: int = 64, each: int = 32) -> pb.StatusReply:
    """A cluster with nodes * each ports, whose load varies in waves over the nodes."""
    reply = leader(batches_active=9_800, requests_active=41_000, drop_budget=400, ports=nodes * each)
    for at in range(200):
        names = [f"gpu-{(at + n) % nodes:03}" for n in range(6)]
        reply.batches.add(
            batch_id=10**6 + at, unit=f"prefill-{at % 12:02}", requests=4, red_left_ns=(at - 2) * S // 40, nodes=names
        )
    for at in range(140):
        port = f"10.{at % 3}.0.7/in"
        reply.pruned.add(batch_id=10**6 + at, request_id=5 * 10**8 + at, for_batch=10**6 + at // 2, port=port)
    reply.infeasible.add(batch_id=10**6, request_id=77_001)
    for at in range(20):
        reply.missed.add(request_id=4 * 10**8 + at, age_ns=at * 9 * S, node=f"gpu-{at * 7 % nodes:03}")
    for at in range(nodes):
        node = reply.nodes.add(
            node=f"gpu-{at:03}", version="0.1.0", connected=at != 40, batches=150, lag_ns=420_000, silent_ns=1000
        )
        for number in range(each):
            wave = 0.5 + 0.5 * math.sin(at / 7 + number / 5)
            kv = int(1_120 * wave**2)
            way = "out" if number % 2 else "in"
            _port(node, f"10.{at}.0.{number // 2}/{way}", 0.3 * wave, [0, 0, kv // 4, 0, 0, 0, kv // 2, 0], kv // 8, 0)
    history(reply, nodes=nodes, most=nodes * RATE * 4, requests_each=1_800)
    return reply


def history(reply: pb.StatusReply, *, nodes: int, most: int, requests_each: int = 90) -> None:
    """Adds an hour with a burst that was too much. Its last minutes agree with the status."""
    reply.history.interval_ns = INTERVAL_NS
    for age in reversed(range(INTERVALS)):
        burst = math.exp(-(((age - 150) / 25) ** 2))
        level = 0.45 + 0.2 * math.sin(age / 18) + 0.35 * burst
        requests = int(requests_each * level)
        missed = int(requests * 0.6 * burst) + (age % 7 == 0) * requests_each // 90
        row = reply.history.intervals.add(
            age_ns=age * INTERVAL_NS + S, met=requests - missed, missed=missed, pruned=int(24 * burst),
            infeasible=int(7 * burst), batches=int(20 * level), requests=int(80 * level), nodes=nodes,
            busiest_permille=int(1000 * min(1.0, level + 0.15)), unscheduled_bytes_per_s=int(0.15 * most * level),
            passed_bytes_per_s=int(0.01 * most),
        )  # fmt: skip
        row.bytes_per_s.extend(int(most * level * part) for part in (0.02, 0, 0.1, 0.18, 0, 0, 0.35 + 0.2 * burst, 0))
        if age < 30:
            reply.attainment.recent_met += row.met
            reply.attainment.recent_missed += row.missed
        if age < 2:
            row.pruned, row.infeasible = len(reply.pruned), len(reply.infeasible)
            row.busiest_permille = max(
                sum(p.used.permille) + p.used.unscheduled_permille for node in reply.nodes for p in node.ports
            )


def _port(node: pb.Node, name: str, rho: float, permille: list[int], unscheduled: int, passed: int) -> None:
    row = node.ports.add(name=name, rate_bytes_per_s=RATE, rho=rho)
    row.used.permille.extend(permille)
    row.used.unscheduled_permille, row.used.passed_permille = unscheduled, passed


def lives(request_id: int, layers: int = 12) -> dict[str, Reply]:
    """Replies of three nodes about a late request: one fetched and computed it, one got it, one does not know it."""
    stages = []
    for stage, begin, step, took, size in (
        ("reuse", 0.01, 0.012, 0.02, 40_000_000),
        ("collective", 0.05, 0.03, 0.04, 8_000_000),
        ("p2d", 0.1, 0.03, 0.19, 60_000_000),
    ):
        for layer in range(layers):
            first = 12.9 - begin - layer * step
            stages.append(StageBytes(stage, layer, 2, size, size, 0, 0, first, first - took - layer * step / 2))
    status = RequestStatus(
        request_id, 7, "prefill-a", ["engine-0", "store"], "ended", 12.9, 0.65 - 12.9, "missed", False, 0,
        sum(s.submitted_bytes for s in stages), 0, 0, 0, stages,
    )  # fmt: skip
    waits = [
        WaitSeen(12.4, "3:17:1", request_id, "p2d", 60_000_000, 0.213, 4, 240_000_000, "p2d of engine-1, request 4240",
                 "it is due earlier"),
        WaitSeen(12.6, "3:12:1", request_id, "reuse", 40_000_000, 0.031, 1, 8_000_000, "collective of engine-0",
                 "collectives never wait"),
    ]  # fmt: skip
    reasons = [
        "It ended 12 s ago, 785 ms after it began.",
        "It had 650 ms to its deadline and was 135 ms late.",
        "p2d: 720 MB in 12 tasks, first asked for after 100 ms, complete after 785 ms.",
    ]
    why = WhyReply(
        f"request {request_id}", "ended", reasons, request=status,
        cluster=["Its batch 7 is number 2 of 2 in the coordinator's order (term 12, epoch 3456)."], seen=waits,
    )  # fmt: skip
    return {"gpu-1": why, "gpu-2": ErrorReply("not-found", f"{request_id}: no request is known")}
