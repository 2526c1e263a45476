"""The cluster that workflows run on."""

from __future__ import annotations

import msgspec

from bench.sim.workflows.models import GB, USABLE_BYTES
from mfsd.policy.workflow import TierSpeeds, WorkflowConfig


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True):
    nodes: int = 4
    """Number of nodes with one GPU each."""
    remote_nodes: int = 0
    """How many of them, the last ones, are in another region."""
    local_rtt_s: float = 0.0005
    remote_rtt_s: float = 0.04
    gpu_bytes: int = USABLE_BYTES
    host_bytes: int = 64 * GB
    disk_bytes: int = 1000 * GB
    slots: int = 8
    """Stages that run on a node at once."""
    slowdown: float = 0.08
    """Share by which each stage that runs beside a stage makes it longer (dynamic batching)."""
    speeds: TierSpeeds = TierSpeeds(start_s=30.0)
    rules: WorkflowConfig = WorkflowConfig()
    skips: int = 16
    """Stages that no node can take that are skipped before the dispatch ends."""
