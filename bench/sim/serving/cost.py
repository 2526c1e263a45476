"""The true time of a step: QoServe's published line, or a roofline of weights, KV and arithmetic."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from mfsd.policy.serve import Observed, Pace, StepLoad, learn

PROFILED = 400  # steps in a profile
STRETCHES = 256  # of a shared machine: more than a run has


class Batch(NamedTuple):
    """What a step computes."""

    prefill_tokens: int
    decodes: int
    decode_context: int
    """Tokens that all decodes together attend to."""
    prefill_pairs: float
    """Pairs of a prompt token to compute and a token that it attends to."""
    longest_context: int
    """The most tokens that any prompt in the step has computed before it."""
    prefill_context: int
    """The sum of these tokens over all prompts in the step."""


class Linear(msgspec.Struct, frozen=True, tag="linear"):
    """Two linear pieces in (tokens, prefill tokens, decodes, decode context, longest prefill context), split by the
    number of tokens: form and numbers of QoServe's artifact for Llama3-8B on one A100."""

    small: tuple[float, ...] = (0.014936, 5.88e-5, 2.25e-5, 3.63e-5, 1.11e-7, 7.55e-7)
    large: tuple[float, ...] = (0.005, 2.72e-5, 6.86e-5, -4.14e-5, 1.66e-7, 2.73e-6)
    split_tokens: int = 512

    def timer(self) -> Callable[[Batch], float]:
        a, b, split = self.small, self.large, self.split_tokens

        def seconds(batch: Batch) -> float:
            prefill, decodes = batch.prefill_tokens, batch.decodes
            tokens = prefill + decodes
            k = a if tokens <= split else b
            return (
                k[0]
                + k[1] * tokens
                + k[2] * prefill
                + k[3] * decodes
                + k[4] * batch.decode_context
                + k[5] * batch.longest_context
            )

        return seconds


class Roofline(msgspec.Struct, frozen=True, tag="roofline"):
    """The slower of arithmetic and memory, plus a fixed part. A step reads all weights once and the KV of everything it
    attends to. Rates are achieved ones, of all GPUs of the replica together."""

    params: float
    layers: int
    hidden: int
    kv_bytes_per_token: float
    gemm_flops: float
    attention_flops: float
    memory_bytes_per_s: float
    fixed_s: float = 0.004
    bytes_per_param: float = 2.0

    def timer(self) -> Callable[[Batch], float]:
        gemm = 2.0 * self.params / self.gemm_flops
        attention = 4.0 * self.layers * self.hidden / self.attention_flops
        weights_s = self.params * self.bytes_per_param / self.memory_bytes_per_s
        kv_s = self.kv_bytes_per_token / self.memory_bytes_per_s
        fixed = self.fixed_s

        def seconds(batch: Batch) -> float:
            tokens = batch.prefill_tokens + batch.decodes
            dense = max(weights_s, tokens * gemm)
            prompts = max(batch.prefill_pairs * attention, batch.prefill_context * kv_s)
            return fixed + dense + prompts + batch.decode_context * kv_s

        return seconds


class Fitted(msgspec.Struct, frozen=True, tag="fitted"):
    """Measured steps: the line through their times, each weighted by its relative error, and scaled so that the sum of
    all times is as measured."""

    pace: Pace
    scale: float = 1.0
    levels: tuple[tuple[int, float], ...] = ()
    """Pairs of the prompt tokens computed before a step with more, and its time over the line's: a machine with other
    work is slower at times. Empty: always the same speed."""

    def timer(self) -> Callable[[Batch], float]:
        pace, scale, levels, done = self.pace, self.scale, self.levels, 0

        def seconds(batch: Batch) -> float:
            nonlocal done
            tokens, level = batch.prefill_tokens, 1.0
            if levels and tokens:
                level = levels[max(0, bisect_right(levels, (done, math.inf)) - 1)][1]
                done += tokens
            load = StepLoad(tokens, tokens, batch.decodes, batch.decode_context, batch.prefill_pairs)
            return scale * level * pace.step_s(load)

        return seconds


def fitted(observed: Sequence[Observed], varying: bool = False) -> Fitted:
    """Fits at least one observed step. varying: as slow at each point of the work as the machine was there."""
    pace = learn(Pace(), observed)
    scale = sum(o.seconds for o in observed) / sum(pace.step_s(o.load) for o in observed)
    levels, done = [], 0
    for step in observed if varying else ():
        if step.load.prefill_tokens:
            levels.append((done, step.seconds / (scale * pace.step_s(step.load))))
            done += step.load.prefill_tokens
    return Fitted(pace, scale, tuple(levels))


def shared(cost: Linear, slower: float, every_tokens: int) -> Fitted:
    """Returns the cost on a machine that has other work half of the time: in every second stretch of `every_tokens`
    prompt tokens steps take `slower` times as long."""
    levels = tuple((n * every_tokens, slower if n % 2 else 1.0) for n in range(STRETCHES))
    return Fitted(profile(cost, 4096, 1.0, 0.0, 0), 1.0, levels)


Cost = Linear | Roofline | Fitted


def profile(cost: Cost, step_tokens: int, bias: float, noise: float, seed: int) -> Pace:
    """Returns what an engine learned offline: times of batches of every size, wrong by `bias` and noise."""
    chance, seconds = random.Random(f"profile {seed}"), cost.timer()
    observed = []
    for _ in range(PROFILED):
        decodes = chance.choice((0, 1, 4, 16, 32, 64, 128))
        context = decodes * chance.randrange(100, 6000)
        tokens = int(step_tokens * 2 ** chance.uniform(-8, 0)) if decodes == 0 or chance.random() < 0.8 else 0
        before = chance.choice((0, 0, 0, 500, 2000, 6000))
        pairs = tokens * (before + tokens / 2)
        took = seconds(Batch(tokens, decodes, context, pairs, before, before if tokens else 0))
        load = StepLoad(tokens, tokens, decodes, context, pairs)
        observed.append(Observed(load, took * bias * chance.lognormvariate(0.0, noise)))
    return learn(Pace(), observed)


COSTS: dict[str, Cost] = {
    "llama3-8b-a100": Linear(),
    "llama3-8b-a100-shared": shared(Linear(), 1.5, 4_000_000),
    "llama3-8b-a100-roofline": Roofline(8.0e9, 32, 4096, 131_072, 235e12, 180e12, 1.5e12),
    "qwen-7b-2xa100": Roofline(7.7e9, 32, 4096, 524_288, 400e12, 320e12, 2.9e12, 0.006),
    "llama3-70b-4xh100": Roofline(70.6e9, 80, 8192, 327_680, 2.3e15, 1.9e15, 9.5e12, 0.010),
}
"""By model and accelerator; rates as in bench.sim.profile, less the time of all-reduces."""

WEIGHTS_BYTES: dict[str, int] = {
    "llama3-8b-a100": 16_000_000_000,
    "llama3-8b-a100-shared": 16_000_000_000,
    "llama3-8b-a100-roofline": 16_000_000_000,
    "qwen-7b-2xa100": 15_400_000_000,
    "llama3-70b-4xh100": 141_200_000_000,
}

KV_BYTES: dict[str, int] = {
    "llama3-8b-a100": 131_072,
    "llama3-8b-a100-shared": 131_072,
    "llama3-8b-a100-roofline": 131_072,
    "qwen-7b-2xa100": 524_288,
    "llama3-70b-4xh100": 327_680,
}
"""Of a token, in all layers."""

KV_TOKENS: dict[str, int] = {
    "llama3-8b-a100": 400_000,
    "llama3-8b-a100-shared": 400_000,
    "llama3-8b-a100-roofline": 400_000,
    "qwen-7b-2xa100": 240_000,
    "llama3-70b-4xh100": 450_000,
}
"""KV memory beside the weights, at 90 % of the GPUs' memory."""
