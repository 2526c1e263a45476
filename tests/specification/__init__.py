"""What the native queue is held to: its rules once more, as readable Python without state.

Read in this order: urgency, flow, order, wire. Facts and parameters are those of `mfsd.policy`. The differential tests
(tests/unit/rmlq/test_specification.py, test_order_rules.py) compare what the C decides with what is written here.
"""

from mfsd._native import Decision
from tests.specification.flow import evaluate, initial, next_evaluation_ns
from tests.specification.order import due_step, load_step, order_key, tier_of
from tests.specification.wire import wire_class

__all__ = [
    "Decision",
    "due_step",
    "evaluate",
    "initial",
    "load_step",
    "next_evaluation_ns",
    "order_key",
    "tier_of",
    "wire_class",
]
