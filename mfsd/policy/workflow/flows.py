"""Weights that move, as flows of the background class with a deadline: collectives and KV of requests go first, and the
network can say whether a model will be there in time."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mfsd.policy.types import Stage
from mfsd.policy.workflow.residency import Move, Residence


class WeightFlow(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    size_bytes: int
    deadline_s: float | None
    """When the stage that waits for the model wants to start. None: nothing waits for it."""
    over_network: bool
    """From remote storage; if not, within the node."""
    stage: Stage = Stage.BACKGROUND


def weight_flows(moves: Iterable[Move], due_s: float) -> list[WeightFlow]:
    """The flows of an activation's moves; moves without bytes are none. Loads are due when the stage wants to start.
    What makes room for them has the same deadline, since the load waits for it; moves to disk have none."""
    return [
        WeightFlow(
            model=move.model,
            size_bytes=move.size_bytes,
            deadline_s=None if move.target is Residence.DISK else due_s,
            over_network=move.source is Residence.REMOTE,
        )
        for move in moves
        if move.size_bytes
    ]
