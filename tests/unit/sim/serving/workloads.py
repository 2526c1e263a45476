"""Small workloads for the tests of the serving simulator."""

from __future__ import annotations

import random

from bench.sim.serving import Call, Program
from mfsd.policy.serve import Policy, Preemption, Relegation, ServeConfig


def calls(count: int, qps: float, seed: int = 1, prompt: int = 1500, output: int = 20) -> list[Call]:
    """Poisson arrivals of three tiers in turn."""
    chance, at, made = random.Random(seed), 0.0, []
    for number in range(count):
        at += chance.expovariate(qps)
        ttft_s, tbt_s, ttlt_s = ((2.0, 0.05, None), (None, None, 20.0), (None, None, 60.0))[number % 3]
        made.append(
            Call(
                prompt_tokens=1 + int(chance.expovariate(1 / prompt)),
                output_tokens=1 + int(chance.expovariate(1 / output)),
                arrival_s=at,
                tier=f"q{number % 3 + 1}",
                importance=chance.randint(0, 1),
                ttft_s=ttft_s,
                tbt_s=tbt_s,
                ttlt_s=ttlt_s,
            )
        )
    return made


def programs(count: int, qps: float, seed: int = 1) -> list[Program]:
    """Chats of up to six turns; each third fans out into three calls and joins them."""
    chance, at, made = random.Random(seed), 0.0, []
    for number in range(count):
        at += chance.expovariate(qps)
        turns, context = [], 0
        for turn in range(chance.randint(1, 6)):
            after: tuple[int, ...] = (turn - 1,) if turn else ()
            if number % 3 == 0 and turn > 1:
                after = (0,) if turn < 5 else (2, 3, 4)
            new, output = chance.randint(1, 800), chance.randint(1, 60)
            turns.append(
                Call(
                    prompt_tokens=context + new,
                    output_tokens=output,
                    prefix_tokens=context,
                    shared="system",
                    shared_tokens=min(context + new, 100),
                    after=after,
                    gap_s=chance.choice((0.0, 0.5)),
                )
            )
            context += new + output
        made.append(Program(arrival_s=at, calls=tuple(turns)))
    return made


def fixed(policy: Policy, chunk: int = 256) -> ServeConfig:
    """As Sarathi serves: so many tokens a step, decodes included."""
    return ServeConfig(
        policy=policy,
        step_tokens=chunk,
        chunk_min=chunk,
        chunk_max=chunk,
        relegation=Relegation.NONE,
        preemption=Preemption.ALWAYS,
    )
