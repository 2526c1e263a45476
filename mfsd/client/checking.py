"""Checks what engines announce. Invalid values are taken as unknown, with one warning; nothing is raised."""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import threading
from functools import lru_cache

from mfsd._native import NICS_MAX, DemandInfo, Direction, RequestFlag, RequestInfo, peer_hash
from mfsd.client.types import Flow, Request, Waiting
from mfsd.transfer import Transfer

log = logging.getLogger("mfsd.client")

U64_MAX = 2**64 - 1
U32_MAX = 2**32 - 1
ID_MAX = U64_MAX - 1
TIME_MAX_NS = 2**60
LAYERS_MAX = 2**16 - 1
FLOW_BYTES_MAX = 2**40 - 1


STAGE_MAX = 255
_FLOW_LIMITS = (FLOW_BYTES_MAX, STAGE_MAX, NICS_MAX - 1, LAYERS_MAX)
_WAITING_LIMITS = (ID_MAX, U32_MAX, TIME_MAX_NS, U32_MAX)
_WAITS = int(RequestFlag.WAITING)
_WAITS_RELEGATED = _WAITS | int(RequestFlag.RELEGATED)
_LIMITS = (FLOW_BYTES_MAX, STAGE_MAX, ID_MAX, TIME_MAX_NS, LAYERS_MAX, FLOW_BYTES_MAX)
"""Limits of a transfer's numbers."""


def _within(value: object, highest: int) -> bool:
    return isinstance(value, int) and 0 <= value <= highest


class Checker:
    """Counts invalid values by kind, and logs the first of each kind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    @property
    def counts(self) -> dict[str, int]:
        """How often each kind of metadata was taken as unknown."""
        with self._lock:
            return dict(self._counts)

    def refuse(self, kind: str, value: object, remedy: str) -> None:
        with self._lock:
            self._counts[kind] = count = self._counts.get(kind, 0) + 1
        if count == 1:
            log.warning("%s is %r: %s; taken as unknown (logged once for this kind)", kind, value, remedy)

    # ---- fields ----------------------------------------------------------------------------------

    def whole(self, kind: str, value: object, highest: int, remedy: str) -> int:
        """Returns the value if it is a whole number from 0 to `highest`, else 0."""
        if isinstance(value, int) and 0 <= value <= highest:
            return int(value)
        self.refuse(kind, value, remedy)
        return 0

    def request_id(self, value: object) -> int:
        return self.whole("request_id", value, ID_MAX, "use a number from 1 to 2**64 - 2")

    def deadline_ns(self, value: object) -> int:
        return self.whole("deadline_ns", value, TIME_MAX_NS, "use time.monotonic_ns() plus what is left")

    def layer(self, value: object) -> int:
        return self.whole("layer", value, LAYERS_MAX, f"use 0 to {LAYERS_MAX}")

    def size_bytes(self, value: object, kind: str = "size_bytes") -> int:
        return self.whole(kind, value, FLOW_BYTES_MAX, "use 0 to 2**40 - 1")

    def transfer(self, transfer: Transfer) -> Transfer:
        """Returns the transfer with invalid numbers taken as unknown. The caller looks up NIC, batch and peer."""
        size_bytes, stage, _, request_id, deadline_ns, _, layer, _, _, _, left_bytes = transfer
        numbers = (size_bytes, stage, request_id, deadline_ns, layer, left_bytes)
        if all(map(_within, numbers, _LIMITS)):
            return transfer
        return transfer._replace(
            size_bytes=self.size_bytes(size_bytes),
            stage=self.stage(stage),
            request_id=self.request_id(request_id),
            deadline_ns=self.deadline_ns(deadline_ns),
            layer=self.layer(layer),
            left_bytes=self.size_bytes(left_bytes, "left_bytes"),
        )

    def nic(self, value: object) -> int:
        return self.whole("nic", value, NICS_MAX - 1, "use what Session.nic answered")

    def stage(self, value: object) -> int:
        """Returns the stage. One that this version does not know may pass: the daemon serves it as background."""
        if isinstance(value, int) and 0 <= value <= STAGE_MAX:
            return int(value)
        self.refuse("stage", value, "use mfsd.client.Stage")
        return 4

    def peer(self, value: object) -> bytes:
        """Returns the 16 bytes of a GID, or b"" if unknown."""
        if value == "":
            return b""
        found = gid(value) if isinstance(value, str) else None
        if found is None:
            self.refuse("peer", value, 'use an IPv4 or IPv6 address, or ""')
            return b""
        return found

    def destination(self, value: object) -> int:
        """Returns the daemon's number of the port, or 0 if unknown."""
        try:
            if isinstance(value, str | bytes):
                return destination(value)
        except ValueError:
            pass
        self.refuse("peer", value, 'use an address, a name, the 16 bytes of a GID, or ""')
        return 0

    # ---- requests --------------------------------------------------------------------------------

    def flow(self, flow: Flow) -> DemandInfo:
        stage, peer, size_bytes, nic, layer, incoming = flow
        if all(map(_within, (size_bytes, stage, nic, layer), _FLOW_LIMITS)) and isinstance(peer, str):
            found = gid(peer) if peer else b""
            if found is not None:
                direction = Direction.IN if incoming else Direction.OUT
                return DemandInfo(size_bytes, found, layer, stage, nic, direction)
        return DemandInfo(
            bytes=self.size_bytes(flow.size_bytes),
            peer=self.peer(flow.peer),
            layer=self.layer(flow.layer),
            stage=self.stage(flow.stage),
            nic=self.nic(flow.nic),
            direction=Direction.IN if flow.incoming else Direction.OUT,
        )

    def request(self, request: Request, merged_to: int) -> RequestInfo | None:
        """Returns None for a request without a valid number: nothing could refer to it."""
        request_id = self.request_id(request.request_id)
        if request_id == 0:
            if request.request_id == 0:
                self.refuse("request_id", 0, "use a number from 1 to 2**64 - 2")
            return None
        return RequestInfo(
            request_id=request_id,
            program_id=self.whole("program_id", request.program_id, U64_MAX, "use 0 to 2**64 - 1"),
            deadline_ns=self.deadline_ns(request.deadline_ns),
            budget_ns=self.whole("budget_ns", request.budget_ns, TIME_MAX_NS, "use nanoseconds, 0 or more"),
            flags=int(RequestFlag.RELEGATED) if request.relegated else 0,
            demands=merge([self.flow(flow) for flow in request.flows], merged_to),
        )

    def waiting(self, request: Waiting, merged_to: int) -> RequestInfo | None:
        """Returns None for a request without a valid number: nothing could refer to it."""
        if all(map(_within, request[:4], _WAITING_LIMITS)) and request.request_id:  # field by field is slow
            flags = _WAITS_RELEGATED if request.relegated else _WAITS
            demands = merge([self.flow(flow) for flow in request.flows], merged_to)
            return RequestInfo(
                request.request_id, 0, request.deadline_ns, 0, 0, flags, demands, request.rank, request.tokens_left
            )
        info = self.request(
            Request(request.request_id, request.deadline_ns, flows=request.flows, relegated=request.relegated),
            merged_to,
        )
        return info and info._replace(
            flags=info.flags | int(RequestFlag.WAITING),
            rank=self.whole("rank", request.rank, U32_MAX, "use 0 to 2**32 - 1"),
            tokens_left=self.whole("tokens_left", request.tokens_left, U32_MAX, "use 0 to 2**32 - 1"),
        )


def merge(demands: list[DemandInfo], most: int) -> tuple[DemandInfo, ...]:
    """Returns at most `most` demands, merging the layers of each port if there are more.

    The last layer counts for P2D, since a part cannot leave before it is made. The first layer counts for all other
    stages, since a part may be needed then.
    """
    if len(demands) <= most:
        return tuple(demands)
    by_port: dict[tuple[bytes, int, int, int], DemandInfo] = {}
    for d in demands:
        key = (d.peer, d.stage, d.nic, d.direction)
        other = by_port.get(key)
        if other is not None:
            choose = max if d.stage == 3 else min
            d = d._replace(bytes=min(FLOW_BYTES_MAX, d.bytes + other.bytes), layer=choose(d.layer, other.layer))
        by_port[key] = d
    return tuple(by_port.values())[:most]


@lru_cache(maxsize=4096)
def destination(peer: str | bytes) -> int:
    """Returns the number by which the daemon knows a destination; 0 if unknown.

    For an address or the 16 bytes of a GID the number is the shim's. Any other name gets one of its own. Raises
    ValueError for bytes that are no GID.
    """
    if isinstance(peer, bytes):
        return peer_hash(peer) if peer else 0
    if not peer:
        return 0
    return peer_hash(gid(peer) or hashlib.blake2b(peer.encode(), digest_size=16).digest())


@lru_cache(maxsize=4096)
def gid(text: str) -> bytes | None:
    """Returns the 16 bytes of an address, or None if the text is no address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if address.version == 4:
        return b"\0" * 10 + b"\xff\xff" + address.packed
    return address.packed
