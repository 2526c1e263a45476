"""Sets the DSCP of a transfer engine's TCP sockets from outside the library that owns them.

Accepted connections inherit the mark of the listening socket, so marking that once marks the passive side. Connections
of the active side are found by their remote address. Linux only; a socket that cannot be marked stays as it was.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

DESCRIPTORS = Path("/proc/self/fd")


def dscp_of(table: Sequence[int | None], wire_class: int) -> int | None:
    """Returns the DSCP of a class in the daemon's table; None if the class has no mark."""
    return table[wire_class] if 0 <= wire_class < len(table) else None


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Yields a socket object for a descriptor owned by other code, and leaves it open and blocking as it was:
    without the flag the program's default time-out would be applied, which makes the socket non-blocking."""
    borrowed = socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK, fileno=descriptor)
    try:
        yield borrowed
    finally:
        borrowed.detach()


def _tcp_sockets() -> Iterator[socket.socket]:
    for entry in list(DESCRIPTORS.iterdir()):
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with _borrowed(int(entry.name)) as found:
                internet = found.family in (socket.AF_INET, socket.AF_INET6)
                if internet and found.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM:
                    yield found
        except OSError:
            continue  # closed in the meantime


def _mark(tcp: socket.socket, dscp: int) -> bool:
    traffic_class = dscp << 2
    marked = False
    with contextlib.suppress(OSError):
        if tcp.family == socket.AF_INET6:
            tcp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, traffic_class)
            marked = True
    with contextlib.suppress(OSError):  # an IPv6 socket, for its mapped IPv4 peers
        tcp.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, traffic_class)
        marked = True
    return marked


def _listening() -> Iterator[tuple[socket.socket, int]]:
    """Yields the listening sockets and their ports."""
    for tcp in _tcp_sockets():
        with contextlib.suppress(OSError):  # closed in the meantime
            if tcp.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                yield tcp, int(tcp.getsockname()[1])


def listening_ports() -> set[int]:
    """Returns the TCP ports that this process listens on."""
    return {port for _, port in _listening()}


def mark_listening(ports: set[int], dscp: int) -> int:
    """Marks the listening sockets of these ports; returns how many were found."""
    return sum(_mark(tcp, dscp) for tcp, port in _listening() if port in ports)


def mark_connected(port: int, hosts: set[str], dscp: int) -> int:
    """Marks the connections to this port of any of these hosts; returns how many were found."""
    count = 0
    for tcp in _tcp_sockets():
        with contextlib.suppress(OSError):
            host, remote_port = tcp.getpeername()[:2]
            if remote_port == port and host.removeprefix("::ffff:") in hosts:
                count += _mark(tcp, dscp)
    return count
