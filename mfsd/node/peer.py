"""Identifies the process at the other end of a unix socket, and tells when it ends."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from pathlib import Path

import msgspec

from mfsd.node.admission import Peer
from mfsd.node.container import container_of

SO_PEERPIDFD = 77  # Linux 6.5; not in Python's socket module
SO_PEERGROUPS = 59
GROUPS_MAX = 65536


def peer_of(connection: socket.socket) -> Peer:
    """The process that connected, according to the kernel. Raises OSError when the connection is already gone."""
    credentials = struct.Struct("iII")
    pid, uid, gid = credentials.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size))
    return Peer(pid, uid, frozenset({gid, *_groups(connection)}))


def open_pidfd(connection: socket.socket, pid: int, boot_ns: int) -> int:
    """Returns a descriptor that turns readable when the process ends. Raises OSError(ESRCH) when it has ended already.

    If the kernel cannot give the descriptor with the connection, the pid may have been reused meanwhile. That is so if
    the process is younger than the connection (``boot_ns``: CLOCK_BOOTTIME when it was accepted).
    """
    try:
        return struct.unpack("i", connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4))[0]  # type: ignore[no-any-return]
    except OSError:
        pass
    pidfd = os.pidfd_open(pid)
    if _start_ns(pid) > boot_ns:
        os.close(pidfd)
        raise ProcessLookupError(f"process {pid} ended while it attached")
    return pidfd


def identified(connection: socket.socket, peer: Peer, boot_ns: int) -> tuple[Peer, int]:
    """Returns the peer with its container, and a descriptor as from :func:`open_pidfd`.

    Raises OSError(ESRCH) when the process has ended meanwhile, since what was read by its pid may then be another's.
    """
    pidfd = open_pidfd(connection, peer.pid, boot_ns)
    container = container_of(peer.pid)
    if select.select([pidfd], [], [], 0)[0]:
        os.close(pidfd)
        raise ProcessLookupError(errno.ESRCH, f"process {peer.pid} ended while it attached")
    return msgspec.structs.replace(peer, container=container), pidfd


def process_name(pid: int) -> str:
    """The process name that the kernel knows; empty when the process is gone."""
    try:
        return printable(Path(f"/proc/{pid}/comm").read_text(errors="replace").strip())
    except OSError:
        return ""


def printable(text: str) -> str:
    """The text with everything replaced that could disturb a terminal or a log."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)


def _groups(connection: socket.socket) -> tuple[int, ...]:
    """Supplementary groups; empty on a kernel before 4.13."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, GROUPS_MAX)
    except OSError:
        return ()
    return struct.unpack(f"{len(raw) // 4}I", raw)


def _start_ns(pid: int) -> int:
    """CLOCK_BOOTTIME at which the process started, rounded down to a clock tick."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError as error:
        raise ProcessLookupError(f"process {pid} ended while it attached") from error
    ticks = int(stat.rpartition(")")[2].split()[19])
    return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
