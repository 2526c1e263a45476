"""Captures TCP packets on loopback, with the class that they carry."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

ETH_P_IP = 0x0800
PACKET_OUTGOING = 4
TCP = 6
SO_RCVBUFFORCE = 33


class Capture:
    """The captured packets: payload bytes by (TOS, source port, destination port)."""

    def __init__(self, packets: socket.socket):
        self._packets = packets
        self.carried: Counter[tuple[int, int, int]] = Counter()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                packet, origin = self._packets.recvfrom(256, socket.MSG_TRUNC)
            except OSError:
                return
            header_bytes = (packet[0] & 15) * 4
            if origin[2] == PACKET_OUTGOING or len(packet) < header_bytes + 20 or packet[9] != TCP:
                continue
            source, destination = struct.unpack_from("!HH", packet, header_bytes)
            (length,) = struct.unpack_from("!H", packet, 2)
            payload = length - header_bytes - (packet[header_bytes + 12] >> 4) * 4
            self.carried[packet[1], source, destination] += payload

    def payload_bytes(self, tos: int) -> int:
        return sum(size for (seen_tos, _, _), size in self.carried.items() if seen_tos == tos)

    def both_ways(self, tos: int, back: int) -> bool:
        """Whether some connection carried ``tos`` one way and ``back`` the other."""
        seen = set(self.carried)
        return any((back, b, a) in seen for seen_tos, a, b in seen if seen_tos == tos)


@contextmanager
def capture() -> Iterator[Capture]:
    try:
        packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IP))
    except PermissionError:
        pytest.skip("capturing packets needs CAP_NET_RAW")
    packets.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
    packets.bind(("lo", ETH_P_IP))
    try:
        yield Capture(packets)
    finally:
        packets.close()
