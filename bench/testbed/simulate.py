"""The same scenario in the simulator: the same requests, places, deadlines and batches, on ideal links."""

from __future__ import annotations

from functools import partial
from typing import Any

from bench.sim import policies
from bench.sim.engine import Simulation
from bench.sim.point import measure
from bench.sim.policies.dscp import DscpBySize
from bench.testbed.marks import marks_of
from bench.testbed.modes import MODES
from bench.testbed.scale import Scale
from bench.testbed.scenario import Scenario, cluster_of, requests_of

POLICIES = {
    "fifo": ("fs", 0),
    "dscp": ("dscp", 0),
    "dscp-size": ("dscp-size", 0),
    "static": ("mfs", 8),
    "paper": ("paper-defaults", 8),
    "mfs": ("mfs", 8),
}
"""Mode -> the simulator's policy and its fabric. Modes that hold nothing at the host share every link; the others wait
in their host queue in front of a fabric of eight classes, with the parameters that their daemons have."""


def not_simulated(scenario: Scenario) -> str:
    """What of the scenario the simulator does not know, or nothing."""
    if scenario.slow_hosts:
        return "all of the simulator's links are as fast; leave out --slow-owner"
    return "" if scenario.lanes else "the simulator's fabric has classes; leave out --no-lanes"


def simulated(scenario: Scenario, scale: Scale, mode: str) -> dict[str, Any]:
    """Figures of a mode as the simulator expects them, in the testbed's seconds."""
    policy, fabric_classes = POLICIES[mode]
    parameters = {name: value for name, value in (MODES[mode].policy or {}).items() if name != "variant"}
    cluster = cluster_of(scenario, fabric_classes, parameters)
    factory: policies.Factory = policies.find(policy)
    if MODES[mode].by_size:
        factory = partial(DscpBySize, marks=marks_of(scenario))
    simulation = Simulation(cluster, requests_of(scenario, cluster), factory)
    simulation.run()
    result = measure(simulation, 0)
    for figure in ("ttft_s", "cct_s", "earliness_s"):
        result[figure] = {name: value * scale.time for name, value in result[figure].items()}
    return {"mode": mode, "rate": scenario.rate, "seed": scenario.seed, **result}
