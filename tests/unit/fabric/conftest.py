"""A DCB device for tests: no virtual network device has one, and the hardware cannot be had here.

It speaks the kernel's wire format (net/dcb/dcbnl.c and <linux/dcbnl.h>), read and written with `struct`
alone, so that it shares nothing with the codec under test. That it speaks it right is shown by iproute2's
own `dcb`, which works with it (test_dcb_wire.py).
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

GET, SET = 78, 79
IEEE_SET, IEEE_GET, GDCBX, SDCBX, IEEE_DEL = 20, 21, 22, 23, 27
IFNAME, IEEE, DCBX = 1, 13, 14
ETS, PFC, APP_TABLE, TRUST = 1, 2, 3, 11


def attribute(kind: int, payload: bytes) -> bytes:
    return struct.pack("HH", len(payload) + 4, kind) + payload + b"\0" * (-len(payload) % 4)


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        size, kind = struct.unpack_from("HH", data)
        yield kind & 0x3FFF, data[4:size]
        data = data[(size + 3) & ~3 :]


@dataclass
class DcbDevice:
    """What one NIC holds. `refuse` makes the driver answer with an errno for an attribute, `has_trust` a
    newer kernel."""

    name: str = "eth0"
    dcbx: int = 0x09
    ets: bytes = bytes([0, 8, 0]) + bytes(56)
    pfc_cap: int = 8
    pfc: int = 0
    apps: dict[tuple[int, int], int] = field(default_factory=dict)
    has_trust: bool = False
    trust: list[int] = field(default_factory=list)
    refuse: dict[int, int] = field(default_factory=dict)
    dcbx_fixed: bool = False
    requests: list[bytes] = field(default_factory=list)

    def exchange(self, request: bytes) -> bytes:
        """One netlink request to the answer the kernel would give."""
        self.requests.append(request)
        size, kind, _, sequence, _ = struct.unpack_from("IHHII", request)
        command = request[17]
        attrs = dict(attributes(request[20:size]))
        try:
            body = self._answer(kind, command, attrs)
        except OSError as error:
            payload = struct.pack("i", -(error.errno or 0)) + request[:16]
            return struct.pack("IHHII", 16 + len(payload), 2, 0, sequence, 1) + payload
        body = struct.pack("BBH", 0, command, 0) + body
        return struct.pack("IHHII", 16 + len(body), kind, 0, sequence, 1) + body

    def _answer(self, kind: int, command: int, attrs: dict[int, bytes]) -> bytes:
        name = attrs[IFNAME].rstrip(b"\0").decode()
        if name != self.name:
            raise OSError(errno.ENODEV, name)
        interface = attribute(IFNAME, name.encode() + b"\0")
        if (kind, command) == (GET, IEEE_GET):
            return interface + attribute(IEEE, self._ieee()) + attribute(DCBX, bytes([self.dcbx]))
        if (kind, command) == (GET, GDCBX):
            return attribute(DCBX, bytes([self.dcbx]))
        if (kind, command) == (SET, SDCBX):
            if not self.dcbx_fixed:
                self.dcbx = attrs[DCBX][0]
            return attribute(DCBX, bytes([self.dcbx_fixed]))
        if kind == SET and command in (IEEE_SET, IEEE_DEL):
            return attribute(IEEE, bytes([self._write(command, dict(attributes(attrs[IEEE]))) & 0xFF]))
        raise OSError(errno.EOPNOTSUPP, "command")

    def _ieee(self) -> bytes:
        table = b"".join(attribute(1, struct.pack("BBH", s, p, d)) for (s, d), p in sorted(self.apps.items()))
        found = attribute(ETS, self.ets)
        found += attribute(PFC, struct.pack("BBBxHxx16Q", self.pfc_cap, self.pfc, 0, 0, *[0] * 16))
        found += attribute(APP_TABLE, table)
        if self.has_trust:
            found += attribute(TRUST, b"".join(attribute(1 if s < 8 else 2, bytes([s])) for s in self.trust))
        return found

    def _write(self, command: int, ieee: dict[int, bytes]) -> int:
        for kind, payload in ieee.items():
            if kind in self.refuse:
                return -self.refuse[kind]
            if kind == ETS:
                self.ets = bytes([payload[0], 8, 0]) + payload[3:59]
            elif kind == PFC:
                self.pfc = payload[1]
            elif kind == TRUST and self.has_trust:
                self.trust = [value[0] for _, value in attributes(payload)]
            elif kind == APP_TABLE:
                for _, entry in attributes(payload):
                    selector, priority, protocol = struct.unpack("BBH", entry)
                    if command == IEEE_SET:
                        self.apps[selector, protocol] = priority
                    elif self.apps.get((selector, protocol)) == priority:
                        del self.apps[selector, protocol]
                    else:
                        return -errno.ENOENT
            else:
                return -errno.EOPNOTSUPP
        return 0


@pytest.fixture
def dcb_device() -> DcbDevice:
    return DcbDevice()
