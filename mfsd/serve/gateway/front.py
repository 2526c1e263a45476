"""The web server's protocol with bounds on what a client may hold: the head of a request, the time that it takes to
come, and an answer that is not read. Other protocols that a client offers are passed over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mfsd.serve.gateway.answer import problem
from mfsd.serve.gateway.ongoing import DISCONNECT, Disconnect
from mfsd.serve.gateway.upstream import keep_watch

HEAD_BYTES_MAX: Final = 65_536
HEAD_S: Final = 30.0
"""Until the head of a request has come: of the first one since the connection, of others since their first byte."""
STALL_S: Final = 60.0
"""An answer of which a client has read nothing for so long ends with its connection."""
LINGER_S: Final = 30.0
"""For which a client may go on with the body of a request whose answer ends its connection."""
FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})


class Bounded(HttpToolsProtocol):
    _head_bytes = 0
    """Since the head began, or since the last part of a body: of trailers then."""
    _fed_bytes = 0
    """That came together just now."""
    _in_head = True
    _in_body = False
    _late: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _unread = 0
    _lingers = False
    _replays = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.parser = Parser(self)  # type: ignore[assignment]
        if (own := transport.get_extra_info("socket")) is not None:
            keep_watch(own)  # of a client whose host is gone
        self._late = self.loop.call_later(HEAD_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._late, self._stall):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        if self.cycle is not None and self.cycle.disconnected:
            self.cycle.scope[DISCONNECT].happened()  # type: ignore[typeddict-item]

    # ---- the head of a request ---------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._lingers:
            return
        self._fed_bytes = len(data)
        super().data_received(data)
        if not (self._in_head or self._in_body):
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            if self._in_head:
                self._refuse_head()
            else:  # it may be answered already
                self.transport.close()
        elif self._in_head and self._late is None:
            self._late = self.loop.call_later(HEAD_S, self.transport.close)

    def replay(self, parser: Any) -> None:
        """parser: a new one, which is to take the body of the request whose head has been parsed."""
        framing = b"".join(b"%b: %b\r\n" % header for header in self.headers if header[0] in FRAMING)
        self._replays = True
        parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")
        self._replays = False

    def on_message_begin(self) -> None:
        if self._replays:
            return
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()
        self.scope[DISCONNECT] = Disconnect()  # type: ignore[typeddict-unknown-key]

    def on_url(self, url: bytes) -> None:
        if not self._replays:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers say nothing of a request: no front of its own has seen them
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._replays:
            return
        self._in_head, self._in_body, self._head_bytes = False, True, -self._fed_bytes
        if self._late is not None:
            self._late.cancel()
            self._late = None
        super().on_headers_complete()
        self.cycle.transport = Joined(self.transport, self.loop, self._end)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        self._head_bytes = -self._fed_bytes
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():  # its body is yet to come
            return
        self._in_body = False
        super().on_message_complete()
        if not self.pipeline:  # a large body stops reading, by which a client that leaves would not be noticed
            self.flow.resume_reading()

    def _refuse_head(self) -> None:
        text = f"the head of the request has more than {HEAD_BYTES_MAX} bytes, which is the limit"
        body = problem(text, "invalid_request_error", "head_too_large", limit=HEAD_BYTES_MAX)
        head = (
            "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    # ---- the end of a connection -------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Bytes for a closed connection would reset it, and a client that reads only when its body is sent would not
        see its answer."""
        if not self._in_body or self.transport.is_closing():
            self.transport.close()
            return
        self._lingers = True
        self.transport.write_eof()
        self._late = self.loop.call_later(LINGER_S, self.transport.close)

    def on_response_complete(self) -> None:
        if self._lingers:
            self.flow.resume_reading()
        else:
            super().on_response_complete()

    # ---- an answer that is not read ----------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _watch_reader(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._stall = self.loop.call_later(STALL_S, self._stalled)

    def _stalled(self) -> None:
        if self.transport.get_write_buffer_size() < self._unread:  # slow, but it reads
            self._watch_reader()
        else:
            self.transport.abort()


class Parser:
    """httptools' parser, which takes what follows the head of a request with `Upgrade` for another protocol's. Here
    there is none, so that it is HTTP/1.1: the request's body, and the next requests."""

    __slots__ = ("_parser", "_protocol")

    def __init__(self, protocol: Bounded) -> None:
        self._protocol, self._parser = protocol, _parser(protocol)

    def feed_data(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._parser = _parser(self._protocol)
                self._protocol.replay(self._parser)

    def get_http_version(self) -> str:
        return str(self._parser.get_http_version())

    def get_method(self) -> bytes:
        return bytes(self._parser.get_method())

    def should_keep_alive(self) -> bool:
        return bool(self._parser.should_keep_alive())

    def should_upgrade(self) -> bool:
        return bool(self._parser.should_upgrade())


def _parser(protocol: Bounded) -> Any:
    """As uvicorn makes it."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


class Joined:
    """A connection's transport for one answer: the head is written with the first bytes of its body where these come at
    once, in one call of the kernel."""

    __slots__ = ("_end", "_head", "_loop", "_transport", "_written")

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, end: Callable[[], object]
    ) -> None:
        """end: closes the connection."""
        self._transport, self._loop, self._end = transport, loop, end
        self._head, self._written = b"", False

    def write(self, data: bytes) -> None:
        if self._written:
            self._transport.write(self._head + data if self._head else data)
            self._head = b""
        elif data.startswith(b"HTTP/1.1 100 "):  # the client waits for it
            self._transport.write(data)
        else:
            self._head, self._written = data, True
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        self._flush()
        self._end()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def _flush(self) -> None:
        if self._head:
            self._transport.write(self._head)
            self._head = b""
