"""The record of one message, the same from an adapter to the ring of shared memory."""

from __future__ import annotations

from typing import Any, NamedTuple


class Transfer(NamedTuple):
    """What the daemon is to know of one message, or of several that go together. What is not known is left out."""

    size_bytes: int
    stage: int
    nic: int = 0
    """As Session.nic answered."""
    request_id: int = 0
    deadline_ns: int = 0
    """On CLOCK_MONOTONIC of this host."""
    batch: Any = None
    """The mfsd.client.Batch that it belongs to."""
    layer: int = 0
    peer: str | bytes = ""
    """Address, GID (16 bytes) or name of the port that it goes to or comes from."""
    class_marked: bool = False
    """It carries the DSCP of a class below the collectives', so it need not wait here until those are through."""
    incoming: bool = False
    """Its bytes come to this node (an RDMA READ): it waits for that direction of the link only."""
    left_bytes: int = 0
    """Its bytes, and those that this process will ask for behind it for the same request, stage, NIC and direction; the
    latest message that says it holds. 0: not known; what has been asked for so far is taken for all that there is."""
