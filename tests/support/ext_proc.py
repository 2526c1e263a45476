"""The proxy's side of the endpoint picker without a proxy: the messages of one stream in both directions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Generator, Sequence

import grpc
import grpc.aio

from mfsd.proto import ext_proc_pb2 as pb
from mfsd.serve.gateway.core import Gateway
from mfsd.serve.gateway.replicas import LiveReplica
from mfsd.serve.gateway.settings import GatewaySettings
from mfsd.serve.gateway.upstream import session


class Aborted(Exception):
    """The server has aborted the stream."""


class Turn:
    """Lets the loop run other tasks once, as a read from a socket does."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class Stream:
    """Stands for the gRPC context that the picker gets for one request."""

    def __init__(self, messages: Sequence[bytes], ends: bool = True) -> None:
        self._messages, self._ends = list(messages), ends
        self.sent: list[pb.ProcessingResponse] = []
        self.reason = ""

    async def read(self) -> object:
        await Turn()
        if self._messages:
            return self._messages.pop(0)
        if not self._ends:
            await asyncio.Event().wait()
        return grpc.aio.EOF

    async def write(self, message: pb.ProcessingResponse) -> None:
        self.sent.append(pb.ProcessingResponse.FromString(message.SerializeToString()))

    async def abort(self, code: grpc.StatusCode, reason: str) -> None:
        assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAVAILABLE)
        self.reason = reason
        raise Aborted


class Log:
    def info(self, event: str, **values: object) -> None:
        assert event.isprintable()

    warning = info


@contextlib.asynccontextmanager
async def gateway(settings: GatewaySettings) -> AsyncIterator[Gateway]:
    """Makes a gateway for which all of its replicas answer, without asking them."""

    async def asks_none(replica: LiveReplica) -> None:
        assert replica in made.replicas.all

    async with session() as calls:
        made = Gateway(settings, calls, Log())
        made.poller.replica = asks_none  # type: ignore[method-assign]
        for replica in made.replicas.all:
            replica.up()
        yield made


def head(method: str = "POST", path: str = "/v1/completions", last: bool = False, **headers: str) -> pb.HttpHeaders:
    named = {":method": method, ":path": path, **{name.replace("_", "-"): value for name, value in headers.items()}}
    values = [pb.HeaderValue(key=name, raw_value=value.encode()) for name, value in named.items()]
    return pb.HttpHeaders(headers=pb.HeaderMap(headers=values), end_of_stream=last)


def answer_head(status: str = "200", last: bool = False, content_type: str = "application/json") -> pb.HttpHeaders:
    values = [
        pb.HeaderValue(key=name, raw_value=value.encode())
        for name, value in ((":status", status), ("content-type", content_type))
    ]
    return pb.HttpHeaders(headers=pb.HeaderMap(headers=values), end_of_stream=last)
