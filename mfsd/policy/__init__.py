"""The decisions of MFS as pure functions: who goes first, and who is pruned. No I/O, no clock, no global
state.

Read in this order: words, config, estimate, urgency, flow, order, wire (one NIC); red, load, result,
pruning, core (the cluster); on_time is a study. Rules and invariants: docs/internals/policy.md.
"""

from mfsd._native import Decision
from mfsd.policy.config import EarlyOrder, PolicyConfig, Variant
from mfsd.policy.core import Core, ReferenceCore
from mfsd.policy.estimate import Load
from mfsd.policy.flow import Flow, initial, look, next_look_ns
from mfsd.policy.order import Key, first_in_order, is_near, load_step, order_key, tier_of
from mfsd.policy.pruning import plan, sort_by_red
from mfsd.policy.red import robust_effective_deadline
from mfsd.policy.result import Batch, Place, Plan, Pruned, Request
from mfsd.policy.types import NO_DEADLINE, NO_RANK, Stage, Tier
from mfsd.policy.wire import wire_class

__all__ = [
    "NO_DEADLINE",
    "NO_RANK",
    "Batch",
    "Core",
    "Decision",
    "EarlyOrder",
    "Flow",
    "Key",
    "Load",
    "Place",
    "Plan",
    "PolicyConfig",
    "Pruned",
    "ReferenceCore",
    "Request",
    "Stage",
    "Tier",
    "Variant",
    "first_in_order",
    "initial",
    "is_near",
    "load_step",
    "look",
    "next_look_ns",
    "order_key",
    "plan",
    "robust_effective_deadline",
    "sort_by_red",
    "tier_of",
    "wire_class",
]
