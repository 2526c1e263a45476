"""Links of the synthetic load: messages over TCP, at a rate that all connections of a node share in each direction.

A message is its length, then its bytes. The receiver answers with one byte when it has the whole message. A negative
length asks the receiver to send that many bytes instead.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable

PORT = 7999
CHUNK_S = 0.002
"""How long a chunk takes on the link. Connections that send at the same time take turns after each chunk."""
CHUNK_BYTES_MIN, CHUNK_BYTES_MAX = 2_048, 131_072
BUFFER_BYTES = 65_536
"""Size of a socket's buffers. Small, so that bytes wait here, where the link is shared, and not in the kernel."""
RETRY_S = 0.2
_LENGTH = struct.Struct("!q")
_HERE = b"."


class Way:
    """One direction of a link."""

    def __init__(self, rate_bytes_per_s: int) -> None:
        self._rate_bytes_per_s = rate_bytes_per_s
        self._lock = threading.Lock()
        self._free_s = 0.0
        chunk = int(rate_bytes_per_s * CHUNK_S)
        self.chunk_bytes = min(CHUNK_BYTES_MAX, max(CHUNK_BYTES_MIN, chunk))

    def take(self, size_bytes: int) -> None:
        """Blocks until the link has carried the bytes. Callers are served in order of arrival."""
        with self._lock:
            now_s = time.monotonic()
            # A thread that wakes up late must not slow the link down.
            self._free_s = max(self._free_s, now_s - 4 * CHUNK_S) + size_bytes / self._rate_bytes_per_s
            pause_s = self._free_s - now_s
            if pause_s > 0:
                time.sleep(pause_s)


class Link:
    """A node's full-duplex connection to the network."""

    def __init__(self, address: str, rate_bytes_per_s: int) -> None:
        self.out, self.incoming = Way(rate_bytes_per_s), Way(rate_bytes_per_s)
        self._zeros = bytes(self.out.chunk_bytes)
        listener = socket.create_server((address, PORT), backlog=64)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def connect(self, peer: str) -> Channel:
        """Connects to the peer; retries until it listens."""
        while True:
            connection = socket.socket()
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                connection.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
            try:
                connection.connect((peer, PORT))
            except OSError:
                connection.close()
                time.sleep(RETRY_S)
            else:
                return Channel(self, connection)

    def send(self, connection: socket.socket, size_bytes: int) -> None:
        while size_bytes:
            chunk = min(size_bytes, len(self._zeros))
            self.out.take(chunk)
            connection.sendall(self._zeros[:chunk])
            size_bytes -= chunk

    def receive(self, connection: socket.socket, size_bytes: int) -> None:
        while size_bytes:
            data = connection.recv(min(size_bytes, self.incoming.chunk_bytes))
            if not data:
                raise ConnectionError("the peer is gone")
            self.incoming.take(len(data))
            size_bytes -= len(data)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.closing(connection), contextlib.suppress(OSError):
            while head := connection.recv(_LENGTH.size, socket.MSG_WAITALL):
                (length,) = _LENGTH.unpack(head)
                if length >= 0:
                    self.receive(connection, length)
                    connection.sendall(_HERE)
                else:
                    self.send(connection, -length)


class Channel:
    """A connection, for one thread at a time."""

    def __init__(self, link: Link, connection: socket.socket) -> None:
        self._link, self._connection = link, connection

    def push(self, size_bytes: int) -> None:
        """Sends a message; returns when the peer has all of it. OSError if the peer is gone."""
        self._connection.sendall(_LENGTH.pack(size_bytes))
        self._link.send(self._connection, size_bytes)
        if self._connection.recv(1) != _HERE:
            raise ConnectionError("the peer is gone")

    def pull(self, size_bytes: int) -> None:
        """Lets the peer send this many bytes; returns when they have arrived. OSError if the peer is gone."""
        self._connection.sendall(_LENGTH.pack(-size_bytes))
        self._link.receive(self._connection, size_bytes)


class Queue:
    """One connection that all threads of a node share, like a queue pair. Messages go in the order in which they were
    posted, so a small one waits for the large ones before it."""

    def __init__(self, link: Link, peer: str) -> None:
        self._link, self._peer = link, peer
        self._posted: queue.SimpleQueue[tuple[int, Callable[[], object]]] = queue.SimpleQueue()
        threading.Thread(target=self._send, daemon=True).start()

    def post(self, size_bytes: int, over: Callable[[], object]) -> None:
        """Queues a message. Calls `over` when the peer has all of it, or is gone."""
        self._posted.put((size_bytes, over))

    def _send(self) -> None:
        channel: Channel | None = None
        while True:
            size_bytes, over = self._posted.get()
            try:
                channel = channel or self._link.connect(self._peer)
                channel.push(size_bytes)
            except OSError:
                channel = None
            over()
