"""Calls to engines. A call is sent only once. It may be sent to another engine only if no connection was made, so that
no byte of it can have reached an engine."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from asyncio.trsock import TransportSocket
from collections.abc import AsyncIterator, Sequence
from typing import Final

import aiohttp
from aiohttp.connector import AddrInfoType

from mfsd.serve.gateway.replicas import LiveReplica
from mfsd.serve.headers import HEADERS, OBJECTIVES

CONNECT_S: Final = 3.0
"""Time limit for a connection, the look-up of its name included."""
PROBE_S: Final = 10
"""Interval of the probes of a connection without bytes, which ends after three probes without an answer."""
UNANSWERED_MS: Final = 60_000
"""A connection also ends if the other host has not confirmed bytes for so long."""
KEEP_ALIVE_S: Final = 2.0
"""Shorter than that of engines (uvicorn's is 5 s). If an engine closed a connection while a call is written to it, that
would be an error after which the call must not be repeated."""
HOP: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization te trailer upgrade transfer-encoding "
    b"content-length".split()
)
NOT_SENT_ON: Final = HOP | {b"host", b"expect", b"accept-encoding", *HEADERS, *OBJECTIVES}
"""Headers that are not passed on. The words of requests go in the body, made safe (`xargs`)."""
NOT_SENT_BACK: Final = HOP | {b"server", b"date"}
EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n")


def in_a_line(error: BaseException) -> str:
    """Returns the error's message in one line; its kind if there is no message."""
    return " ".join(str(error).split()) or type(error).__name__


class NotSent(Exception):
    """No connection was made."""

    def __init__(self, text: str, refused: bool, began_s: float) -> None:
        """refused: nothing listens there. began_s: when the trial began, by the loop's clock."""
        super().__init__(text)
        self.refused, self.began_s = refused, began_s


class NoSocket(Exception):
    """The gateway itself can make no connection, which says nothing about the engine."""


OWN: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})


def own_problem(error: BaseException) -> str:
    """Returns the problem of this process or host that prevents a connection; empty if it is the other end's."""
    if not isinstance(error, aiohttp.ClientConnectorError):
        return ""
    found = error.os_error
    if found.errno in OWN:
        return os.strerror(found.errno)
    if isinstance(error, aiohttp.ClientConnectorDNSError):  # names are looked up by files and sockets, too
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as own:
            return os.strerror(own.errno or 0)
    return ""


def refused(error: BaseException) -> bool:
    """Whether the error means that nothing listens there."""
    return isinstance(error, OSError) and error.errno == errno.ECONNREFUSED


def _value(value: bytes) -> str:
    """Returns the value of a header as text that aiohttp writes as the same bytes, in UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


class Upstream:
    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def post(
        self, replica: LiveReplica, path: str, body: bytes, headers: Sequence[tuple[bytes, bytes]], request_id: str
    ) -> aiohttp.ClientResponse:
        """Sends a POST, as `call` does."""
        return await self.call(replica, "POST", path, body, headers, request_id)

    async def call(
        self,
        replica: LiveReplica,
        method: str,
        path: str,
        body: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        request_id: str,
    ) -> aiohttp.ClientResponse:
        """Sends a call and returns the head of its answer; the body is still to be read. NotSent, NoSocket.
        aiohttp.ClientError: the call may have been sent."""
        sent_on = [(name, value) for name, value in headers if name not in NOT_SENT_ON]
        carried = [(name.decode("latin-1"), _value(value)) for name, value in sent_on]
        if not any(name == "x-request-id" for name, _ in carried):
            carried.append(("x-request-id", request_id))
        began_s = asyncio.get_running_loop().time()
        try:
            answer = await self._session.request(
                method,
                replica.url + path,
                data=body or None,
                headers=carried,
                allow_redirects=False,  # following one would send the call a second time
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            if problem := own_problem(error):
                raise NoSocket(problem) from error
            raise NotSent(in_a_line(error), refused(error), began_s) from error
        replica.seen()
        return answer


async def content_of(answer: aiohttp.ClientResponse, replica: LiveReplica) -> bytes:
    """Returns the whole body of an answer. FAILED."""
    parts: list[bytes] = []
    async for part in answer.content.iter_any():
        replica.seen()
        parts.append(part)
    return b"".join(parts)


async def connect(replica: LiveReplica) -> None:
    """Makes a connection and closes it. NotSent, NoSocket."""
    host, _, port = replica.endpoint.rpartition(":")
    began_s = asyncio.get_running_loop().time()
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host.strip("[]"), int(port)), CONNECT_S)
    except (OSError, asyncio.TimeoutError) as error:
        if isinstance(error, OSError) and error.errno in OWN:
            raise NoSocket(os.strerror(error.errno)) from error
        raise NotSent(in_a_line(error), refused(error), began_s) from error
    writer.close()


def keep_watch(connection: socket.socket | TransportSocket) -> None:
    """Lets the kernel end the connection if the other host disappears without closing it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, PROBE_S),
        (socket.TCP_KEEPINTVL, PROBE_S),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_USER_TIMEOUT, UNANSWERED_MS),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _socket(address: AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    keep_watch(made)
    return made


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, keepalive_timeout=KEEP_ALIVE_S, ttl_dns_cache=10, socket_factory=_socket
        ),
        cookie_jar=aiohttp.DummyCookieJar(),  # cookies pass between a client and its engine; the gateway keeps none
        timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S),
        auto_decompress=False,
        skip_auto_headers=("Accept-Encoding", "User-Agent", "Content-Type"),
    )


async def whole_events(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yields whole events, one or more at a time, so that an error can follow the last one; at the end, the rest.
    FAILED."""
    rest = b""
    async for chunk in answer.content.iter_any():
        rest += chunk
        if end := events_end(rest):
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def events_end(text: bytes) -> int:
    """Returns the end of the last whole event; 0 if there is none."""
    return max((at + len(mark) for mark in EVENT_ENDS if (at := text.rfind(mark)) >= 0), default=0)


def headers_back(answer: aiohttp.ClientResponse, replica: LiveReplica) -> list[tuple[bytes, bytes]]:
    kept = [(name.lower(), value) for name, value in answer.raw_headers]
    kept = [(name, value) for name, value in kept if name not in NOT_SENT_BACK]
    return [*kept, (b"x-mfs-replica", replica.name.encode("latin-1", "replace"))]


FAILED: Final = (aiohttp.ClientError, asyncio.TimeoutError, OSError)
"""Errors of a call whose bytes may have been read."""
