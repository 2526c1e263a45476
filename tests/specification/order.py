"""Who goes first on one NIC: the arbitration order as comparable keys (paper 4.5, design).

The native queue implements the same order; a differential test holds both to each other.
"""

from __future__ import annotations

from typing import Final

from mfsd._native import Decision
from mfsd.policy.config import EarlyOrder, PolicyConfig, Variant
from mfsd.policy.estimate import transfer_ns
from mfsd.policy.flow import Flow
from mfsd.policy.types import NO_DEADLINE, NO_RANK, Key, Stage, Tier, known_stage
from tests.specification.urgency import relative_layer_index

RENEWAL_BUDGETS: Final = 4
"""Variant mfs: how many budgets after its deadline a lost request is due again."""

NO_SIZE: Final = 63
"""The size class of what belongs to a batch that does not run: after all that does, and after what has no batch."""

LATE_SIZES: Final = 2
"""How many size classes larger a load without a batch counts that comes too late: four times the bytes. Those in time
go first among what is about as large, and the small ones that are lost do not wait for long
(docs/results/studies.md)."""

LOAD_STEP: Final = 4
"""How many times as long a load of the next class may take."""

SOON_STEP: Final = 10
"""How many times as late a last stage of the next class may be due."""

_STAGE_ORDER = {Stage.CONTROL: 0, Stage.COLLECTIVE: 1, Stage.REUSE: 2, Stage.P2D: 3}


def tier_of(config: PolicyConfig, flow: Flow, decision: Decision) -> Tier:
    """The floor a flow is on.

    Scavenger: pruned last stages, background and unknown stages, and stage 1 of a pruned request unless
    (variant mfs) its batch runs, since its peers would stall with it (design). Collectives belong to the
    whole batch and are never demoted. An infeasible last stage is a scavenger in variant paper; in variant
    mfs it stays among the last stages with a renewed deadline.
    """
    stage = known_stage(flow.stage)
    if stage is Stage.BACKGROUND:
        return Tier.SCAVENGER
    if stage is Stage.P2D:
        if flow.pruned or (decision.infeasible and config.variant is Variant.PAPER):
            return Tier.SCAVENGER
        if decision.infeasible:
            return Tier.LAST
        return Tier.CRITICAL if decision.critical else Tier.LAST
    if stage is Stage.REUSE and flow.pruned and not (config.variant is Variant.MFS and flow.batch_running):
        return Tier.SCAVENGER
    return Tier.EARLY


def size_class(size_bytes: int) -> int:
    """The power of two of the KiB: 0 below one KiB, n for 2^(n-1) up to 2^n - 1 KiB; below NO_SIZE."""
    return min((size_bytes >> 10).bit_length(), NO_SIZE - 1)


def by_size(config: PolicyConfig) -> bool:
    """Whether early flows of equal RLI go by the size of their batch's stall before they go by its rank."""
    return config.variant is Variant.MFS and config.early_order is EarlyOrder.SHORTEST


def rli_of(flow: Flow, layer_current: int) -> int:
    """RLI of an early-stage flow: 0 by definition for collectives and control (paper 4.4.1)."""
    if known_stage(flow.stage) is Stage.REUSE:
        return relative_layer_index(flow.layer_target, layer_current)
    return 0


def due_ns(config: PolicyConfig, flow: Flow, decision: Decision) -> int:
    """By what a last-stage flow is sorted: its deadline, or (variant mfs) the renewed one of a lost request.

    A lost request can make no other late that is due before its renewed deadline, and waits behind them for
    no longer than that: served dead last, small ones starve for seconds and the mean TTFT with them
    (docs/simulation.md). Without a known budget: NO_DEADLINE.
    """
    if config.variant is Variant.PAPER or not decision.infeasible:
        return flow.deadline_ns
    if flow.budget_ns <= 0:
        return NO_DEADLINE
    return min(flow.deadline_ns + RENEWAL_BUDGETS * flow.budget_ns, NO_DEADLINE)


def order_key(config: PolicyConfig, flow: Flow, decision: Decision, layer_current: int = 0) -> Key:
    """The flow's place in the queue.

    CRITICAL   (1, 0,     size 2^32,        3,     sequence)  among the early stages
    EARLY      (1, RLI,   size 2^32 + rank, stage, sequence)  stage: control 0, collective 1, reuse 2
    LAST       (2, 0,     due,              0,     sequence)
    SCAVENGER  (3, 0,     deadline,         0,     sequence)

    A missing deadline is NO_DEADLINE, and so is that of reuse in SCAVENGER. size is `size_class` of
    `remaining_bytes`, all that the batch waits for: the batch that needs the port for the shortest time is out of
    the way of all the soonest, and of those that need it about as long, the rank decides (early_order shortest).
    What is of no running batch has NO_SIZE and NO_RANK; but reuse that is fetched while its request still queues has
    the size of that request, since what is loaded first can be computed first; LATE_SIZES more where it is
    infeasible (docs/results/studies.md). The key changes as bytes are served. `early_order` rank puts the rank alone
    there; collective-first does too, and 0 for control and collectives and 1 + RLI for reuse in place of RLI. A
    critical last stage is one more urgent transfer, the first of its size: before all of them it would stretch long
    collectives for single requests. Variant paper orders early stages by rank and LAST by (level, deadline); there,
    and in the other early orders, CRITICAL is (0, 0, deadline, 0, sequence).
    """
    tier = tier_of(config, flow, decision)
    paper = config.variant is Variant.PAPER
    if tier is Tier.EARLY:
        stage = known_stage(flow.stage)
        first, second = rli_of(flow, layer_current), flow.rank
        order = EarlyOrder.RANK if paper else config.early_order
        if order is EarlyOrder.COLLECTIVE_FIRST and stage is Stage.REUSE:
            first += 1
        elif order is EarlyOrder.SHORTEST:
            sized = flow.batch_running or flow.without_batch
            size, rank = (size_class(flow.remaining_bytes), flow.rank) if sized else (NO_SIZE, NO_RANK)
            if flow.without_batch and decision.infeasible:
                size += LATE_SIZES
            second = size << 32 | rank
        return (tier.value, first, second, _STAGE_ORDER[stage], flow.sequence)
    if tier is Tier.CRITICAL and by_size(config):
        return (Tier.EARLY.value, 0, size_class(flow.remaining_bytes) << 32, _STAGE_ORDER[Stage.P2D], flow.sequence)
    if tier is Tier.LAST:
        return (tier.value, decision.level if paper else 0, due_ns(config, flow, decision), 0, flow.sequence)
    # reuse that is set aside keeps its turn: when it is needed depends on a request that is not to be served now
    due = NO_DEADLINE if known_stage(flow.stage) is Stage.REUSE else flow.deadline_ns
    return (tier.value, 0, due, 0, flow.sequence)


def due_step(config: PolicyConfig, flow: Flow, decision: Decision, now_ns: int) -> int:
    """Variant mfs: by how many limits a last stage is due later than those that are due first, lost ones by their
    renewed deadline: on the wire it has a class for each, so that ports that know no deadlines send in that order
    (docs/results/studies.md). One without a deadline is not known to be due."""
    if flow.deadline_ns == NO_DEADLINE or not config.soon_ns:
        return 2
    due = due_ns(config, flow, decision)
    return (due >= now_ns + config.soon_ns // SOON_STEP) + (due >= now_ns + config.soon_ns)


def load_step(config: PolicyConfig, flow: Flow, decision: Decision) -> int | None:
    """By how many limits reuse without a batch takes the port longer than the shortest loads: what is left of it, or
    all of it where it is fetched from a port that others fetch from. One that comes too late counts as in the order,
    LATE_SIZES more. None: that is not known, or does not count (the other orders)."""
    if not (flow.without_batch and flow.request_known and by_size(config) and config.short_load_ns):
        return None
    size = flow.remaining_bytes if flow.whole_bytes is None else flow.whole_bytes
    load_ns = transfer_ns(size, flow.rate_bytes_per_s) << (LATE_SIZES if decision.infeasible else 0)
    short_ns = config.short_load_ns
    return (load_ns > short_ns // LOAD_STEP) + (load_ns > short_ns) + (load_ns > LOAD_STEP * short_ns)
