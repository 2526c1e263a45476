"""Finds the network card that an engine's bytes leave through."""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
from pathlib import Path

from mooncake_adapter.session import Session

SIOCGIFADDR = 0x8915


DEVICES = Path("/sys/class/infiniband")


def guid_of(device: str) -> int:
    """Returns the GUID of an RDMA device as verbs report it (its bytes in memory order); 0 if it has none."""
    try:
        text = (DEVICES / device / "node_guid").read_text()
        return int.from_bytes(bytes.fromhex(text.strip().replace(":", "")), sys.byteorder)
    except (OSError, ValueError):
        return 0


def is_infiniband(device: str) -> bool:
    """Whether a port of the RDMA device is InfiniBand. A device that cannot be read counts as Ethernet."""
    try:
        files = (DEVICES / device).glob("ports/*/link_layer")
        return bool(device) and any(file.read_text().strip() == "InfiniBand" for file in files)
    except (OSError, ValueError):
        return False


def device_of(choice: str) -> str:
    """Returns the first RDMA device of a comma-separated list, or of this host if the list is empty; "" if there is
    none."""
    first = choice.partition(",")[0].strip()
    if first:
        return first
    try:
        return min((entry.name for entry in DEVICES.iterdir()), default="")
    except OSError:
        return ""


def nic_of(session: Session, devices: str, host: str, tcp: bool) -> int:
    """Returns the session's number of the network card that an engine's bytes leave through."""
    device = "" if tcp else device_of(devices)
    return session.nic(device, guid=guid_of(device)) if device else session.nic(interface_of(host))


def interface_of(name: str) -> str:
    """Returns the interface that has the address in HOST or HOST:PORT; "lo" for loopback, the first one if none has
    it."""
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
