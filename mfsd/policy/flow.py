"""What the policy knows of one flow (paper 4.5, design). What is decided about it is the native core's:
`mfsd._native.OrderRules`; tests/specification says the same in Python."""

from __future__ import annotations

import msgspec

from mfsd.policy.types import NO_DEADLINE, NO_RANK


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one flow. The caller keeps them true; the policy never changes them.

    For the last stage the sizes are those of the whole request on its bottleneck port: everything it still
    has to ship, since all its flows share one deadline (paper 4.3). For early stages: what its batch still
    has waiting there, of all its layers.
    """

    stage: int
    sequence: int
    """Order of arrival at the queue; no two flows of one queue share it."""
    remaining_bytes: int
    rate_bytes_per_s: int
    """Rate of the bottleneck port, at least 1."""
    layer_target: int = 0
    rank: int = NO_RANK
    """Position of the batch in RED order."""
    deadline_ns: int = NO_DEADLINE
    budget_ns: int = 0
    """The request's whole time budget, arrival to deadline; 0: unknown, then never critical in variant
    mfs."""
    computing: bool = False
    """The request's prefill still runs."""
    compute_end_ns: int = 0
    """When that is expected to end; 0 or past: it adds nothing."""
    tail_bytes: int = 0
    """The part of remaining_bytes that exists only once compute has ended."""
    without_batch: bool = False
    """Stage 1, asked for while its request still queues: remaining_bytes are all that its request has waiting so; its
    own where the request is not known. deadline_ns: when they must be there for the request to be in time."""
    whole_bytes: int | None = None
    """Of one without a batch that is fetched from a port that others fetch from: its whole load, by which its class
    goes there. None: by remaining_bytes."""
    request_known: bool = True
    """Else it cannot be told what more belongs to a load without a batch."""
    batch_running: bool = False
    """The batch has begun to compute: peers would stall with it."""
    pruned: bool = False
    """The coordinator's order serves this request from the scavenger."""
