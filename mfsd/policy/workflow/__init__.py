"""Workflows of several models on nodes with little GPU memory, after Maestro.

They decide where a stage runs, in which order jobs are served, and which models stay in memory. Pure, as the rest of
mfsd.policy: no I/O, no clock, no global state. Times are seconds as floats on the caller's clock, sizes bytes.

Read in this order: config, profile, margin, residency, hold, degrade, fitness, remaining, preempt, flows. What each
decides: docs/internals/workflow.md.
"""

from mfsd.policy.workflow.config import WorkflowConfig
from mfsd.policy.workflow.degrade import Action, Degradation, Engine, EngineState, plan_degradation
from mfsd.policy.workflow.fitness import Candidate, Choice, Fitness
from mfsd.policy.workflow.flows import WeightFlow, weight_flows
from mfsd.policy.workflow.hold import HOLD_S, Runs, held_for
from mfsd.policy.workflow.margin import MemoryMargin
from mfsd.policy.workflow.preempt import effective_remaining_s, preempts
from mfsd.policy.workflow.profile import ModelProfile, exec_s, kv_bytes, only_memory
from mfsd.policy.workflow.remaining import RemainingTimes, StageKey, intent_bin
from mfsd.policy.workflow.residency import Move, Residence, Residency, TierSpeeds, activation_s

__all__ = [
    "HOLD_S",
    "Action",
    "Candidate",
    "Choice",
    "Degradation",
    "Engine",
    "EngineState",
    "Fitness",
    "MemoryMargin",
    "ModelProfile",
    "Move",
    "RemainingTimes",
    "Residence",
    "Residency",
    "Runs",
    "StageKey",
    "TierSpeeds",
    "WeightFlow",
    "WorkflowConfig",
    "activation_s",
    "effective_remaining_s",
    "exec_s",
    "held_for",
    "intent_bin",
    "kv_bytes",
    "only_memory",
    "plan_degradation",
    "preempts",
    "weight_flows",
]
