"""An arbiter in this process behind a real unix socket: the only part of the daemon that the native core needs."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import socket
import threading
from pathlib import Path

from mfsd import _native
from mfsd._native import Arbiter, Client, Hello, HelloKind


class Server:
    """Answers hellos for one arbiter. `segments` has the memory of each client by id, for tests that act as clients."""

    def __init__(self, path: Path, arbiter: Arbiter) -> None:
        self.path, self.arbiter = path, arbiter
        self.segments: dict[int, mmap.mmap] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        client_id = None
        try:
            while packet := connection.recv(4096):
                hello = _native.hello_decode(packet)
                if hello.kind == HelloKind.ATTACH:
                    client_id, memfd, doorbell = self.arbiter.client_add()
                    self.segments[client_id] = mmap.mmap(memfd, _native.SEGMENT_BYTES)
                    welcome = _native.welcome_encode(client_id=client_id)
                    descriptors = [memfd, doorbell]
                    if (outlook := self.outlook_fd()) is not None:
                        descriptors.append(outlook)
                    socket.send_fds(connection, [welcome], descriptors)
                    for descriptor in descriptors:
                        os.close(descriptor)
                else:
                    connection.send(self._nic(hello))
        except OSError:
            pass  # the arbiter was closed, or the client went away
        finally:
            if client_id is not None:
                with contextlib.suppress(OSError):
                    self.arbiter.client_remove(client_id)

    def outlook_fd(self) -> int | None:
        return self.arbiter.outlook_fd()

    def _nic(self, hello: Hello) -> bytes:
        try:
            nic = self.arbiter.nic(hello.nic_name, hello.nic_guid, hello.nic_rate_bytes_per_s)
        except OSError as error:
            return _native.nic_reply_encode(error=-(error.errno or errno.EIO))
        return _native.nic_reply_encode(nic=nic)

    def attach(self, **options: object) -> Client:
        return Client.attach(str(self.path), timeout_ms=100_000, **options)  # type: ignore[arg-type]

    def close(self) -> None:
        """Ends the connections of all clients. May be called twice."""
        for sock in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits on it
            sock.close()
