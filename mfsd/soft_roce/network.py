"""Reads the IPv4 addresses of this network namespace's interfaces by ioctl, without a tool or package."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct

SIOCGIFFLAGS = 0x8913
SIOCGIFADDR = 0x8915
IFF_UP = 0x1
IFF_LOOPBACK = 0x8


def _request(sock: socket.socket, code: int, interface: str) -> bytes | None:
    try:
        return fcntl.ioctl(sock.fileno(), code, struct.pack("256s", interface.encode()[:15]))
    except OSError:
        return None


def addresses() -> dict[str, ipaddress.IPv4Address]:
    """Returns interface name -> first IPv4 address for all interfaces that are up; loopback comes last."""
    found: dict[str, ipaddress.IPv4Address] = {}
    loopback: dict[str, ipaddress.IPv4Address] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            flags = _request(sock, SIOCGIFFLAGS, name)
            address = _request(sock, SIOCGIFADDR, name)
            if flags is None or address is None:
                continue
            bits = struct.unpack_from("<H", flags, 16)[0]
            if bits & IFF_UP:
                target = loopback if bits & IFF_LOOPBACK else found
                target[name] = ipaddress.IPv4Address(address[20:24])
    return {**found, **loopback}


def interface_of(address: ipaddress.IPv4Address) -> str | None:
    """Returns the interface that has the address, or None. Loopback has all addresses of 127.0.0.0/8."""
    known = addresses()
    for name, own in known.items():
        if own == address:
            return name
    if address.is_loopback:
        return next((name for name, own in known.items() if own.is_loopback), None)
    try:
        # it may be a further address of an interface: the kernel binds only to addresses of this host
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((str(address), 0))
    except OSError:
        return None
    return next((name for name, own in known.items() if not own.is_loopback), "lo")
