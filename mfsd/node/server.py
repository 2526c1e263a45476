"""The attach server: programs connect to the daemon's socket, are checked, and receive their segment.

One packet is one message. A bad packet closes only its own connection. The daemon believes the kernel about who
connects (SO_PEERCRED). What the client says about itself is only for display.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from mfsd._native import (
    HELLO_BYTES,
    NICS_FIRST,
    NICS_MINOR,
    OUTLOOK_MINOR,
    Hello,
    HelloKind,
    hello_decode,
    hello_version_error,
    nic_reply_encode,
    welcome_encode,
)
from mfsd.node.abi import DAEMON, without
from mfsd.node.admission import Admission, Peer, Refusal
from mfsd.node.log import Log
from mfsd.node.nics import NicTable
from mfsd.node.peer import identified, peer_of, printable, process_name
from mfsd.node.session import Session

HELLO_S = 1.0
"""A connection that sends nothing for so long is closed."""
REFUSALS_WAITING_MAX = 32
"""Refused connections kept open until their hello can be answered with the reason."""
ACCEPT_PAUSE_S = 0.2
"""Pause after the host ran out of descriptors or memory."""


class Segments(Protocol):
    """The part of the arbiter that the server needs."""

    def client_add(self) -> tuple[int, int, int]:
        """Returns a new client's id and the descriptors of its segment and doorbell. The caller closes them."""
        ...

    def client_remove(self, client_id: int) -> None: ...
    def outlook_fd(self) -> int | None:
        """Returns a descriptor of the outlook page, which the caller closes. None: there is no page."""


class _Newcomer:
    """A connection that has not said hello yet."""

    def __init__(self, connection: socket.socket, peer: Peer, refusal: Refusal | None, pidfd: int | None) -> None:
        self.connection = connection
        self.peer = peer
        self.refusal = refusal
        self.pidfd = pidfd
        """None: its process cannot be watched, so it is refused."""
        self.timer: asyncio.TimerHandle | None = None


class AttachServer:
    """Owns the listening socket, the newcomers and the sessions."""

    def __init__(
        self,
        listener: socket.socket,
        segments: Segments,
        admission: Admission,
        nics: NicTable,
        log: Log,
        farewell: Callable[[Session], None],
    ) -> None:
        """`farewell` is called with each session that ends, while its counters can still be read."""
        self.sessions: dict[int, Session] = {}
        self.attached_total = 0
        self.refused: Counter[str] = Counter()
        self._listener = listener
        self._segments = segments
        self._admission = admission
        self._nics = nics
        self._log = log
        self._farewell = farewell
        self._newcomers: set[_Newcomer] = set()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        """Closes every connection. Call it once the arbiter has ended and the clients know that."""
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for newcomer in list(self._newcomers):
            self._drop(newcomer)
        for session in self.sessions.values():
            session.close(self._loop)
        self.sessions.clear()

    # ---- newcomers -------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._log.error("accept-failed", error=error, remedy="raise LimitNOFILE of the service")
            self._loop.remove_reader(self._listener.fileno())
            self._loop.call_later(ACCEPT_PAUSE_S, self._resume)
            return
        connection.setblocking(False)
        try:
            peer = peer_of(connection)
        except OSError:
            connection.close()
            return
        pidfd, refusal = None, None
        if peer.pid > 0:
            try:
                peer, pidfd = identified(connection, peer, time.clock_gettime_ns(time.CLOCK_BOOTTIME))
            except OSError as error:
                refusal = Refusal(error.errno or errno.ESRCH, "mfsd cannot watch this process")
        refusal = refusal or self._admission.admit(peer, time.monotonic())
        newcomer = _Newcomer(connection, peer, refusal, pidfd)
        if refusal and sum(1 for n in self._newcomers if n.refusal) >= REFUSALS_WAITING_MAX:
            self._drop(newcomer)
            return
        newcomer.timer = self._loop.call_later(HELLO_S, self._silent, newcomer)
        self._newcomers.add(newcomer)
        self._loop.add_reader(connection.fileno(), self._hello, newcomer)

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _silent(self, newcomer: _Newcomer) -> None:
        self._log.warning("silent-client", pid=newcomer.peer.pid, uid=newcomer.peer.uid, waited_s=HELLO_S)
        self._drop(newcomer)

    def _hello(self, newcomer: _Newcomer) -> None:
        packet = _receive(newcomer.connection)
        if packet is None:
            return
        try:
            hello = hello_decode(packet)
        except ValueError as error:
            if packet:
                self._log.warning("malformed-hello", pid=newcomer.peer.pid, uid=newcomer.peer.uid, error=error)
            self._drop(newcomer)
            return
        if hello.kind != HelloKind.ATTACH:
            self._log.warning("malformed-hello", pid=newcomer.peer.pid, uid=newcomer.peer.uid, kind=hello.kind)
            self._drop(newcomer)
            return
        refusal = newcomer.refusal or self._attach(newcomer, hello)
        if refusal:
            self._refuse(newcomer, refusal)

    def _attach(self, newcomer: _Newcomer, hello: Hello) -> Refusal | None:
        """Makes the newcomer a session, or returns why not."""
        if (problem := hello_version_error(hello)) is not None:
            return Refusal(errno.EPROTO, problem)
        peer, connection, pidfd = newcomer.peer, newcomer.connection, newcomer.pidfd
        assert pidfd is not None, "refused before"
        try:
            client_id, memfd, doorbell = self._segments.client_add()
        except OSError as error:
            return _no_segment(error)
        descriptors = [memfd, doorbell]
        if hello.minor >= OUTLOOK_MINOR and (outlook := self._segments.outlook_fd()) is not None:
            descriptors.append(outlook)
        try:
            socket.send_fds(connection, [welcome_encode(client_id=client_id)], descriptors)
        except OSError:  # the client is gone, or never reads
            self._segments.client_remove(client_id)
            self._drop(newcomer)
            return None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._forget(newcomer)
        newcomer.pidfd = None  # it belongs to the session from here on
        name = printable(hello.process) or process_name(peer.pid)
        abi = f"{hello.major}.{hello.minor}"
        session = Session(connection, pidfd, peer, client_id, name, time.monotonic(), abi)
        self.sessions[client_id] = session
        self.attached_total += 1
        session.watch(self._loop, lambda: self._packet(session), lambda: self._end(session, "exited"))
        self._log.info(
            "attached", client=client_id, pid=peer.pid, uid=peer.uid, container=peer.container, process=name, abi=abi
        )
        if abi != DAEMON:
            self._log.warning("other-abi", client=client_id, speaks=abi, mfsd=DAEMON, without=without(abi))
        return None

    def _refuse(self, newcomer: _Newcomer, refusal: Refusal) -> None:
        name = errno.errorcode.get(refusal.error, str(refusal.error))
        self.refused[name] += 1
        peer = newcomer.peer
        self._log.warning(
            "refused", pid=peer.pid, uid=peer.uid, container=peer.container, error=name, reason=refusal.reason
        )
        with contextlib.suppress(OSError):
            newcomer.connection.send(welcome_encode(error=-refusal.error, reason=refusal.reason))
        self._drop(newcomer)

    def _forget(self, newcomer: _Newcomer) -> None:
        if newcomer.timer is not None:
            newcomer.timer.cancel()
        self._newcomers.discard(newcomer)
        self._loop.remove_reader(newcomer.connection.fileno())

    def _drop(self, newcomer: _Newcomer) -> None:
        self._forget(newcomer)
        newcomer.connection.close()
        if newcomer.pidfd is not None:
            os.close(newcomer.pidfd)
        if newcomer.refusal is None:
            self._admission.release(newcomer.peer)

    # ---- sessions --------------------------------------------------------------------------------

    def _packet(self, session: Session) -> None:
        packet = _receive(session.connection)
        if packet is None:
            return
        if not packet:
            self._end(session, "detached")
            return
        if session.floods(time.monotonic()):
            self._end(session, "flood")
            return
        try:
            hello = hello_decode(packet)
            if hello.kind != HelloKind.NIC:
                raise ValueError("only NIC messages may follow the welcome")
            name = printable(hello.nic_name)
            if not name:
                raise ValueError("a NIC without a name")
        except ValueError as error:
            self._log.warning("malformed-packet", client=session.client_id, pid=session.peer.pid, error=error)
            self._end(session, "malformed")
            return
        try:
            index = self._nics.register(session.client_id, name, hello.nic_guid, hello.nic_rate_bytes_per_s)
            if index >= NICS_FIRST and hello.minor < NICS_MINOR:
                older = (
                    f"{NICS_FIRST} NICs are known to a program of ABI {hello.major}.{hello.minor}: update its library"
                )
                raise OSError(errno.ENOSPC, older)
            session.nics[index] = self._nics.names()[index]
            reply = nic_reply_encode(nic=index)
            self._log.info("nic", client=session.client_id, nic=name, index=index)
        except OSError as error:
            reply = nic_reply_encode(error=-(error.errno or errno.EIO))
            self._log.warning("nic-refused", client=session.client_id, nic=name, error=error)
        try:
            session.connection.send(reply)
        except OSError:  # the client does not read its answers
            self._end(session, "malformed")

    def _end(self, session: Session, why: str) -> None:
        if self.sessions.pop(session.client_id, None) is None:
            return
        session.close(self._loop)
        try:
            self._farewell(session)
            self._segments.client_remove(session.client_id)
        except OSError as error:
            self._log.error("remove-failed", client=session.client_id, error=error)
        self._nics.forget(session.client_id)
        self._admission.release(session.peer)
        self._log.info("ended", client=session.client_id, pid=session.peer.pid, why=why)


def _receive(connection: socket.socket) -> bytes | None:
    """Returns one packet; empty at the end of the connection, None if there is none yet.

    The kernel drops descriptors sent along, since no room is offered for them.
    """
    try:
        return connection.recv(HELLO_BYTES + 1)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        return b""


def _no_segment(error: OSError) -> Refusal:
    if error.errno == errno.EUSERS:
        return Refusal(errno.EUSERS, "mfsd serves as many clients as it can")
    return Refusal(errno.ENOSPC, f"no memory for a segment: {error.strerror}"[:63])
