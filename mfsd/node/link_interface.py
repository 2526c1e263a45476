"""What the link to the coordinators sends and receives, and what it needs of the daemon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from mfsd.node.outlook import Promise

if TYPE_CHECKING:
    from mfsd.proto.wire import TlsFiles


class PortDemand(Struct, frozen=True):
    """Bytes to move through one port."""

    port: str
    """Cluster-wide name of a NIC port and direction: "<address>/in" or "<address>/out"."""
    size_bytes: int


class RequestSummary(Struct, frozen=True):
    request_id: int
    budget_left_ns: int | None
    """Until its deadline from the moment of the call; below 0 when late; None: no deadline."""
    demands: tuple[PortDemand, ...] = ()
    """What this node posts for it, at both ends of each flow. Other nodes' posts are theirs to report."""
    relegated: bool = False
    """Its engine has put it behind the others itself."""


class WaitingSummary(Struct, frozen=True):
    """A request that still queues at an engine of this node."""

    request_id: int
    budget_left_ns: int | None
    """Until its deadline from the moment of the call; None: no deadline."""
    rank: int
    """In the engine's order: smaller goes first."""
    tokens_left: int
    """To compute until its first token; 0: not known."""
    relegated: bool
    engine: int = 0
    """Number of the engine at this node: ranks of different engines do not compare."""
    demands: tuple[PortDemand, ...] = ()
    """What it will fetch, at both ends of each flow."""


class PortUse(Struct, frozen=True):
    """What was really used of a port of late, as shares of its rate."""

    classes: tuple[float, ...] = ()
    unscheduled: float = 0.0
    passed: float = 0.0
    bypass: float = 0.0
    """Past MFS, by the port's counters. Among it is what peers posted for this port."""

    def differs(self, other: PortUse, step: float) -> bool:
        mine, theirs = ((*use.classes, use.unscheduled, use.passed, use.bypass) for use in (self, other))
        if len(self.classes) != len(other.classes):
            return True
        return any(abs(a - b) >= step or (a == 0.0) != (b == 0.0) for a, b in zip(mine, theirs, strict=True))


class BatchSummary(Struct, frozen=True):
    batch_id: int
    unit: str
    """Name of the prefill replica; batches of one unit share the estimate of its collectives."""
    compute_left_ns: int
    requests: tuple[RequestSummary, ...]
    collectives: tuple[PortDemand, ...] = ()
    """Bytes of collectives left, where the engine knows them; empty: the coordinator estimates."""


class OrderChange(Struct, frozen=True):
    """What has changed in the order of this node's batches."""

    term: int
    epoch: int
    complete: bool
    """True: `ranks` and `pruned_added` are everything; what they do not name has no rank and is not pruned."""
    ranks: Mapping[int, int]
    """batch_id -> rank among this node's batches, 0 first."""
    pruned_added: tuple[int, ...] = ()
    """Request ids."""
    pruned_removed: tuple[int, ...] = ()
    infeasible_added: tuple[int, ...] = ()
    """Requests that would be late with every port to themselves."""
    infeasible_removed: tuple[int, ...] = ()


class Listener(Protocol):
    def order(self, change: OrderChange) -> None:
        """A decision of the leader."""

    def order_lost(self) -> None:
        """The order has not been confirmed for the time to live: order locally by RED, prune nothing."""


class Questions(Protocol):
    """What operators ask through the leader."""

    def asked(self, question_id: int, request: bytes) -> None: ...
    def unasked(self, question_id: int) -> None:
        """No caller waits for (more of) its answer."""

    def forgotten(self) -> None:
        """No question is open any more: the leader is gone."""


class Promises(Protocol):
    """Learns what the leader says of ports: the outlook page."""

    def promised(self, promises: Mapping[str, Promise], ttl_ns: int) -> None: ...
    def confirmed(self, ttl_ns: int) -> None: ...
    def forgotten(self) -> None: ...


class Logger(Protocol):
    """What the link needs of :class:`mfsd.node.log.Log`."""

    def info(self, event: str, **values: object) -> None: ...
    def warning(self, event: str, **values: object) -> None: ...


class LinkSettings(Struct, frozen=True, kw_only=True):
    addresses: tuple[str, ...]
    """HOST:PORT of every coordinator."""
    ttl_ns: int = 5_000_000_000
    """How long the last order holds without a sign of the leader."""
    tls: TlsFiles | None = None
    backoff_max_s: float = 2.0


class Identity(Struct, frozen=True):
    node: str
    """Unique in the cluster."""
    version: str
    epoch: int
    """Of the daemon's start."""
