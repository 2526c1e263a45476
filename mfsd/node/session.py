"""One attached client process and the descriptors that belong to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

from mfsd._native import NICS_MAX
from mfsd.node.admission import Peer

PACKETS_PER_S = 2 * NICS_MAX
"""More than a client ever needs: it names a NIC once for each device that it opens."""


class Session:
    """An attached client: from the welcome until the process ends, closes its socket, or misbehaves.

    The pidfd tells when the process itself ends, even if a child has inherited the socket and keeps it open.
    """

    def __init__(
        self,
        connection: socket.socket,
        pidfd: int,
        peer: Peer,
        client_id: int,
        process: str,
        attached_s: float,
        abi: str,
    ) -> None:
        """`abi`: MAJOR.MINOR of the shared memory layout that the client speaks."""
        self.connection = connection
        self.pidfd = pidfd
        self.peer = peer
        self.client_id = client_id
        self.process = process
        self.attached_s = attached_s
        self.abi = abi
        self.nics: dict[int, str] = {}
        self._packets = 0.0
        self._packets_at_s = attached_s

    @property
    def pid(self) -> int:
        return self.peer.pid

    def watch(self, loop: asyncio.AbstractEventLoop, packet: Callable[[], None], ended: Callable[[], None]) -> None:
        loop.add_reader(self.connection.fileno(), packet)
        loop.add_reader(self.pidfd, ended)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self.connection.fileno())
        loop.remove_reader(self.pidfd)
        with contextlib.suppress(OSError):  # a child that holds the socket must also see the end
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()
        os.close(self.pidfd)

    def floods(self, now_s: float) -> bool:
        """Counts a packet. True if there are too many."""
        self._packets = max(0.0, self._packets - (now_s - self._packets_at_s) * PACKETS_PER_S) + 1
        self._packets_at_s = now_s
        return self._packets > PACKETS_PER_S
