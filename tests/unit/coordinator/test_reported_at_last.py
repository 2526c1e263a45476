"""What a daemon could not be told at once it is told later, also when nothing else happens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

from mfsd.coordinator.cluster import TICK_NS, Cluster
from mfsd.coordinator.election import Alone
from mfsd.coordinator.service import Service
from mfsd.coordinator.settings import Settings
from mfsd.coordinator.waiting import WaitingReport
from mfsd.proto import mfs_pb2 as pb
from tests.fuzz.targets.cluster import TERM, Stream
from tests.support.cluster import Lines, in_loop, until
from tests.unit.coordinator.world import RATE, S, batch


class Lease(Alone):
    """One whose renewals are answered late."""

    renewed = True
    asked = 0

    def valid(self) -> bool:
        self.asked += 1
        return self.renewed


class SlowStream(Stream):
    """To a daemon that reads only while `reads` is set."""

    def __init__(self, received: list[pb.FromNode | pb.ToNode]) -> None:
        super().__init__(received, ends=False)
        self.reads = asyncio.Event()
        self.reads.set()

    async def write(self, message: bytes) -> None:
        await self.reads.wait()
        await super().write(message)

    def owed(self) -> list[tuple[int, int]]:
        """Time owed at port 0, and its rate, as it was told."""
        promises = (m.promises for m in self.sent if m.WhichOneof("kind") == "promises")
        return [
            (owed, rate)
            for p in promises
            for port, owed, rate in zip(p.port, p.owed_ns, p.rate_bytes_per_s, strict=True)
            if port == 0
        ]

    def ordered(self) -> set[int]:
        return {batch_id for message in self.sent for batch_id in message.order.batch_id}


class Informed(NamedTuple):
    service: Service
    cluster: Cluster
    lease: Lease
    stream: SlowStream
    port: int


class Clock:
    now_ns = S

    def __call__(self) -> int:
        return self.now_ns


@contextlib.asynccontextmanager
async def informed(clock: Clock) -> AsyncIterator[Informed]:
    """A leader with one daemon, "a", that knows all there is."""
    lease = Lease("127.0.0.1:1", lambda: TERM)
    settings = Settings(listen="127.0.0.1:0", advertise="127.0.0.1:1", version="test", grace_ns=2 * TICK_NS)
    service = Service(settings, lease, Lines(), clock_ns=clock)
    hello = pb.Hello(protocol=1, protocol_oldest=1, node="a", version="1", outlook=True)
    hello.ports.add(number=0, name="a/out", rate_bytes_per_s=RATE)
    stream = SlowStream([pb.FromNode(hello=hello), pb.FromNode(report=pb.Report(term=TERM, snapshot_end=True))])
    tasks = [asyncio.create_task(work) for work in (service.tick(), service.promise(), lease.run(service.role_changed))]
    await until(lambda: service.cluster is not None, "the lead")
    tasks.append(asyncio.create_task(service.link(None, stream)))  # type: ignore[arg-type]
    await until(lambda: stream.owed() == [(0, RATE)], "it is told what its port owes")
    assert service.cluster is not None
    try:
        yield Informed(service, service.cluster, lease, stream, service.cluster.ports.number("a/out"))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@in_loop
async def test_an_order_waits_for_the_lease() -> None:
    async with informed(Clock()) as at:
        at.lease.renewed = False
        at.cluster.arrive("a", batch(1, 60 * S, port=at.port), S)
        at.service._wake(at.cluster)
        await until(lambda: not at.service.sessions["a"].wake.is_set(), "the writer has seen it")
        at.lease.renewed = True
        at.service._heartbeat()
        await until(lambda: 1 in at.stream.ordered(), "it is told the order")


@in_loop
async def test_what_is_owed_waits_for_the_lease() -> None:
    async with informed(Clock()) as at:
        at.lease.renewed = False
        at.cluster.waits("b", WaitingReport(1, None, 0, 1, False, {at.port: RATE}), S)
        at.service._promises_wanted.set()
        before = at.lease.asked
        await until(lambda: at.lease.asked > before, "it was to be told")
        at.lease.renewed = True
        await until(lambda: at.stream.owed()[-1] == (S, RATE), "it is told what its port owes")


@in_loop
async def test_what_is_owed_waits_for_a_daemon_that_reads_late() -> None:
    async with informed(Clock()) as at:
        at.stream.reads.clear()
        at.service.sessions["a"].send(pb.ToNode(heartbeat=pb.Heartbeat(term=TERM)))
        await until(lambda: not at.service.sessions["a"].control, "it is being written")
        at.service.sessions["a"].send(pb.ToNode(heartbeat=pb.Heartbeat(term=TERM)))
        at.cluster.waits("b", WaitingReport(1, None, 0, 1, False, {at.port: RATE}), S)
        at.service._promises_wanted.set()
        await until(lambda: not at.cluster.waiting.touched, "it was to be told")
        at.stream.reads.set()
        await until(lambda: at.stream.owed()[-1] == (S, RATE), "it is told what its port owes")


@in_loop
async def test_what_a_lost_daemon_had_waiting_is_owed_no_more() -> None:
    clock = Clock()
    async with informed(clock) as at:
        at.cluster.connect("b", {}, clock.now_ns)
        at.cluster.waits("b", WaitingReport(1, None, 0, 1, False, {at.port: RATE}), clock.now_ns)
        at.service._promises_wanted.set()
        await until(lambda: at.stream.owed()[-1] == (S, RATE), "it is told what its port owes")
        at.cluster.disconnect("b", clock.now_ns)
        at.service._ticks_wanted.set()

        def passes() -> bool:
            clock.now_ns += TICK_NS // 100
            return "b" not in at.cluster.nodes

        await until(passes, "the grace ends")
        await until(lambda: at.stream.owed()[-1] == (0, RATE), "nothing is owed there")


@in_loop
async def test_another_rate_is_told_where_nothing_is_owed() -> None:
    clock = Clock()
    async with informed(clock) as at:
        at.cluster.connect("a", {"a/out": RATE // 4}, clock.now_ns)
        at.service._ticks_wanted.set()

        def passes() -> bool:
            clock.now_ns += TICK_NS // 100
            return at.stream.owed()[-1] == (0, RATE // 4)

        await until(passes, "it is told the rate")
