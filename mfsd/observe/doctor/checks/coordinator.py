"""The cluster's coordinator: reachable from this node, and this node's daemon is connected to it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host

TITLE = "Coordinator"
CONNECT_S = 2.0

NONE = Kind(
    "coordinator.none",
    "info",
    "No coordinator is configured: this node orders batches by itself and prunes nothing.",
    "for one order over all nodes: mfsd --coordinator-address HOST:PORT, or --coordinator HOST:PORT here",
)
BAD_ADDRESS = Kind(
    "coordinator.bad-address", "fail", "The coordinator's address cannot be used.", "write HOST:PORT, e.g. coord:7400"
)
UNREACHABLE = Kind(
    "coordinator.unreachable",
    "fail",
    "No connection to the coordinator: after its time to live the last order is dropped, and this node decides alone.",
    "start the coordinator, open its TCP port in the firewall, and check name and route",
)
REACHABLE = Kind("coordinator.reachable", "ok", "The coordinator accepts connections from this node.")


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT or [IPV6]:PORT. ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def run(host: Host) -> Iterator[Finding]:
    if not host.coordinators:
        yield NONE("no coordinator address is given")
        return
    for text in host.coordinators:
        try:
            address = parse_address(text)
        except ValueError as error:
            yield BAD_ADDRESS(str(error), text)
            continue
        try:
            with socket.create_connection(address, CONNECT_S) as connection:
                yield REACHABLE(f"TCP connection to {connection.getpeername()[0]} port {address[1]}", text)
        except OSError as error:
            yield UNREACHABLE(f"TCP connection failed: {error.strerror or error}", text)
