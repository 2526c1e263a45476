"""Time of one plan of the request tier (mfsd.policy.serve.plan_step), by policy, with a thousand requests queued and 64
decodes running.

The engine plans while its GPU computes the step before; a plan that takes longer than that stretches the step. The
queue is overloaded: about two in five requests are lost already, the state in which a plan has the most to do.
"""

from __future__ import annotations

import gc
import random
import time
from typing import Any

import msgspec

from mfsd.policy.serve import (
    Observed,
    Pace,
    Policy,
    Relegation,
    Request,
    ServeConfig,
    ServeState,
    StepLoad,
    StepView,
    learn,
    plan_step,
)

SEED = 11
QUEUED = 1000
DECODES = 64
PLANS = 300


def requests(count: int, now_s: float, first: int, chance: random.Random) -> list[Request]:
    """In the order of arrival; prompts of about a thousand tokens, SLOs of 3 to 100 s."""
    found = []
    for number, arrival in enumerate(sorted(now_s - chance.uniform(0, 20) for _ in range(count))):
        ttft = chance.choice((3.0, 6.0, 30.0, 100.0))
        found.append(
            Request(
                request_id=first + number,
                arrival_s=arrival,
                num_prompt_tokens=1 + int(min(16_000, chance.lognormvariate(7, 1))),
                due_s=arrival + ttft,
                ttft_s=ttft,
                tbt_s=0.05,
                tenant=f"tenant-{number % 5}",
                output_tokens=100.0,
            )
        )
    return found


def profile() -> list[Observed]:
    """0.1 ms a prompt token, as an 8B model takes on one A100."""
    return [Observed(StepLoad(n, n, 16, 16_000, n * 500.0), 0.012 + 1e-4 * n) for n in range(64, 8192, 100)]


def plans_ms(config: ServeConfig) -> dict[str, float]:
    chance, now_s = random.Random(SEED), 100.0
    steps = profile()
    state = ServeState(pace=learn(Pace(), steps))
    waiting = requests(QUEUED, now_s, 0, chance)
    running = [
        msgspec.structs.replace(
            r, num_computed_tokens=r.num_prompt_tokens + 5, num_output_tokens=5, first_token_s=now_s - 0.1
        )
        for r in requests(DECODES, now_s, QUEUED, chance)
    ]
    took = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(PLANS):
            view = StepView(
                waiting=tuple(waiting),
                running=tuple(running),
                observed=(steps[5],),
                kv_tokens=2_000_000,
                kv_used_tokens=100_000,
            )
            began = time.thread_time_ns()
            _, state = plan_step(view, state, config, now_s)
            took.append(time.thread_time_ns() - began)
            now_s += 0.001
    finally:
        gc.enable()
    took.sort()
    return {
        "p50": round(took[PLANS // 2] / 1e6, 3),
        "p99": round(took[PLANS * 99 // 100] / 1e6, 3),
        "max": round(took[-1] / 1e6, 3),
    }


def run() -> dict[str, Any]:
    return {
        "queued": QUEUED,
        "decodes": DECODES,
        "plan_cpu_ms": {policy.value: plans_ms(ServeConfig(policy=policy)) for policy in Policy},
        "plan_cpu_ms_with_projection": {
            policy.value: plans_ms(ServeConfig(policy=policy, relegation=Relegation.PROJECTION))
            for policy in (Policy.FIT, Policy.HYBRID)
        },
    }
