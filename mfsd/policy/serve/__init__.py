"""The request tier: which requests an engine computes in its next step, and how many tokens of each.

Pure, as the rest of mfsd.policy: no I/O, no clock, no global state. Times are seconds as floats on the engine's clock.

Read in this order: config, view, deadlines, pace, chunk, keys, relegate, fit, pool, programs, lanes, conformal, fence,
regulate, plan. gaps and keep stand beside them. What each decides, in which order, and what always holds:
docs/internals/serve.md.
"""

from mfsd.policy.serve.config import Policy, Preemption, Relegation, ServeConfig, TokenDeadline
from mfsd.policy.serve.conformal import LengthBounds
from mfsd.policy.serve.deadlines import again_due_s, prefill_due_s, read_slo
from mfsd.policy.serve.lanes import LaneCut
from mfsd.policy.serve.pace import Pace, learn
from mfsd.policy.serve.plan import ServeState, plan_step, queue_order
from mfsd.policy.serve.programs import Inherited, ProgramTable, Service
from mfsd.policy.serve.view import Observed, Request, Scheduled, StepLoad, StepPlan, StepView

__all__ = [
    "Inherited",
    "LaneCut",
    "LengthBounds",
    "Observed",
    "Pace",
    "Policy",
    "Preemption",
    "ProgramTable",
    "Relegation",
    "Request",
    "Scheduled",
    "ServeConfig",
    "ServeState",
    "Service",
    "StepLoad",
    "StepPlan",
    "StepView",
    "TokenDeadline",
    "again_due_s",
    "learn",
    "plan_step",
    "prefill_due_s",
    "queue_order",
    "read_slo",
]
