"""The record of one message, which the adapter passes on unchanged as far as the ring in shared memory."""

from __future__ import annotations

from typing import Any, NamedTuple


class Transfer(NamedTuple):
    """What the daemon is told about one message, or several that go together. Leave out what is not known."""

    size_bytes: int
    stage: int
    nic: int = 0
    """As returned by Session.nic."""
    request_id: int = 0
    deadline_ns: int = 0
    """By CLOCK_MONOTONIC of this host."""
    batch: Any = None
    """The mfsd.client.Batch that the message belongs to."""
    layer: int = 0
    peer: str | bytes = ""
    """The other end's port: address, GID (16 bytes) or name."""
    class_marked: bool = False
    """The message carries the DSCP of a class below collectives, so it need not wait here while they use the link."""
    incoming: bool = False
    """The bytes come to this node (an RDMA READ), so the message waits only for that direction of the link."""
    left_bytes: int = 0
    """These bytes and all that this process will yet ask for behind them, for the same request, stage, NIC and
    direction. The latest message that sets it counts. 0: not known; only what has been asked for so far is counted."""
