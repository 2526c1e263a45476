"""Pure functions: the policy's parameters and facts, and the order of the cluster. No I/O, no clock, no global state.

The rules of one NIC are in the native core (`order_rules`; csrc/queue/policy_*.c), and in Python in
tests/specification.

Read in this order: types, config, native, estimate, urgency, flow (one NIC); red, load, result, pruning (the cluster);
outlook (how long a transfer will take); request_tiers (sums of what engines publish). Rules and invariants:
docs/internals/policy.md.
"""

from mfsd.policy.config import EarlyOrder, PolicyConfig, Variant
from mfsd.policy.flow import Flow
from mfsd.policy.native import native_policy, order_rules
from mfsd.policy.pruning import plan, sort_by_red
from mfsd.policy.red import robust_effective_deadline
from mfsd.policy.result import Batch, Place, Plan, Pruned, Request
from mfsd.policy.types import NO_DEADLINE, NO_RANK, Key, Stage, Tier

__all__ = [
    "NO_DEADLINE",
    "NO_RANK",
    "Batch",
    "EarlyOrder",
    "Flow",
    "Key",
    "Place",
    "Plan",
    "PolicyConfig",
    "Pruned",
    "Request",
    "Stage",
    "Tier",
    "Variant",
    "native_policy",
    "order_rules",
    "plan",
    "robust_effective_deadline",
    "sort_by_red",
]
