"""Orders this node's batches by robust effective deadline while no coordinator orders them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mfsd._native import BatchSnapshot
from mfsd.policy.red import robust_effective_deadline


def red_ns(members: Sequence[BatchSnapshot]) -> int | None:
    """RED of a batch as its processes announce it; None if it has no deadline.

    The engine's own where it has announced one, else from its requests' deadlines.
    """
    announced = [member.deadline_ns for member in members if member.deadline_ns]
    if announced:
        return min(announced)
    deadlines = {r.request_id: r.deadline_ns for member in members for r in member.requests if r.deadline_ns}
    return robust_effective_deadline(deadlines.values()).red_ns if deadlines else None


def local_ranks(red: Mapping[int, int | None]) -> dict[int, int]:
    """batch_id -> rank by RED, equal ones by number as in Algorithm 1. Batches without a deadline have no rank."""
    due = sorted((at, batch_id) for batch_id, at in red.items() if at is not None)
    return {batch_id: rank for rank, (_, batch_id) in enumerate(due)}
