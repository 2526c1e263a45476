"""What a daemon reads of its connection to a coordinator, before there are messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from h2.config import H2Configuration
from h2.connection import H2Connection

from mfsd.proto.call import WINDOW_BYTES, Call, CallEnded
from mfsd.proto.wire import LINK, MESSAGE_BYTES_MAX

Check = Callable[[bytes], None]
READ_S = 0.0


class Connection(asyncio.Transport):
    """Takes everything and is closed at once."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._call = call
        self.written = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self._call.connection_lost(None)


def _conversation(*sent: bytes, status: str = "0") -> bytes:
    """A coordinator's side of it, written by h2 itself."""
    client, server = H2Connection(), H2Connection(H2Configuration(client_side=False))
    client.initiate_connection()
    client.send_headers(1, [(":method", "POST"), (":scheme", "http"), (":path", LINK), (":authority", "a:1")])
    server.initiate_connection()
    server.receive_data(client.data_to_send())
    server.send_headers(1, [(":status", "200"), ("content-type", "application/grpc")])
    for message in sent:
        server.send_data(1, b"\0" + len(message).to_bytes(4, "big") + message)
    server.ping(b"8 bytes.")
    server.increment_flow_control_window(1000)
    server.send_headers(1, [("grpc-status", status), ("grpc-message", "why%20not")], end_stream=True)
    server.reset_stream(1)
    server.close_connection()
    return server.data_to_send()


def conversations() -> list[bytes]:
    return [_conversation(b"one", b"", b"x" * 300), _conversation(status="14"), _conversation(b"y" * 16_000)]


async def _hear(data: bytes) -> None:
    call = Call(LINK)
    connection = Connection(call)
    call.connection_made(connection)
    call.put(b"hello")
    for piece in (data[:7], data[7 : len(data) // 2], data[len(data) // 2 :]):
        buffer = call.get_buffer(-1)
        for start in range(0, len(piece), len(buffer)):
            part = piece[start : start + len(buffer)]
            buffer[: len(part)] = part
            call.buffer_updated(len(part))
        assert sum(map(len, call._messages)) <= WINDOW_BYTES
        assert len(call._partial) <= MESSAGE_BYTES_MAX
    with contextlib.suppress(CallEnded, TimeoutError):
        while True:
            await call.read(READ_S)
    with contextlib.suppress(CallEnded):
        call.put(b"more")
    await call.close()
    assert len(connection.written) < 10_000 + len(data), "no answer is much longer than the question"


@contextlib.contextmanager
def received(_folder: Path) -> Iterator[Check]:
    loop = asyncio.new_event_loop()
    try:
        yield lambda data: loop.run_until_complete(_hear(data))
    finally:
        loop.close()
