"""Which interface an address of this host belongs to."""

from __future__ import annotations

import fcntl
import socket
import struct

SIOCGIFADDR = 0x8915


def interface_of(name: str) -> str:
    """The interface that has the address HOST or HOST:PORT names; "lo" for loopback, the first one when none has it."""
    host = name.rpartition(":")[0] if name.rpartition(":")[2].isdigit() and name.count(":") == 1 else name.strip("[]")
    try:
        wanted = socket.gethostbyname(host)
    except OSError:
        wanted = ""
    found = ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, interface in socket.if_nameindex():
            request = struct.pack("256s", interface.encode()[:15])
            try:
                address = socket.inet_ntoa(fcntl.ioctl(asker, SIOCGIFADDR, request)[20:24])
            except OSError:
                continue
            if address == wanted or (interface == "lo" and wanted.startswith("127.")):
                return interface
            found = found or interface
    return found
