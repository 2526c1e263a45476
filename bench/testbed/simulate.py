"""The same scenario in the simulator: the same requests, places, deadlines and batches, on ideal links."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from bench.sim import policies, serve
from bench.sim.engine import Simulation
from bench.sim.point import measure
from bench.sim.policies.dscp import DscpBySize
from bench.sim.reuse import ReuseConfig
from bench.testbed.daemons import MAX_HOLD_S
from bench.testbed.marks import marks_of
from bench.testbed.modes import Mode
from bench.testbed.placement import AGE_NS
from bench.testbed.scale import Scale
from bench.testbed.scenario import Scenario, cluster_of, requests_of

POLICIES = {
    "fifo": ("fs", 0),
    "dscp": ("dscp", 0),
    "dscp-size": ("dscp-size", 0),
    "static": ("mfs", 8),
    "paper": ("paper", 8),
    "paper-defaults": ("paper-defaults", 8),
    "mfs": ("mfs", 8),
    "exact": ("mfs", 0),
    "nocont": ("nocont", 0),
}
"""Mode -> the simulator's policy and its fabric. Modes that hold nothing at the host share every link. The others wait
in their host queue in front of a fabric of eight classes, with the parameters of their daemons. Two exist only in the
simulator: `mfs` with the exact order on every link, and no contention at all."""


OUTLOOK_AGE_S = 0.01
"""Age of a daemon's page about other nodes' ports, in the cluster's time: reports are at most 20 ms apart, and times
are stretched by two."""
LINES_AGE_NS = 120_000_000
"""Mean age of the coordinator's latest line when a request was placed, over ten legs (`age_ms`)."""


def not_simulated(scenario: Scenario) -> str:
    """Returns what of the scenario the simulator does not model, or nothing."""
    if scenario.slow_hosts:
        return "all of the simulator's links are as fast; leave out --slow-owner"
    return "" if scenario.lanes else "the simulator's fabric has classes; leave out --no-lanes"


def simulation_of(scenario: Scenario, scale: Scale, mode: Mode) -> Simulation:
    """Simulates a mode to the end."""
    policy, fabric_classes = POLICIES[mode.name.partition("+")[0]]
    parameters = {name: value for name, value in (mode.policy or {}).items() if name != "variant"}
    max_hold_s = MAX_HOLD_S / scale.time if fabric_classes else None
    cluster = cluster_of(scenario, fabric_classes, parameters, max_hold_s)
    factory: policies.Factory = policies.find(policy)
    if mode.by_size:
        factory = partial(DscpBySize, marks=marks_of(scenario))
    scheduler = None if mode.scheduler == "fcfs" else serve.scheduler(mode.scheduler, cluster)
    reuse = ReuseConfig(rule=mode.reuse, outlook="coordinator", age_s=OUTLOOK_AGE_S)
    if mode.by_backlog:  # one age for all that is known: the older one
        age_s = (LINES_AGE_NS + AGE_NS) / 1e9 / scale.time
        reuse = msgspec.structs.replace(reuse, placement="backlog", age_s=age_s)
    simulation = Simulation(cluster, requests_of(scenario, cluster), factory, scheduler, reuse)
    simulation.run()
    return simulation


def simulated(scenario: Scenario, scale: Scale, mode: Mode) -> dict[str, Any]:
    """Returns the figures that the simulator expects of a mode, in the testbed's seconds."""
    simulation = simulation_of(scenario, scale, mode)
    result = measure(simulation, 0)
    for figure in ("ttft_s", "cct_s", "earliness_s"):
        result[figure] = {name: value * scale.time for name, value in result[figure].items()}
    if simulation.reuse is not None:
        result["recomputed"] = simulation.reuse.recomputed
        for name, pairs in (("loads", simulation.reuse.loads), ("loads_asked", simulation.reuse.asked)):
            result[name] = [[round(s * scale.time, 4) for s in pair] for pair in pairs]
    return {"mode": mode.name, "rate": scenario.rate, "seed": scenario.seed, **result}
