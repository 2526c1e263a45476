"""Tests how a path treats classes: whether DSCP arrives, where it is changed, and which classes are kept apart.

The peer runs `Reflector`. DSCP is tested with single datagrams: the peer reports the DSCP that it saw and answers with
the requested one, so that both directions are tested. The router that changes it is found by the packet headers that
routers quote in ICMP "time exceeded" (as traceroute does). Separation is tested with two TCP flows that compete for the
path.
"""

from __future__ import annotations

import os
import select
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

PORT = 7411
MAGIC = b"MFSPROBE"
_REQUEST = struct.Struct("!8s8sBB6x")
"""Magic, nonce, DSCP wanted for the answer, DSCP seen (0xFF in a request). Answers are as long as requests."""
_TOS_CONTROL = socket.CMSG_SPACE(4)
_TCPI_BYTES_ACKED_OFFSET = 120
"""Offset of tcpi_bytes_acked in struct tcp_info (<linux/tcp.h>)."""


class DscpResult(Struct, frozen=True):
    """The result for one DSCP. `forward` and `back` are the values that arrived; None: no packet arrived."""

    dscp: int
    forward: int | None
    back: int | None
    changed_at: str = ""
    """The first router that quoted another value, or why that is not known."""

    @property
    def kept(self) -> bool:
        return self.forward == self.dscp


class PairResult(Struct, frozen=True):
    """How two classes shared the path while each wanted all of it."""

    higher: int
    lower: int
    share_of_higher: float
    lower_alone_bytes_per_s: float
    together_bytes_per_s: float
    expected_share: float

    @property
    def verdict(self) -> Literal["apart", "not apart", "not saturated"]:
        if self.together_bytes_per_s > 1.5 * self.lower_alone_bytes_per_s:
            return "not saturated"
        return "apart" if self.share_of_higher >= self.expected_share - 0.05 else "not apart"


class Reflector:
    """The peer's side: answers DSCP probes and discards load until `stop` is called from any thread."""

    def __init__(self, address: str = "0.0.0.0", port: int = PORT) -> None:
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._udp.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
            self._udp.bind((address, port))
            self._tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._tcp.bind((address, self._udp.getsockname()[1]))
            self._tcp.listen(16)
        except OSError:
            self._udp.close()
            self._tcp.close()
            raise
        self._wake, self._waker = socket.socketpair()

    @property
    def port(self) -> int:
        return int(self._udp.getsockname()[1])

    def run(self) -> None:
        """Serves until stopped."""
        selector = selectors.DefaultSelector()
        selector.register(self._wake, selectors.EVENT_READ)
        selector.register(self._udp, selectors.EVENT_READ)
        selector.register(self._tcp, selectors.EVENT_READ)
        buffer = bytearray(1 << 20)
        with selector:
            while True:
                for key, _ in selector.select():
                    ready = key.fileobj
                    if ready is self._wake:
                        return
                    if ready is self._udp:
                        self._answer()
                    elif ready is self._tcp:
                        connection, _ = self._tcp.accept()
                        connection.setblocking(False)
                        selector.register(connection, selectors.EVENT_READ)
                    elif isinstance(ready, socket.socket) and not _swallow(ready, buffer):
                        selector.unregister(ready)
                        ready.close()

    def _answer(self) -> None:
        request, control, _, sender = self._udp.recvmsg(2048, _TOS_CONTROL)
        if len(request) != _REQUEST.size:
            return
        magic, nonce, wanted, seen = _REQUEST.unpack(request)
        if magic != MAGIC or wanted > 63 or seen != 0xFF:
            return
        answer = _REQUEST.pack(MAGIC, nonce, wanted, _tos(control) >> 2)
        tos = struct.pack("i", wanted << 2)
        self._udp.sendmsg([answer], [(socket.IPPROTO_IP, socket.IP_TOS, tos)], 0, sender)

    def stop(self) -> None:
        self._waker.send(b"x")

    def close(self) -> None:
        for channel in (self._udp, self._tcp, self._wake, self._waker):
            channel.close()


def _swallow(connection: socket.socket, buffer: bytearray) -> bool:
    try:
        return connection.recv_into(buffer) > 0
    except BlockingIOError:
        return True
    except OSError:
        return False


def _tos(control: list[tuple[int, int, bytes]]) -> int:
    for level, kind, data in control:
        if (level, kind) == (socket.IPPROTO_IP, socket.IP_TOS):
            return data[0]
    return 0


def probe_dscp(peer: tuple[str, int], dscp: int, tries: int = 3, timeout_s: float = 1.0, hops: int = 8) -> DscpResult:
    """Sends one DSCP to the peer's reflector and back. If it was changed, finds the router that did it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        channel.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
        channel.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        channel.connect(peer)
        for _ in range(tries):
            nonce = os.urandom(8)
            try:
                channel.send(_REQUEST.pack(MAGIC, nonce, dscp, 0xFF))
                seen, back = _await(channel, nonce, timeout_s)
            except (TimeoutError, ConnectionRefusedError):
                continue
            changed_at = find_change(peer, dscp, hops) if seen != dscp else ""
            return DscpResult(dscp, seen, back, changed_at)
    return DscpResult(dscp, None, None)


def _await(channel: socket.socket, nonce: bytes, timeout_s: float) -> tuple[int, int]:
    """Returns the DSCP that the peer saw and the one that its answer arrived with. TimeoutError."""
    end = time.monotonic() + timeout_s
    while (left := end - time.monotonic()) > 0:
        channel.settimeout(left)
        answer, control, _, _ = channel.recvmsg(2048, _TOS_CONTROL)
        if len(answer) == _REQUEST.size:
            magic, its_nonce, _, seen = _REQUEST.unpack(answer)
            if magic == MAGIC and its_nonce == nonce:
                return seen, _tos(control) >> 2
    raise TimeoutError


def find_change(peer: tuple[str, int], dscp: int, hops: int = 8, timeout_s: float = 1.0) -> str:
    """Returns the first router on the path that quotes another DSCP than `dscp`, or why that is not known."""
    try:
        listener = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    except PermissionError:
        return "unknown (run as root to ask the routers)"
    with listener, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        channel.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
        channel.connect(peer)
        for hop in range(1, hops + 1):
            channel.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, hop)
            channel.send(_REQUEST.pack(MAGIC, os.urandom(8), dscp, 0xFF))
            quoted = _await_quote(listener, channel, timeout_s)
            if quoted is not None and quoted[1] != dscp:
                return f"{quoted[0]} (hop {hop}) already saw {quoted[1]}"
            if _waiting(channel):
                break  # the peer has answered: there is no router after this hop
    return "behind the last router that answers, or at the peer"


def _waiting(*channels: socket.socket, timeout_s: float = 0.0) -> list[socket.socket]:
    return select.select(channels, [], [], timeout_s)[0]


def _await_quote(listener: socket.socket, channel: socket.socket, timeout_s: float) -> tuple[str, int] | None:
    """Returns the router that quotes a datagram of `channel`, and the DSCP that it saw; None if the peer's answer comes
    first or the time is over."""
    source_port = channel.getsockname()[1]
    end = time.monotonic() + timeout_s
    while (left := end - time.monotonic()) > 0:
        if listener not in _waiting(listener, channel, timeout_s=left):
            return None
        packet, (router, _) = listener.recvfrom(2048)
        quoted = quoted_dscp(packet)
        if quoted is not None and quoted[1] == source_port:
            return router, quoted[0]
    return None


def quoted_dscp(packet: bytes) -> tuple[int, int] | None:
    """Returns (DSCP, UDP source port) of the datagram that an ICMP "time exceeded" packet quotes; None for any other
    packet."""
    outer = (packet[0] & 15) * 4 if packet else 0
    if len(packet) < outer + 8 + 20 + 4 or packet[outer] != 11:
        return None
    inner = packet[outer + 8 :]
    size = (inner[0] & 15) * 4
    if inner[9] != socket.IPPROTO_UDP or len(inner) < size + 4:
        return None
    return inner[1] >> 2, int.from_bytes(inner[size : size + 2], "big")


class Load:
    """One TCP flow that sends with one DSCP as fast as it can, and counts the bytes that the peer acknowledged."""

    def __init__(self, peer: tuple[str, int], dscp: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
        self._socket.settimeout(10)
        try:
            self._socket.connect(peer)
        except OSError:
            self._socket.close()
            raise
        self._socket.settimeout(None)
        self._thread = threading.Thread(target=self._send, daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def _send(self) -> None:
        chunk = bytes(1 << 16)
        try:
            while True:
                self._socket.sendall(chunk)
        except OSError:
            return

    @property
    def acked_bytes(self) -> int:
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        return int(struct.unpack_from("Q", info, _TCPI_BYTES_ACKED_OFFSET)[0])

    def __exit__(self, *_: object) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)


def probe_pair(
    peer: tuple[str, int],
    higher: int,
    lower: int,
    expected_share: float,
    phase_s: float = 0.5,
    phase_bytes: int = 4_000_000,
) -> PairResult:
    """Measures the lower class alone, then both. Each phase lasts at least `phase_s` and at least `phase_bytes`."""
    with Load(peer, lower) as low:
        _warm_up(low, phase_s, phase_bytes)
        began, start = time.monotonic(), low.acked_bytes
        _until(lambda: low.acked_bytes - start, began, phase_s, phase_bytes)
        alone = (low.acked_bytes - start) / (time.monotonic() - began)
        with Load(peer, higher) as high:
            _warm_up(high, phase_s, phase_bytes)
            began, first_high, first_low = time.monotonic(), high.acked_bytes, low.acked_bytes
            _until(
                lambda: high.acked_bytes - first_high + low.acked_bytes - first_low,
                began,
                phase_s,
                phase_bytes,
            )
            moved_high, moved_low = high.acked_bytes - first_high, low.acked_bytes - first_low
            together = (moved_high + moved_low) / (time.monotonic() - began)
    return PairResult(higher, lower, moved_high / max(1, moved_high + moved_low), alone, together, expected_share)


def _warm_up(flow: Load, phase_s: float, phase_bytes: int) -> None:
    start = flow.acked_bytes
    _until(lambda: flow.acked_bytes - start, time.monotonic(), phase_s / 4, phase_bytes // 4)


def _until(moved: Callable[[], int], began: float, phase_s: float, phase_bytes: int) -> None:
    """Waits until the phase has lasted `phase_s` and moved `phase_bytes`. Gives up after 20 s, when the path is too
    slow or nothing gets through."""
    while time.monotonic() - began < phase_s or moved() < phase_bytes:
        if time.monotonic() - began > 20:
            return
        time.sleep(0.005)
