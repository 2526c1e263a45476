"""Workflows of several models on nodes with little GPU memory: which models stay resident, where stages run, and in
which order jobs are served. mfsd.policy.workflow makes every decision; nodes, times and arrivals are simulated.

Read in this order: models, templates, config, node, policies, simulate, measure. The model and its limits:
docs/internals/workflow.md.
"""

from bench.sim.workflows.config import ClusterConfig
from bench.sim.workflows.measure import row
from bench.sim.workflows.policies import POLICIES
from bench.sim.workflows.simulate import Outcome, simulate
from bench.sim.workflows.templates import Job, Stage, generate, one

__all__ = ["POLICIES", "ClusterConfig", "Job", "Outcome", "Stage", "generate", "one", "row", "simulate"]
