"""What an engine announces: requests, and the flows that they will need."""

from __future__ import annotations

from typing import NamedTuple

from mfsd._native import OutlookFar, OutlookPort


class Flow(NamedTuple):
    """Bytes that a request will move in one stage, between one NIC of this node and one port elsewhere.

    Announce what is known when the request begins: the daemon takes off what has been completed, and so knows what is
    still to come.
    """

    stage: int
    """:class:`mfsd.client.Stage`."""
    peer: str
    """IPv4 or IPv6 address (GID) of the remote port; "" when it is not known."""
    size_bytes: int
    nic: int = 0
    """As :meth:`Session.nic` answered."""
    layer: int = 0
    """Reuse: the layer that needs it. P2D: the layer that makes it; the last layer's waits for the end of compute."""
    incoming: bool = False
    """The bytes come to this node."""


class Request(NamedTuple):
    """A request of a batch. 0 stands for not known."""

    request_id: int
    """Unique in the cluster, not 0."""
    deadline_ns: int = 0
    """When its first token is due, on CLOCK_MONOTONIC of this host (`time.monotonic_ns()`)."""
    budget_ns: int = 0
    """The whole time from its arrival to its deadline."""
    program_id: int = 0
    """The program, agent or conversation that it belongs to."""
    flows: tuple[Flow, ...] = ()
    relegated: bool = False
    """The engine has put it behind the others itself: it is served as a pruned request is."""


class Waiting(NamedTuple):
    """A request that still queues at its engine. 0 stands for not known."""

    request_id: int
    """As in its :class:`Request` later."""
    rank: int = 0
    """Its place in the engine's order: smaller goes first. Any numbers do; keep them, so that nothing has to be
    announced again because others left the queue."""
    deadline_ns: int = 0
    """When its first token is due, on CLOCK_MONOTONIC of this host."""
    tokens_left: int = 0
    """To compute until its first token: shown, and decides nothing."""
    relegated: bool = False
    """The engine has put it behind the others itself: it is served as a pruned request is."""
    flows: tuple[Flow, ...] = ()
    """What it will fetch before it runs, and from where; and what it will push when it has, and where to."""


class Outlook(NamedTuple):
    """What the network knows: :meth:`Session.outlook`. A copy, right until `valid_until_ns`."""

    written_ns: int
    """On CLOCK_MONOTONIC of this host, as the next."""
    valid_until_ns: int
    ports: dict[tuple[int, bool], OutlookPort]
    """By NIC (as :meth:`Session.nic` answered) and whether the bytes come in; only NICs that this session has named."""
    fars: dict[tuple[bytes, bool], OutlookFar]
    """By GID and whether the bytes come from there: ports that flows of this node use now."""
    pruned: frozenset[int]
    """Requests of all processes of this node that are pruned."""


CLASSES_WITHOUT_DAEMON = 8
"""K while no daemon has set it."""


def class_of_reads(classes: int) -> int:
    """Of reads on a connection that has one class for all: below collectives, as the daemon has reads of the layer that
    runs."""
    return min(1, classes - 1)


def class_without_permit(classes: int) -> int:
    """Of what goes without a permit: behind what is scheduled, but not among what may wait for ever."""
    return max(0, classes - 2)
