"""The order of this node's batches while no coordinator gives one: by robust effective deadline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mfsd._native import BatchSnapshot
from mfsd.policy.red import robust_effective_deadline


def red_ns(members: Sequence[BatchSnapshot]) -> int | None:
    """RED of a batch as its processes announce it: the engine's own where there is one, else from the deadlines of its
    requests. None: nothing about it is due."""
    announced = [snapshot.deadline_ns for snapshot in members if snapshot.deadline_ns]
    if announced:
        return min(announced)
    deadlines = {r.request_id: r.deadline_ns for snapshot in members for r in snapshot.requests if r.deadline_ns}
    return robust_effective_deadline(deadlines.values()).red_ns if deadlines else None


def local_ranks(red: Mapping[int, int | None]) -> dict[int, int]:
    """batch_id -> rank by RED, equal ones by batch number as in Algorithm 1; batches without a deadline have none."""
    due = sorted((at, batch_id) for batch_id, at in red.items() if at is not None)
    return {batch_id: rank for rank, (_, batch_id) in enumerate(due)}
