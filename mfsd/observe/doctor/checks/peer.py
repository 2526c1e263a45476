"""The path to a peer (--peer): frames of the RoCE size arrive whole, and the policy's DSCPs arrive unchanged."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterator

from mfsd.fabric.probe import PORT, probe_dscp
from mfsd.observe.doctor.checks.mtu import ROCE_OVERHEAD_BYTES, ROCE_WANTED, roce_mtu
from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host, read_line

TITLE = "Path to the peer"
IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 10, 3
ICMP_ECHO = 8
IP_ICMP_BYTES = 28
TRIES, WAIT_S = 3, 0.5

UNKNOWN_NAME = Kind("peer.unknown-name", "fail", "The peer's name has no IPv4 address.", "give an address")
SILENT = Kind(
    "peer.silent",
    "unknown",
    "The peer answers no echo request, so the path's MTU cannot be measured.",
    "let ICMP echo pass, or check route and address",
)
NO_PERMISSION = Kind(
    "peer.no-permission",
    "unknown",
    "This user may not send echo requests, so the path's MTU cannot be measured.",
    "run as root, or widen net.ipv4.ping_group_range",
)
TOO_SMALL = Kind(
    "peer.path-mtu",
    "fail",
    "Small packets arrive, but packets of this host's RoCE size do not: RDMA connects and then hangs.",
    "set the same MTU on every switch port and host of the path",
)
BLEACHED = Kind(
    "peer.bleached",
    "fail",
    "A DSCP of the policy arrives changed: behind that point the network knows one class.",
    "mfsctl fabric probe PEER shows where; make that box trust DSCP",
)
NO_PROBE = Kind(
    "peer.no-probe",
    "info",
    "Nothing answers DSCP probes on the peer, so it is not known whether classes survive the path.",
    "run on the peer: mfsctl fabric serve",
)
MTU_HOLDS = Kind("peer.mtu-holds", "ok", "Packets of the RoCE size arrive whole at the peer and come back.")
KEPT = Kind("peer.dscp-kept", "ok", "Every DSCP of the policy arrives at the peer as it was sent.")


def run(host: Host) -> Iterator[Finding]:
    if host.peer is None:
        return
    try:
        address = socket.gethostbyname(host.peer)
    except OSError as error:
        yield UNKNOWN_NAME(str(error), host.peer)
        return
    yield from _path_mtu(host, address)
    yield from _dscps(host, address)


def _wanted_bytes(host: Host) -> int:
    """IP packet size to try: the largest that RDMA sends over the examined links, or that of a 4096-byte RoCE MTU."""
    mtus = [int(t) for i in host.links if (t := read_line(host.sys / "class/net" / i / "mtu")).isdigit()]
    return max((roce_mtu(m) for m in mtus), default=ROCE_WANTED) + ROCE_OVERHEAD_BYTES


def _path_mtu(host: Host, address: str) -> Iterator[Finding]:
    assert host.peer is not None
    large = _wanted_bytes(host)
    try:
        small_comes = echo(address, 84)
        large_comes = small_comes and echo(address, large)
    except PermissionError as error:
        yield NO_PERMISSION(f"ICMP socket: {error.strerror}", host.peer)
        return
    except OSError as error:
        yield TOO_SMALL(f"sending {large} bytes: {error.strerror}", host.peer)
        return
    if not small_comes:
        yield SILENT(f"{TRIES} echo requests of 84 bytes to {address} without an answer", host.peer)
    elif not large_comes:
        yield TOO_SMALL(f"84 bytes come back from {address}, {large} do not", host.peer)
    else:
        yield MTU_HOLDS(f"{large} bytes come back from {address} unfragmented", host.peer)


def echo(address: str, size_bytes: int) -> bool:
    """Whether an echo request of ``size_bytes`` (IP header included), which must not be fragmented, is answered.

    Raises OSError if it cannot be sent: EMSGSIZE if this host's own link is too small.
    """
    try:
        channel = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
        own_header = 0
    except PermissionError:
        channel = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        own_header = 20
    with channel:
        channel.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        nonce = os.urandom(16)
        payload = nonce + bytes(size_bytes - IP_ICMP_BYTES - len(nonce))
        for sequence in range(1, TRIES + 1):
            channel.sendto(_echo_request(sequence, payload), (address, 0))
            end = time.monotonic() + WAIT_S
            while (left := end - time.monotonic()) > 0 and select.select([channel], [], [], left)[0]:
                answer = channel.recv(65_536)[own_header:]
                if answer[:1] == b"\0" and answer[8 : 8 + len(nonce)] == nonce:
                    return True
    return False


def _echo_request(sequence: int, payload: bytes) -> bytes:
    head = struct.pack("!BBHHH", ICMP_ECHO, 0, 0, os.getpid() & 0xFFFF, sequence)
    data = head + payload + b"\0" * (len(payload) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!BBHHH", ICMP_ECHO, 0, ~total & 0xFFFF, os.getpid() & 0xFFFF, sequence) + payload


def _dscps(host: Host, address: str) -> Iterator[Finding]:
    assert host.peer is not None
    first = probe_dscp((address, PORT), host.profile.classes[0].dscp)
    if first.forward is None:
        yield NO_PROBE(f"no answer from {address} on UDP port {PORT}", host.peer)
        return
    results = [first, *(probe_dscp((address, PORT), c.dscp) for c in host.profile.classes[1:])]
    changed = [r for r in results if not r.kept]
    for r in changed:
        arrives = "does not arrive" if r.forward is None else f"arrives as {r.forward}; {r.changed_at}"
        yield BLEACHED(f"DSCP {r.dscp} {arrives}", host.peer)
    if not changed:
        yield KEPT("DSCP " + ", ".join(str(r.dscp) for r in results), host.peer)
