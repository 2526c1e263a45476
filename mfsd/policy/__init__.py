"""The decisions of MFS as pure functions: who goes first, and who is pruned. No I/O, no clock, no global
state.

Read in this order: words, config, estimate, urgency, flow, order, wire (one NIC); red, load, result,
pruning (the cluster); on_time is a study. Rules and invariants: docs/internals/policy.md.
"""

from mfsd.policy.config import EarlyOrder, PolicyConfig, Variant
from mfsd.policy.estimate import Load
from mfsd.policy.flow import Decision, Flow, initial, look, next_look_ns
from mfsd.policy.order import Key, is_near, load_step, order_key, tier_of
from mfsd.policy.pruning import plan, sort_by_red
from mfsd.policy.red import robust_effective_deadline
from mfsd.policy.result import Batch, Place, Plan, Pruned, Request
from mfsd.policy.wire import wire_class
from mfsd.policy.words import NO_DEADLINE, NO_RANK, Stage, Tier

__all__ = [
    "NO_DEADLINE",
    "NO_RANK",
    "Batch",
    "Decision",
    "EarlyOrder",
    "Flow",
    "Key",
    "Load",
    "Place",
    "Plan",
    "PolicyConfig",
    "Pruned",
    "Request",
    "Stage",
    "Tier",
    "Variant",
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
