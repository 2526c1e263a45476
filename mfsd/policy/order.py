"""Who goes first on one NIC: the arbitration order as comparable keys (paper 4.5, design).

The native queue implements the same order; a differential test holds both to each other.
"""

from __future__ import annotations

from collections.abc import Iterable

from mfsd.policy.config import EarlyOrder, PolicyConfig, Variant
from mfsd.policy.estimate import transfer_ns
from mfsd.policy.flow import Decision, Flow
from mfsd.policy.urgency import relative_layer_index
from mfsd.policy.words import Stage, Tier, known_stage

Key = tuple[int, int, int, int, int]
"""(tier, first, second, stage order, sequence). The smallest goes first; sequence makes each unique."""

_STAGE_ORDER = {Stage.CONTROL: 0, Stage.COLLECTIVE: 1, Stage.REUSE: 2}


def tier_of(config: PolicyConfig, flow: Flow, decision: Decision) -> Tier:
    """The floor a flow is on.

    Scavenger: pruned or infeasible last stages, background and unknown stages, and stage 1 of a pruned
    request unless (variant mfs) its batch runs, since its peers would stall with it (design). Collectives
    belong to the whole batch and are never demoted.
    """
    stage = known_stage(flow.stage)
    if stage is Stage.BACKGROUND:
        return Tier.SCAVENGER
    if stage is Stage.P2D:
        if flow.pruned or decision.infeasible:
            return Tier.SCAVENGER
        return Tier.CRITICAL if decision.critical else Tier.LAST
    if stage is Stage.REUSE and flow.pruned and not (config.variant is Variant.MFS and flow.batch_running):
        return Tier.SCAVENGER
    return Tier.EARLY


def rli_of(flow: Flow, layer_current: int) -> int:
    """RLI of an early-stage flow: 0 by definition for collectives and control (paper 4.4.1)."""
    if known_stage(flow.stage) is Stage.REUSE:
        return relative_layer_index(flow.layer_target, layer_current)
    return 0


def order_key(config: PolicyConfig, flow: Flow, decision: Decision, layer_current: int = 0) -> Key:
    """The flow's place in the queue.

    CRITICAL   (0, 0,     deadline, 0,     sequence)
    EARLY      (1, RLI,   rank,     stage, sequence)  stage: control 0, collective 1, reuse 2
    LAST       (2, level, deadline, 0,     sequence)
    SCAVENGER  (3, 0,     deadline, 0,     sequence)

    A missing deadline is NO_DEADLINE, a missing rank NO_RANK. `early_order` changes the EARLY row:
    collective-first puts 0 for control and collectives and 1 + RLI for reuse in place of RLI; shortest puts
    the remaining isolated time (ns) in place of rank, so the key changes as bytes are served.
    """
    tier = tier_of(config, flow, decision)
    if tier is Tier.EARLY:
        stage = known_stage(flow.stage)
        first, second = rli_of(flow, layer_current), flow.rank
        if config.early_order is EarlyOrder.COLLECTIVE_FIRST and stage is Stage.REUSE:
            first += 1
        elif config.early_order is EarlyOrder.SHORTEST:
            second = transfer_ns(flow.remaining_bytes, flow.rate_bytes_per_s)
        return (tier.value, first, second, _STAGE_ORDER[stage], flow.sequence)
    first = decision.level if tier is Tier.LAST else 0
    return (tier.value, first, flow.deadline_ns, 0, flow.sequence)


def first_in_order(keys: Iterable[Key]) -> Key | None:
    """The key to serve next; None only when nothing waits, scavenger included (work conserving, paper B)."""
    return min(keys, default=None)
