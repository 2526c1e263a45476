"""What the policy knows about one flow (paper 4.5, design).

The native core decides about it: `mfsd._native.OrderRules`. tests/specification has the same rules in Python.
"""

from __future__ import annotations

import msgspec

from mfsd.policy.types import NO_DEADLINE, NO_RANK


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one flow. The caller keeps them true; the policy never changes them.

    For the last stage, sizes are those of the whole request on its bottleneck port: everything it still has to ship,
    since all its flows share one deadline (paper 4.3). For early stages they are what its batch still has waiting
    there, of all its layers.
    """

    stage: int
    sequence: int
    """Order of arrival at the queue; unique within a queue."""
    remaining_bytes: int
    rate_bytes_per_s: int
    """Rate of the bottleneck port, at least 1."""
    layer_target: int = 0
    rank: int = NO_RANK
    """Position of the batch in RED order."""
    deadline_ns: int = NO_DEADLINE
    budget_ns: int = 0
    """The request's time from arrival to deadline. 0: unknown; then it is never critical in variant mfs."""
    computing: bool = False
    """The request's prefill still runs."""
    compute_end_ns: int = 0
    """When prefill is expected to end. 0 or a past time adds nothing."""
    tail_bytes: int = 0
    """The part of remaining_bytes that exists only once compute has ended."""
    without_batch: bool = False
    """A stage 1 flow that is asked for while its request still queues.

    `remaining_bytes` is then all that its request has waiting in this way, or the flow's own if the request is not
    known. `deadline_ns` is when the bytes must be there for the request to be in time.
    """
    whole_bytes: int | None = None
    """For a flow without a batch from a port that others fetch from, too: the size of its whole load, which decides its
    class there. None: `remaining_bytes` decides."""
    request_known: bool = True
    """False: nothing tells what else belongs to a load without a batch."""
    batch_running: bool = False
    """The batch has begun to compute, so that peers would stall with it."""
    pruned: bool = False
    """The coordinator's order serves this request from the scavenger."""
