"""One gRPC call with a stream each way, over an HTTP/2 connection of its own, on this asyncio loop.

grpcio would do as well, but its threads poll for work several times a second even if nothing is sent. An idle daemon
would spend more on its link than on everything else together. HTTP/2 itself is done by h2.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections import deque
from collections.abc import Iterator
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

from mfsd.proto.resolve import resolve
from mfsd.proto.wire import MESSAGE_BYTES_MAX

WINDOW_BYTES = 1 << 20
"""What the other end may send before it must wait until messages are read. Of a larger message it may send this much at
a time."""
UNSENT_BYTES_MAX = 1 << 20
"""Limit of unsent answers to the other end's questions (pings, settings); messages wait below that."""
FRAME_HEADER_BYTES = 9
FRAME_BYTES_MAX = 16_384
"""Without the header. The least that HTTP/2 allows, which this end does not raise."""
GOAWAY = 7
"""The type of the frame."""
PREFIX_BYTES = 5
"""Before each message: whether it is compressed, and its length."""
CLOSED = "the connection was closed"
STATUSES = """OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED
RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS
UNAUTHENTICATED"""
"""How a call has ended, by number from 0."""


class CallEnded(Exception):
    """There is no call, or no longer. ``str()`` gives the reason."""


class WrongName(CallEnded):
    """The other end's certificate is for another name."""


class HandshakeFailed(CallEnded):
    """One end does not accept the other's certificate, or does not speak TLS."""


class ClosedAtOnce(CallEnded):
    """The connection was closed before any answer, or what came was not HTTP/2."""


class Call(asyncio.BufferedProtocol):
    """Open it, write and read messages in any order, and close it whatever has happened."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._address = ""
        self._scheme = ""
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._h2.local_settings = Settings(
            client=True, initial_values={SettingCodes.ENABLE_PUSH: 0, SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES}
        )
        self._transport: asyncio.Transport | None = None
        self._stream = 0
        self._lost = asyncio.Event()
        self._lost.set()
        self._closed = False
        self._ended: tuple[type[CallEnded], str] | None = None
        self._answered = False
        self._status = "without a status"
        # receiving
        self._arriving = memoryview(bytearray(FRAME_HEADER_BYTES + FRAME_BYTES_MAX))
        self._frames = bytearray()
        self._partial = bytearray()
        self._messages: deque[bytes] = deque()
        self._unacknowledged_bytes = 0
        self._readable = asyncio.Event()
        # sending
        self._outbox = bytearray()
        self._paused = False
        self._writable = asyncio.Event()

    async def open(self, address: str, tls: ssl.SSLContext | None, server_name: str = "") -> None:
        """Connects to HOST:PORT and makes the request. Raises CallEnded.

        server_name: the name that the server's certificate must carry; empty: the host.
        """
        self._address, self._scheme = address, "https" if tls else "http"
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        try:
            await self._connect(host, int(port), tls, server_name or host)
        except ssl.SSLCertVerificationError as error:
            wrong_name = "mismatch" in error.verify_message.lower()
            raise (WrongName if wrong_name else HandshakeFailed)(error.verify_message) from error
        except ssl.SSLError as error:
            raise HandshakeFailed(_reason(error)) from error
        except ConnectionResetError as error:
            raise ClosedAtOnce(CLOSED) from error
        except OSError as error:
            raise CallEnded(f"cannot connect: {_reason(error)}") from error

    async def _connect(self, host: str, port: int, tls: ssl.SSLContext | None, server_name: str) -> None:
        """Connects to the first of the host's addresses that accepts. Raises OSError."""
        loop = asyncio.get_running_loop()
        problem: OSError | None = None
        for address in await resolve(host):
            try:
                await loop.create_connection(
                    lambda: self, address, port, ssl=tls, server_hostname=server_name if tls else None
                )
                return
            except ssl.SSLError:
                raise
            except OSError as error:
                problem = error
        raise problem or OSError("the host has no address")

    async def read(self, limit_s: float) -> bytes:
        """Returns the next message. Raises TimeoutError if there is none in time, CallEnded after the last one."""
        if not self._messages and self._ended is None:
            self._readable.clear()
            expiry = asyncio.get_running_loop().call_later(limit_s, self._readable.set)
            try:
                await self._readable.wait()
            finally:
                expiry.cancel()
        if self._messages:
            message = self._messages.popleft()
            self._acknowledge()
            self._flush()
            return message
        if self._ended is None:
            raise TimeoutError
        raise self._reason_of_end()

    @property
    def free(self) -> bool:
        """Whether a message would be sent at once."""
        return not self._outbox and self._ended is None

    async def write(self, message: bytes) -> None:
        """Returns once the messages before this one have been sent. Raises CallEnded."""
        while self._outbox and self._ended is None:
            self._writable.clear()
            await self._writable.wait()
        self.put(message)

    def put(self, message: bytes) -> None:
        """Writes without waiting, however much is waiting already. Raises CallEnded."""
        if self._ended is not None:
            raise self._reason_of_end()
        if len(message) > MESSAGE_BYTES_MAX:
            self._end(f"a message of {len(message)} bytes is not sent: at most {MESSAGE_BYTES_MAX}")
            raise self._reason_of_end()  # the reader gets it, too: nothing would be reported any more
        self._outbox += b"\0" + len(message).to_bytes(4, "big") + message
        self._pump()

    async def close(self) -> None:
        """Closes at once: no caller waits for what the other end may still send."""
        self._closed = True
        self._end("closed")
        if self._transport is not None:
            with contextlib.suppress(H2Error):
                self._h2.close_connection()
            self._flush()
            self._transport.abort()
        await self._lost.wait()

    # ---- of the connection -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._lost.clear()
        if self._closed:
            transport.abort()
            return
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(WINDOW_BYTES - self._h2.inbound_flow_control_window)
        self._stream = self._h2.get_next_available_stream_id()
        self._h2.send_headers(
            self._stream,
            [
                (":method", "POST"),
                (":scheme", self._scheme),
                (":path", self._path),
                (":authority", self._address),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("user-agent", "mfsd"),
            ],
        )
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost.set()
        why = CLOSED if error is None else _reason(error)
        if self._answered:
            self._end(why)
        else:
            self._end(why, HandshakeFailed if isinstance(error, ssl.SSLError) else ClosedAtOnce)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the buffer that asyncio receives into; with TLS it does so in parts. Otherwise asyncio takes 256 KiB
        from the kernel for each read."""
        return self._arriving

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended is not None:
            return
        self._frames += self._arriving[:nbytes]
        try:
            for frame in self._whole_frames():
                if frame[3] == GOAWAY:
                    self._leaves(frame[FRAME_HEADER_BYTES:])
                    continue
                for event in self._h2.receive_data(frame):
                    self._happened(event)
        except H2Error as error:
            self._broken(str(error))
        self._acknowledge()
        self._pump()

    # ---- inside ----------------------------------------------------------------------------------

    def _whole_frames(self) -> Iterator[bytes]:
        """Yields one frame at a time, so that those before an unreadable one count."""
        while self._ended is None and len(self._frames) >= 3:
            length = int.from_bytes(self._frames[:3], "big")
            end = FRAME_HEADER_BYTES + length
            if length > FRAME_BYTES_MAX:
                self._broken(f"a frame of {length} bytes")
            if self._ended is not None or len(self._frames) < end:
                break
            frame = bytes(self._frames[:end])
            del self._frames[:end]
            yield frame

    def _leaves(self, frame: bytes) -> None:
        """Handles GOAWAY: the other end accepts no new streams. h2 does not get this frame, as it would receive nothing
        after it, while an end that shuts down in good order still ends this stream with a reason."""
        last, code = int.from_bytes(frame[:4], "big"), int.from_bytes(frame[4:8], "big")
        if code != ErrorCodes.NO_ERROR or last < self._stream:
            self._end(f"it closes the connection ({_name(code)})")

    def _broken(self, why: str) -> None:
        self._end(f"what came is no HTTP/2: {why}", CallEnded if self._answered else ClosedAtOnce)

    def _happened(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            self._unacknowledged_bytes += event.flow_controlled_length
            self._take(event.data)
        elif isinstance(event, ResponseReceived):
            self._answer(dict(event.headers))
        elif isinstance(event, TrailersReceived):
            self._note_status(dict(event.headers))
        elif isinstance(event, StreamEnded):
            self._end(self._status)
        elif isinstance(event, StreamReset):
            self._end(f"it broke the stream off ({_name(event.error_code)})")

    def _answer(self, headers: dict[bytes, bytes]) -> None:
        self._answered = True
        status, kind = headers.get(b":status", b""), headers.get(b"content-type", b"")
        if status != b"200" or not kind.startswith(b"application/grpc"):
            self._end(f"it answers with HTTP status {_text(status)} and {_text(kind)}: is it a coordinator?")
        self._note_status(headers)

    def _note_status(self, headers: dict[bytes, bytes]) -> None:
        status, message = _text(headers.get(b"grpc-status", b"")), _text(headers.get(b"grpc-message", b""))
        if status:
            names = dict(enumerate(STATUSES.split()))
            name = names.get(int(status), status) if status.isdecimal() else status
            self._status = unquote(message) or f"ended the stream ({name})"

    def _take(self, data: bytes) -> None:
        """Takes more bytes of messages."""
        self._partial += data
        while len(self._partial) >= PREFIX_BYTES and self._ended is None:
            length = int.from_bytes(self._partial[1:PREFIX_BYTES], "big")
            if self._partial[0] or length > MESSAGE_BYTES_MAX:
                what = "a compressed message" if self._partial[0] else f"a message of {length} bytes"
                self._end(f"{what} came: at most {MESSAGE_BYTES_MAX} bytes are read, and not compressed")
            elif len(self._partial) >= PREFIX_BYTES + length:
                self._messages.append(bytes(self._partial[PREFIX_BYTES : PREFIX_BYTES + length]))
                del self._partial[: PREFIX_BYTES + length]
                self._readable.set()
            else:
                break

    def _acknowledge(self) -> None:
        """Lets the other end send as much again, unless unread messages are waiting."""
        if self._unacknowledged_bytes and not self._messages and self._ended is None:
            self._h2.acknowledge_received_data(self._unacknowledged_bytes, self._stream)
            self._unacknowledged_bytes = 0

    def _pump(self) -> None:
        """Sends what there is room for."""
        while self._outbox and not self._paused and self._ended is None:
            room = min(self._h2.local_flow_control_window(self._stream), self._h2.max_outbound_frame_size)
            if room <= 0:
                break
            self._h2.send_data(self._stream, bytes(self._outbox[:room]))
            del self._outbox[:room]
            self._flush()
        self._flush()
        if not self._outbox:
            self._writable.set()

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)
            if self._transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
                self._end("it asks for answers that it does not read")

    def _end(self, why: str, kind: type[CallEnded] = CallEnded) -> None:
        """Ends the call. The first reason counts."""
        if self._ended is None:
            self._ended = kind, why
            self._readable.set()
            self._writable.set()

    def _reason_of_end(self) -> CallEnded:
        assert self._ended is not None
        kind, why = self._ended
        return kind(why)


def _reason(error: Exception) -> str:
    """Returns the error's text without Python's numbers and addresses."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _name(code: int | None) -> str:
    return ErrorCodes(code).name if code in set(ErrorCodes) else f"code {code}"


def _text(raw: bytes) -> str:
    return raw.decode("ascii", "replace")
