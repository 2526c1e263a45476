"""Input and output of Algorithm 1 (paper appendix B)."""

from __future__ import annotations

import msgspec


class Request(msgspec.Struct, frozen=True):
    """One request of a batch. Its number is unique among the active ones."""

    request_id: int
    deadline_ns: int
    loads: dict[int, int] = {}
    """Resource -> load that leaves the main queue when this request is pruned (bytes for ports)."""


class Batch(msgspec.Struct, frozen=True):
    """Requests that run their layers together in one unit."""

    batch_id: int
    requests: tuple[Request, ...]
    compute_ns: int = 0
    """Remaining compute, from offline profiles."""
    fixed_loads: dict[int, int] = {}
    """Load that pruning cannot remove, such as the collectives of a running batch."""


class Pruned(msgspec.Struct, frozen=True):
    """A request in the scavenger, and why.

    Batch `for_batch` did not fit, `resource` was its bottleneck, and this request had the most load (`amount`) there.
    """

    request_id: int
    batch_id: int
    for_batch: int
    resource: int
    amount: int


class Place(msgspec.Struct, frozen=True):
    """One batch in the order, with the estimate behind its place, after pruning."""

    batch_id: int
    red_ns: int
    loose_ns: int
    finish_ns: int
    bottleneck: int | None


class Plan(msgspec.Struct, frozen=True):
    """The result: sigma (`places`, first served first), H (`pruned`) and requests that are lost in any case.

    Plans compare by value: an incremental implementation is right when its plans equal the reference's.
    """

    places: tuple[Place, ...] = ()
    pruned: tuple[Pruned, ...] = ()
    """Sorted by request number."""
    infeasible: tuple[int, ...] = ()
    """Requests that would be late even with every port to themselves. Their last stage goes to the scavenger without
    using the drop budget. Sorted."""
    drop_budget: int = 0
    """How many requests could have been pruned."""

    def rank(self) -> dict[int, int]:
        """batch_id -> position in the order, 0 first."""
        return {place.batch_id: i for i, place in enumerate(self.places)}
