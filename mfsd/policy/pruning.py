"""Algorithm 1: orders batches and prunes requests from them (paper appendix B).

This is the specification, and what the simulator runs: written to be read and to be right. The coordinator's plan core
(csrc/plan) must return equal plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from mfsd.policy.config import PolicyConfig, Variant
from mfsd.policy.load import Bottleneck, Loads, PromisedLoad
from mfsd.policy.red import EffectiveDeadline, robust_effective_deadline
from mfsd.policy.result import Batch, Place, Plan, Pruned, Request

_PPM = 1_000_000


def sort_by_red(batches: Iterable[Batch]) -> list[tuple[EffectiveDeadline, Batch]]:
    """Step 1: sorts batches by RED, equal ones by number. A node that is cut off uses the same order (design)."""
    scored = [(robust_effective_deadline(r.deadline_ns for r in b.requests), b) for b in batches]
    return sorted(scored, key=lambda pair: (pair[0].red_ns, pair[1].batch_id))


def drop_budget(config: PolicyConfig, active_requests: int) -> int:
    """How many requests may be pruned at once: the share of the active ones, rounded up (paper: B)."""
    return -(-active_requests * round(config.drop_budget * _PPM) // _PPM)


def plan(
    config: PolicyConfig,
    batches: Iterable[Batch],
    capacity_per_s: Loads,
    now_ns: int,
    before: Sequence[Pruned] = (),
    spent: int = 0,
) -> Plan:
    """Orders the batches and prunes until each meets its D^Lo or the drop budget is spent.

    Input must be checked already: every resource has a capacity of at least 1, amounts are not negative, numbers are
    unique. `before` are the requests pruned in the last plan; they stay pruned until they fit with a margin. `spent` is
    the part of the drop budget used by requests that their engines have put behind the others (design). The result does
    not depend on the order of any input.
    """
    walk = _Walk(config, sort_by_red(batches), capacity_per_s, now_ns, spent)
    walk.keep_pruned(before)
    walk.readmit()
    walk.prune()
    return walk.plan()


class _Walk:
    """One run over the batches in their order. A position is an index in the order."""

    def __init__(
        self,
        config: PolicyConfig,
        order: list[tuple[EffectiveDeadline, Batch]],
        capacity_per_s: Loads,
        now_ns: int,
        spent: int,
    ) -> None:
        self.config = config
        self.order = order
        self.capacity_per_s = capacity_per_s
        self.now_ns = now_ns
        self.place = {r.request_id: (i, r) for i, (_, b) in enumerate(order) for r in b.requests}
        self.budget = max(0, drop_budget(config, len(self.place)) - spent)
        self.pruned: dict[int, Pruned] = {}
        self.infeasible = {r.request_id for _, b in order for r in b.requests if self._is_lost(b, r)}

    def _is_lost(self, batch: Batch, request: Request) -> bool:
        """Whether the request misses its own deadline even with every port to itself.

        The paper's MLU > 1 counts bytes only; variant mfs also counts remaining compute (design).
        """
        alone = PromisedLoad(self.capacity_per_s).bottleneck_with(request.loads).time_ns
        compute_ns = batch.compute_ns if self.config.variant is Variant.MFS else 0
        return self.now_ns + compute_ns + alone > request.deadline_ns

    def _counts(self, request: Request) -> bool:
        """Whether the request's load delays others.

        Variant mfs serves a lost request last, so it cannot delay others. The paper's algorithm counts all but pruned
        ones.
        """
        if request.request_id in self.pruned:
            return False
        return self.config.variant is Variant.PAPER or request.request_id not in self.infeasible

    def _loads(self, batch: Batch) -> dict[int, int]:
        """L_i: the batch's load in the main queue."""
        total = dict(batch.fixed_loads)
        for request in batch.requests:
            if self._counts(request):
                for resource, amount in request.loads.items():
                    total[resource] = total.get(resource, 0) + amount
        return total

    def _passed_ns(self, batch: Batch, bottleneck: Bottleneck) -> int:
        """When everything promised on the slowest port has passed.

        The paper has transfers begin when compute has ended (EstFinishTime). Variant mfs lets the two overlap, as
        layer-wise fetches and pushes do, and so prunes only for what cannot be in time otherwise (docs/simulation.md).
        """
        compute_ns = batch.compute_ns if self.config.variant is Variant.PAPER else 0
        return self.now_ns + compute_ns + bottleneck.time_ns

    def _passes(self) -> list[tuple[int, Bottleneck]]:
        """When the bytes of each batch have passed, by position, with the requests that are pruned now left out."""
        promised = PromisedLoad(self.capacity_per_s)
        result = []
        for _, batch in self.order:
            promised.add(self._loads(batch))
            bottleneck = promised.bottleneck_with({})
            result.append((self._passed_ns(batch, bottleneck), bottleneck))
        return result

    def keep_pruned(self, before: Sequence[Pruned]) -> None:
        """Keeps earlier prunings as far as the budget still allows. The most urgent requests come back first."""
        kept = [p for p in before if p.request_id in self.place and self._counts(self.place[p.request_id][1])]
        kept.sort(key=self._urgency)
        for entry in kept[max(0, len(kept) - self.budget) :]:
            batch = self.order[self.place[entry.request_id][0]][1]  # the request may have changed its batch
            self.pruned[entry.request_id] = msgspec.structs.replace(entry, batch_id=batch.batch_id)

    def _urgency(self, pruned: Pruned) -> tuple[int, int, int]:
        position, request = self.place[pruned.request_id]
        return (position, request.deadline_ns, request.request_id)

    def readmit(self) -> None:
        """Readmits kept requests that fit now with a margin, most urgent first (design).

        A request fits when each batch either keeps `readmission_margin` of its remaining time to spare or is no later
        than without the request. `prune` may use the drop budget that this frees.
        """
        if not self.pruned:
            return
        without = self._passes()
        for candidate in sorted(self.pruned.values(), key=self._urgency):
            del self.pruned[candidate.request_id]
            with_it = self._passes()
            if all(
                passed <= old or passed <= deadline.loose_ns - self._margin_ns(deadline)
                for (passed, _), (old, _), (deadline, _) in zip(with_it, without, self.order, strict=True)
            ):
                without = with_it
            else:
                self.pruned[candidate.request_id] = candidate

    def _margin_ns(self, deadline: EffectiveDeadline) -> int:
        return int(max(0, deadline.loose_ns - self.now_ns) * self.config.readmission_margin)

    def prune(self) -> None:
        """Steps 2 and 3: walks the order and prunes where a batch does not fit."""
        promised = PromisedLoad(self.capacity_per_s)  # S
        beyond_pruning = PromisedLoad(self.capacity_per_s)  # the part of S that no pruning could take away
        pool: dict[int, tuple[int, Request]] = {}  # P: candidates of this and earlier batches, with positions
        for position, (deadline, batch) in enumerate(self.order):
            pool |= {r.request_id: (position, r) for r in batch.requests if self._counts(r)}
            own = self._loads(batch)
            beyond_pruning.add(batch.fixed_loads)
            least_ns = max(batch.compute_ns, beyond_pruning.bottleneck_with({}).time_ns)
            hopeless = self.config.variant is Variant.MFS and self.now_ns + least_ns > deadline.loose_ns
            while not hopeless and len(self.pruned) < self.budget:
                bottleneck = promised.bottleneck_with(own)
                if self._passed_ns(batch, bottleneck) <= deadline.loose_ns:
                    break
                victim = self._victim(pool, bottleneck.resource, batch.batch_id)
                if victim is None:
                    break
                self.pruned[victim.request_id] = victim
                victim_position, request = pool.pop(victim.request_id)
                if victim_position == position:
                    for resource, amount in request.loads.items():
                        own[resource] -= amount
                else:
                    promised.remove(request.loads)
            promised.add(own)

    def _victim(self, pool: dict[int, tuple[int, Request]], resource: int | None, for_batch: int) -> Pruned | None:
        """Picks the request with the most load on the bottleneck.

        Of equal ones it takes that of the least urgent batch, then the one with the greater number. None if no request
        has any load there: pruning could not help.
        """
        if resource is None or not pool:
            return None
        amount, position, request_id = max(
            (r.loads.get(resource, 0), position, r.request_id) for position, r in pool.values()
        )
        if amount == 0:
            return None
        return Pruned(request_id, self.order[position][1].batch_id, for_batch, resource, amount)

    def plan(self) -> Plan:
        return Plan(
            places=tuple(
                Place(
                    batch.batch_id,
                    deadline.red_ns,
                    deadline.loose_ns,
                    max(passed, self.now_ns + batch.compute_ns),
                    bottleneck.resource,
                )
                for (deadline, batch), (passed, bottleneck) in zip(self.order, self._passes(), strict=True)
            ),
            pruned=tuple(sorted(self.pruned.values(), key=lambda p: p.request_id)),
            infeasible=tuple(sorted(self.infeasible)),
            drop_budget=self.budget,
        )
