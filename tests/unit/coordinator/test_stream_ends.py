"""A daemon whose stream has ended is gone, however it ended."""

from __future__ import annotations

import asyncio

from mfsd.coordinator.election import Alone
from mfsd.coordinator.service import Service
from mfsd.coordinator.settings import Settings
from mfsd.proto import mfs_pb2 as pb
from tests.fuzz.targets.cluster import TERM, Stream
from tests.support.cluster import Lines, in_loop, until


class EndsInAWrite(Stream):
    """Ends while it is written to; the write takes its time to be cancelled."""

    def __init__(self, received: list[pb.FromNode | pb.ToNode]) -> None:
        super().__init__(received)
        self.writes, self.is_cancelled = asyncio.Event(), asyncio.Event()

    async def read(self) -> object:
        if not self._received:
            await self.writes.wait()
        return await super().read()

    async def write(self, message: bytes) -> None:
        self.writes.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.is_cancelled.set()
            await asyncio.Event().wait()


@in_loop
async def test_a_call_that_is_cancelled_after_its_end_leaves_no_daemon_behind() -> None:
    """As gRPC does when the connection breaks just then."""
    electorate = Alone("127.0.0.1:1", lambda: TERM)
    service = Service(Settings(listen="127.0.0.1:0", advertise="127.0.0.1:1", version="test"), electorate, Lines())
    leading = asyncio.create_task(electorate.run(service.role_changed))
    await until(lambda: service.cluster is not None, "the lead")
    stream = EndsInAWrite([pb.FromNode(hello=pb.Hello(protocol=1, protocol_oldest=1, node="a", version="1"))])
    link = asyncio.create_task(service.link(None, stream))  # type: ignore[arg-type]
    await stream.is_cancelled.wait()
    link.cancel()
    await asyncio.gather(link, return_exceptions=True)
    assert service.cluster is not None
    assert not service.sessions and not service.cluster.nodes["a"].connected
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
