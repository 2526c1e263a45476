"""One or several engines (replicas) that serve requests step by step: prompts in chunks, decodes, KV memory.

    outcome = simulate(ReplicaConfig(serve=ServeConfig(policy=Policy.HYBRID)), calls, seed=1)
    print(row(outcome))

Input: `Call` (one request; an open loop is a list of them) and `Program` (calls that follow one another: a closed
loop), with a `ReplicaConfig` for all replicas or one for each, and a router if there are several. Output: an `Outcome`
with one `Record` per call, from which `row`, `program_row` and `drift_row` compute measures.

Every step is planned exactly as by `mfsd.policy.serve.plan_step`, to the bit. The true time of a step (`cost`) and the
planner's belief (a `Pace` that it learns) are separate. The model and its limits: docs/internals/serving-simulator.md.
"""

from bench.sim.serving.config import Apart, Belief, Eviction, Expect, NodeConfig, ReplicaConfig, StoreConfig
from bench.sim.serving.cost import COSTS, KV_BYTES, KV_TOKENS, Cost, Linear, Roofline
from bench.sim.serving.engine import Control, Snapshot, simulate
from bench.sim.serving.measure import drift_row, is_late, program_row, row, turn_ttft_s
from bench.sim.serving.node import model_name
from bench.sim.serving.outcome import Outcome, Record, StepTotals
from bench.sim.serving.router import Router, by_tier, online, round_robin
from bench.sim.serving.work import Call, Program, chain

__all__ = [
    "COSTS",
    "KV_BYTES",
    "KV_TOKENS",
    "Apart",
    "Belief",
    "Call",
    "Control",
    "Cost",
    "Eviction",
    "Expect",
    "Linear",
    "NodeConfig",
    "Outcome",
    "Program",
    "Record",
    "ReplicaConfig",
    "Roofline",
    "Router",
    "Snapshot",
    "StepTotals",
    "StoreConfig",
    "by_tier",
    "chain",
    "drift_row",
    "is_late",
    "model_name",
    "online",
    "program_row",
    "round_robin",
    "row",
    "simulate",
    "turn_ttft_s",
]
