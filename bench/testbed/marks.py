"""Mode dscp-size: classes by stage and size, with limits that were known before the requests.

An operator takes the limits of another day. Here they are quantiles of the planning seeds' requests, which no run of
the testbed serves.
"""

from __future__ import annotations

import msgspec

from bench.sim.cluster import Cluster, Request
from bench.sim.policies.dscp import by_size, last_stage_bytes, load_bytes
from bench.testbed.batches import ClassesOf
from bench.testbed.modes import CLASSES, Mode
from bench.testbed.scenario import Scenario, cluster_of, requests_of
from mfsd.policy.marks import Marks
from mfsd.policy.types import Stage

PLANNING_SEEDS = range(1001, 1011)
"""Seeds on which the scenario, its bars and these limits are fixed, in the simulator alone; the testbed is run on
others."""


def marks_of(scenario: Scenario) -> Marks:
    """Returns the classes of the scenario's transfers, as every sender of the testbed and of the simulator marks
    them."""
    rounds = [msgspec.structs.replace(scenario, seed=seed) for seed in PLANNING_SEEDS]
    clusters = [cluster_of(one) for one in rounds]
    return by_size(CLASSES, ((c, r) for one, c in zip(rounds, clusters, strict=True) for r in requests_of(one, c)))


def classes_of(mode: Mode, scenario: Scenario, cluster: Cluster) -> ClassesOf:
    """Returns the classes of a request's load and of its last stage in a mode that schedules nothing."""
    if not mode.by_size:
        return lambda _: (mode.reuse_class, mode.p2d_class)
    marks = marks_of(scenario)
    return lambda request: _classes(marks, cluster, request)


def _classes(marks: Marks, cluster: Cluster, request: Request) -> tuple[int, int]:
    return (
        marks.wire_class(Stage.REUSE, round(load_bytes(cluster, request))),
        marks.wire_class(Stage.P2D, round(last_stage_bytes(cluster, request))),
    )
