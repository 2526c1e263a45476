"""What a scheduling core changes from event to event: the coordinator sends nothing else."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from mfsd._native import PlanCore
from mfsd.policy.config import PolicyConfig
from mfsd.policy.core import ReferenceCore
from mfsd.policy.load import Loads
from mfsd.policy.result import Batch, Plan, Pruned

UNIT_PER_S = 1_000_000_000
"""Loads are given to the core as nanoseconds of their port, so every resource has this capacity: ports can then
come, and change their rates, without a new core."""


class Change(NamedTuple):
    pruned: tuple[Pruned, ...]
    infeasible: tuple[int, ...]
    """Requests that would be late with every port to themselves, and are not pruned."""
    restored: tuple[int, ...]
    """Requests that are neither any more."""


class Planner(Protocol):
    """A core together with what changes. As `mfsd.policy.core.Core`: a refused event (ValueError) changes nothing."""

    name: str

    def arrive(self, batch: Batch, now_ns: int) -> Change: ...
    def update(self, batch: Batch, now_ns: int) -> Change: ...
    def depart(self, batch_id: int, now_ns: int) -> Change: ...
    def hold(self) -> None:
        """Events are taken and change nothing yet, until `release`: thousands cost little more than one."""

    def release(self, now_ns: int) -> Change: ...
    def drop_budget(self) -> int: ...


NOTHING = Change((), (), ())


class ReferencePlanner:
    """Plans afresh on every event and compares: for small clusters and to hold faster ones against."""

    name = "reference"

    def __init__(self, config: PolicyConfig, resources: int) -> None:
        capacities: Loads = dict.fromkeys(range(resources), UNIT_PER_S)
        self._core = ReferenceCore(config, capacities)
        self._plan = Plan()

    def arrive(self, batch: Batch, now_ns: int) -> Change:
        return self._changed(self._core.arrive(batch, now_ns))

    def update(self, batch: Batch, now_ns: int) -> Change:
        return self._changed(self._core.update(batch, now_ns))

    def depart(self, batch_id: int, now_ns: int) -> Change:
        return self._changed(self._core.depart(batch_id, now_ns))

    def hold(self) -> None:
        self._core.hold()

    def release(self, now_ns: int) -> Change:
        return self._changed(self._core.release(now_ns))

    def drop_budget(self) -> int:
        return self._plan.drop_budget

    def _changed(self, plan: Plan) -> Change:
        before, after = _verdicts(self._plan), _verdicts(plan)
        self._plan = plan
        changed = {number: verdict for number, verdict in after.items() if before.get(number, "") != verdict}
        return Change(
            tuple(p for p in changed.values() if p is not None),
            tuple(number for number, p in changed.items() if p is None),
            tuple(number for number in before if number not in after),
        )


def _verdicts(plan: Plan) -> dict[int, Pruned | None]:
    """None: infeasible."""
    return {**dict.fromkeys(plan.infeasible), **{p.request_id: p for p in plan.pruned}}


class NativePlanner:
    """The incremental core in C: tells what an event changed without looking at everything."""

    name = "native"

    def __init__(self, config: PolicyConfig, resources: int) -> None:
        self._core = PlanCore(config, dict.fromkeys(range(resources), UNIT_PER_S))
        self._held = False

    def arrive(self, batch: Batch, now_ns: int) -> Change:
        self._core.arrived(batch, now_ns)
        return self._changed()

    def update(self, batch: Batch, now_ns: int) -> Change:
        self._core.updated(batch, now_ns)
        return self._changed()

    def depart(self, batch_id: int, now_ns: int) -> Change:
        self._core.departed(batch_id, now_ns)
        return self._changed()

    def hold(self) -> None:
        self._held = True
        self._core.hold()

    def release(self, now_ns: int) -> Change:
        self._held = False
        self._core.release(now_ns)
        return self._changed()

    def drop_budget(self) -> int:
        return self._core.counts().drop_budget

    def _changed(self) -> Change:
        if self._held:
            return NOTHING
        delta = self._core.delta()
        return Change(tuple(delta.pruned), tuple(delta.infeasible), tuple(delta.restored))


def new_planner(config: PolicyConfig, resources: int) -> Planner:
    """A core for resources numbered from 0."""
    return NativePlanner(config, resources)
