"""What the link to the coordinators sends and receives, and what it needs from the daemon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from mfsd.node.outlook import Promise

if TYPE_CHECKING:
    from mfsd.proto.wire import TlsFiles


class PortDemand(Struct, frozen=True):
    """Bytes that are to move through one port."""

    port: str
    """Cluster-wide name of a NIC port and direction: "<address>/in" or "<address>/out"."""
    size_bytes: int


class RequestSummary(Struct, frozen=True):
    request_id: int
    budget_left_ns: int | None
    """Time from the call to its deadline; negative when late. None: no deadline."""
    demands: tuple[PortDemand, ...] = ()
    """What this node posts for it, at both ends of each flow. Other nodes report their own posts."""
    relegated: bool = False
    """Its engine itself has put it behind the others."""


class WaitingSummary(Struct, frozen=True):
    """A request that still queues at an engine of this node."""

    request_id: int
    budget_left_ns: int | None
    """Time from the call to its deadline. None: no deadline."""
    rank: int
    """In the engine's order: smaller goes first."""
    tokens_left: int
    """Tokens to compute until its first token. 0: not known."""
    relegated: bool
    engine: int = 0
    """Number of the engine at this node. Ranks of different engines do not compare."""
    demands: tuple[PortDemand, ...] = ()
    """What it will fetch, at both ends of each flow."""


class PortUse(Struct, frozen=True):
    """Recent real use of a port, as shares of its rate."""

    classes: tuple[float, ...] = ()
    unscheduled: float = 0.0
    passed: float = 0.0
    bypass: float = 0.0
    """Traffic past MFS, by the port's counters. It includes what peers posted for this port."""

    def differs(self, other: PortUse, step: float) -> bool:
        mine, theirs = ((*use.classes, use.unscheduled, use.passed, use.bypass) for use in (self, other))
        if len(self.classes) != len(other.classes):
            return True
        return any(abs(a - b) >= step or (a == 0.0) != (b == 0.0) for a, b in zip(mine, theirs, strict=True))


class BatchSummary(Struct, frozen=True):
    batch_id: int
    unit: str
    """Name of the prefill replica. Batches of one unit share the estimate of its collectives."""
    compute_left_ns: int
    requests: tuple[RequestSummary, ...]
    collectives: tuple[PortDemand, ...] = ()
    """Bytes of collectives left, if the engine knows them. Empty: the coordinator estimates them."""


class OrderChange(Struct, frozen=True):
    """A change in the order of this node's batches."""

    term: int
    epoch: int
    complete: bool
    """True: `ranks` and `pruned_added` are complete; anything else has no rank and is not pruned."""
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
        """Receives a decision of the leader."""

    def order_lost(self) -> None:
        """The order has not been confirmed for its time to live: order locally by RED, prune nothing."""


class Questions(Protocol):
    """Takes questions that operators ask through the leader."""

    def asked(self, question_id: int, request: bytes) -> None: ...
    def unasked(self, question_id: int) -> None:
        """No caller waits for (the rest of) the answer any more."""

    def forgotten(self) -> None:
        """No question is open any more, because the leader is gone."""


class Promises(Protocol):
    """Learns what the leader says about ports: the outlook page."""

    def promised(self, promises: Mapping[str, Promise], ttl_ns: int) -> None: ...
    def confirmed(self, ttl_ns: int) -> None: ...
    def forgotten(self) -> None: ...


class Logger(Protocol):
    """The part of :class:`mfsd.node.log.Log` that the link needs."""

    def info(self, event: str, **values: object) -> None: ...
    def warning(self, event: str, **values: object) -> None: ...


class LinkSettings(Struct, frozen=True, kw_only=True):
    addresses: tuple[str, ...]
    """HOST:PORT of every coordinator."""
    ttl_ns: int = 5_000_000_000
    """How long the last order holds without a sign of life from the leader."""
    tls: TlsFiles | None = None
    backoff_max_s: float = 2.0


class Identity(Struct, frozen=True):
    node: str
    """Unique in the cluster."""
    version: str
    epoch: int
    """Number of this run of the daemon."""
