"""What an engine announces: requests, and the flows that they will need."""

from __future__ import annotations

from typing import NamedTuple

from mfsd._native import OutlookFar, OutlookPort


class Flow(NamedTuple):
    """Bytes that a request will move in one stage, between one NIC of this node and one remote port.

    Announce what is known when the request begins. The daemon subtracts what is completed, and so knows what is left.
    """

    stage: int
    """:class:`mfsd.client.Stage`."""
    peer: str
    """IPv4 or IPv6 address (GID) of the remote port; "" if not known."""
    size_bytes: int
    nic: int = 0
    """As returned by :meth:`Session.nic`."""
    layer: int = 0
    """Reuse: the layer that needs it. P2D: the layer that makes it; the last layer's waits for the end of compute."""
    incoming: bool = False
    """The bytes come to this node."""


class Request(NamedTuple):
    """A request of a batch. 0 means not known."""

    request_id: int
    """Unique in the cluster, not 0."""
    deadline_ns: int = 0
    """When its first token is due, by CLOCK_MONOTONIC of this host (`time.monotonic_ns()`)."""
    budget_ns: int = 0
    """The time from its arrival to its deadline."""
    program_id: int = 0
    """The program, agent or conversation that it belongs to."""
    flows: tuple[Flow, ...] = ()
    relegated: bool = False
    """The engine itself has put it behind the others: it is served like a pruned request."""


class Waiting(NamedTuple):
    """A request that still queues at its engine. 0 means not known."""

    request_id: int
    """As in its later :class:`Request`."""
    rank: int = 0
    """Its place in the engine's order, smaller first. Any numbers do; keep them stable, or requests must be announced
    again whenever others leave the queue."""
    deadline_ns: int = 0
    """When its first token is due, by CLOCK_MONOTONIC of this host."""
    tokens_left: int = 0
    """Tokens to compute until its first token. Shown only; decides nothing."""
    relegated: bool = False
    """The engine itself has put it behind the others: it is served like a pruned request."""
    flows: tuple[Flow, ...] = ()
    """What it will fetch before it runs, and what it will push when it has run."""


class Outlook(NamedTuple):
    """What the network knows, from :meth:`Session.outlook`. A copy that is valid until `valid_until_ns`."""

    written_ns: int
    """Both times are by CLOCK_MONOTONIC of this host."""
    valid_until_ns: int
    ports: dict[tuple[int, bool], OutlookPort]
    """By NIC number (from :meth:`Session.nic`) and whether bytes come in. Only NICs that this session has named."""
    fars: dict[tuple[bytes, bool], OutlookFar]
    """By GID and whether bytes come from there. Only ports that flows of this node use now."""
    pruned: frozenset[int]
    """Pruned requests of all processes of this node."""


CLASSES_WITHOUT_DAEMON = 8
"""K while no daemon has set it."""


def class_of_reads(classes: int) -> int:
    """The class of reads on a connection with one class for all: just below collectives, where the daemon puts reads of
    the layer that runs."""
    return min(1, classes - 1)


def class_without_permit(classes: int) -> int:
    """The class for what goes without a permit: behind what is scheduled, but above the scavenger's."""
    return max(0, classes - 2)
