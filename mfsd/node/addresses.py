"""The cluster's names for this node's ports: the addresses by which peers reach them."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from pathlib import Path

from mfsd.node.config import NicConfig
from mfsd.node.nics import SYSFS

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def address_of_gid(gid: bytes) -> str:
    """The address as text, IPv4 if the GID holds one; "" for no address (all zero)."""
    address = ipaddress.IPv6Address(gid)
    if int(address) == 0:
        return ""
    return str(address.ipv4_mapped or address)


class PortNames:
    """Cluster-wide names of ports and directions: ``ADDRESS/in`` and ``ADDRESS/out``.

    A NIC's address comes from the configuration, else from its GID table. A NIC without one is named by its node and
    device, so that its load is still its own.
    """

    def __init__(
        self,
        node: str,
        config: Mapping[str, NicConfig],
        gid_address: Callable[[str], str] | None = None,
    ) -> None:
        """`gid_address`: returns a device's address from its GID table; "" if it has none."""
        self._node = node
        self._config = config
        self._gid_address = gid_address or read_gid_address
        self._known: dict[str, str] = {}

    def own(self, nic: str) -> str:
        """Address of this node's device."""
        if nic not in self._known:
            configured = self._config[nic].address if nic in self._config else None
            found = str(configured) if configured else self._gid_address(nic)
            if not found:
                return f"{self._node}:{nic}"  # it may get an address later
            self._known[nic] = found
        return self._known[nic]

    def flow(self, nic: str, peer: bytes, incoming: bool) -> tuple[str, ...]:
        """The ports that bytes between the device and the peer pass; the peer's only if it is known."""
        here, there = ("in", "out") if incoming else ("out", "in")
        remote = address_of_gid(peer)
        return (f"{self.own(nic)}/{here}", *((f"{remote}/{there}",) if remote else ()))


def read_gid_address(device: str, sysfs: Path = SYSFS) -> str:
    """The address in the device's GID table that peers use: IPv4, else a routable IPv6 one, else link-local.

    Of several the first port's counts. "" if there is none or it cannot be read.
    """
    found: list[tuple[int, str]] = []
    for port in sorted((sysfs / device / "ports").glob("*")):
        for path in sorted((port / "gids").glob("*"), key=lambda p: int(p.name) if p.name.isdigit() else 0):
            try:
                address = ipaddress.IPv6Address(path.read_text().strip())
            except (OSError, ValueError):
                continue
            if int(address) & (2**64 - 1) == 0:
                continue
            kind = 0 if address.ipv4_mapped else 2 if address.is_link_local else 1
            found.append((kind, str(address.ipv4_mapped or address)))
    return min(found, key=lambda f: f[0], default=(0, ""))[1]
