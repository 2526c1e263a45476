"""The attach protocol by hand, for messages that a correct client never sends."""

from __future__ import annotations

import mmap
import os
import socket
from pathlib import Path

from mfsd import _native
from mfsd._native import HelloKind, Welcome

TIMEOUT_S = 100.0


class RawClient:
    """A connection to the attach socket. Once attached, the segment is mapped."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect(str(path))
        self.segment: mmap.mmap | None = None

    def attach(self, hello: bytes | None = None) -> Welcome:
        """Sends a hello and returns the daemon's answer."""
        self.socket.send(hello or _native.hello_encode(HelloKind.ATTACH, process="raw"))
        packet, descriptors, _, _ = socket.recv_fds(self.socket, _native.WELCOME_BYTES, 2)
        welcome = _native.welcome_decode(packet)
        if descriptors:
            memfd, doorbell = descriptors
            self.segment = mmap.mmap(memfd, welcome.segment_bytes)
            os.close(memfd)
            os.close(doorbell)
        return welcome

    def closed(self) -> bool:
        """Waits for the daemon's next packet; returns whether it closed the connection instead."""
        try:
            return self.socket.recv(4096) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()
        if self.segment is not None:
            self.segment.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
