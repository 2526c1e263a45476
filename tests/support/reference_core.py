"""The specification under events, with which the plan core (mfsd._native.PlanCore) is compared."""

from __future__ import annotations

from collections.abc import Set

from mfsd.coordinator.planner import Change
from mfsd.policy.config import PolicyConfig
from mfsd.policy.load import Loads
from mfsd.policy.pruning import plan, sort_by_red
from mfsd.policy.result import Batch, Plan, Pruned


class ReferenceCore:
    """Plans from scratch on every event. A refused event (ValueError) changes nothing; `now_ns` may go back."""

    def __init__(self, config: PolicyConfig, capacity_per_s: Loads) -> None:
        """capacity_per_s: amount per second of each resource. ValueError if one is below 1."""
        for resource, capacity in capacity_per_s.items():
            if capacity < 1:
                raise ValueError(f"resource {resource} has capacity {capacity}: use at least 1 per second")
        self._config = config
        self._capacity_per_s = dict(capacity_per_s)
        self._batches: dict[int, Batch] = {}
        self._batch_of: dict[int, int] = {}
        self._plan = Plan()
        self._before: tuple[Pruned, ...] = ()
        """Pruned requests that are still active."""
        self._held = False
        self.spent = 0

    def promised(self, resource: int, red_ns: int | None) -> int:
        """Returns the load promised to requests that are neither pruned nor infeasible."""
        out = {p.request_id for p in self._plan.pruned} | set(self._plan.infeasible)
        return sum(
            batch.fixed_loads.get(resource, 0)
            + sum(r.loads.get(resource, 0) for r in batch.requests if r.request_id not in out)
            for red, batch in sort_by_red(self._batches.values())
            if red_ns is None or red.red_ns <= red_ns
        )

    def arrive(self, batch: Batch, now_ns: int) -> Plan:
        if batch.batch_id in self._batches:
            raise ValueError(f"batch {batch.batch_id} is active already: update it, or let it depart first")
        return self._put(batch, now_ns)

    def update(self, batch: Batch, now_ns: int) -> Plan:
        self._active(batch.batch_id)
        return self._put(batch, now_ns)

    def depart(self, batch_id: int, now_ns: int) -> Plan:
        self._forget(self._active(batch_id))
        return self._replan(now_ns)

    def hold(self) -> None:
        """Collects events without planning, until `release` plans for all of them at once."""
        self._held = True

    def release(self, now_ns: int) -> Plan:
        self._held = False
        return self._replan(now_ns)

    def _put(self, batch: Batch, now_ns: int) -> Plan:
        self._check(batch)
        if batch.batch_id in self._batches:
            self._forget(self._batches[batch.batch_id], {r.request_id for r in batch.requests})
        self._batches[batch.batch_id] = batch
        self._batch_of |= dict.fromkeys((r.request_id for r in batch.requests), batch.batch_id)
        return self._replan(now_ns)

    def _forget(self, batch: Batch, stays: Set[int] = frozenset()) -> None:
        """Removes requests that do not stay from the pruned ones, in case they come back before the next plan."""
        del self._batches[batch.batch_id]
        gone = set()
        for request in batch.requests:
            del self._batch_of[request.request_id]
            if request.request_id not in stays:
                gone.add(request.request_id)
        self._before = tuple(p for p in self._before if p.request_id not in gone)

    def _active(self, batch_id: int) -> Batch:
        if batch_id not in self._batches:
            raise ValueError(f"batch {batch_id} is not active: it never arrived or has departed")
        return self._batches[batch_id]

    def _replan(self, now_ns: int) -> Plan:
        if not self._held:
            self._plan = plan(
                self._config, self._batches.values(), self._capacity_per_s, now_ns, self._before, self.spent
            )
            self._before = self._plan.pruned
        return self._plan

    def _check(self, batch: Batch) -> None:
        name = f"batch {batch.batch_id}"
        if not batch.requests:
            raise ValueError(f"{name} has no requests: give at least one")
        if batch.compute_ns < 0:
            raise ValueError(f"{name}: compute_ns is {batch.compute_ns}: use 0 or more")
        self._check_loads(f"{name}: fixed_loads", batch.fixed_loads)
        seen: set[int] = set()
        for request in batch.requests:
            number = request.request_id
            owner = self._batch_of.get(number, batch.batch_id)
            if number in seen or owner != batch.batch_id:
                raise ValueError(f"{name}: request {number} is in batch {owner} already: name it once")
            seen.add(number)
            self._check_loads(f"{name}: loads of request {number}", request.loads)

    def _check_loads(self, where: str, loads: Loads) -> None:
        for resource, amount in loads.items():
            if resource not in self._capacity_per_s:
                raise ValueError(f"{where}: resource {resource} is unknown: name one that has a capacity")
            if amount < 0:
                raise ValueError(f"{where}: {amount} on resource {resource}: use 0 or more")


class ReferencePlanner:
    """A mfsd.coordinator.planner.Planner that plans from scratch on every event and compares with the plan before."""

    name = "reference"

    def __init__(self, config: PolicyConfig, resources: int) -> None:
        capacities: Loads = dict.fromkeys(range(resources), 10**9)
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

    def spend(self, requests: int) -> None:
        self._core.spent = requests

    def promised_ns(self, port: int, red_ns: int | None = None) -> int:
        return self._core.promised(port, red_ns)

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
    """Returns the pruned and the infeasible (None) requests, by number."""
    return {**dict.fromkeys(plan.infeasible), **{p.request_id: p for p in plan.pruned}}
