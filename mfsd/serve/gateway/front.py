"""The web server's protocol with limits for clients: on the head of a request, on the time for it to arrive, and on an
answer that is not read. Offers of other protocols by a client are ignored."""

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
"""Time limit for the head of a request: for the first request from the connection on, else from its first byte on."""
STALL_S: Final = 60.0
"""If a client has read nothing of an answer for so long, the connection is ended."""
LINGER_S: Final = 30.0
"""How long a client may continue the body of a request whose answer ends the connection."""
FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})


class Bounded(HttpToolsProtocol):
    _head_bytes = 0
    """Bytes since the head began or, for trailers, since the last part of a body."""
    _fed_bytes = 0
    """Bytes of the data being parsed now."""
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
            keep_watch(own)  # notices a client whose host is gone
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
            else:  # the request may have an answer already
                self.transport.close()
        elif self._in_head and self._late is None:
            self._late = self.loop.call_later(HEAD_S, self.transport.close)

    def replay(self, parser: Any) -> None:
        """Feeds to a new parser a head that lets it parse the body of the current request."""
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
        if self._in_head:  # trailers are ignored: no proxy in front has checked them
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
        if self.parser.should_upgrade():  # the body is still to come
            return
        self._in_body = False
        super().on_message_complete()
        if not self.pipeline:  # a large body has paused reading; then a client that leaves would not be noticed
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
        """Closes the connection, with a delay if the client still sends its body. Bytes for a closed connection would
        reset it, and a client that reads only after it has sent its body would not see the answer."""
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
        if self.transport.get_write_buffer_size() < self._unread:  # the client is slow, but reads
            self._watch_reader()
        else:
            self.transport.abort()


class Parser:
    """httptools' parser, except that requests with `Upgrade` stay HTTP/1.1. httptools takes the bytes after their head
    for another protocol; here they are the request's body and the next requests."""

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
    """Returns a parser made in the same way as uvicorn's."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


class Joined:
    """A connection's transport for one answer. If the first bytes of the body come at once, the head is written with
    them in one system call."""

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
        elif data.startswith(b"HTTP/1.1 100 "):  # the client waits for this
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
