"""How many prompt tokens a step takes: the most whose time fits the least slack of a decode (QoServe 3.3, 3.6.1)."""

from __future__ import annotations

from collections.abc import Callable

from mfsd.policy.serve.config import ServeConfig


def chunk_tokens(
    config: ServeConfig,
    room_tokens: int,
    slack_s: float | None,
    free_kv_tokens: int | None,
    step_s: Callable[[int], float],
) -> int:
    """The largest chunk whose step ends within `slack_s`, by bisection over blocks.

    Never below chunk_min, or prompts would starve behind decodes that are late already. `slack_s` None: no decode has a
    deadline. `step_s` estimates a step with so many prompt tokens; it must not fall with their number.
    """
    most = min(room_tokens, config.chunk_max)
    if free_kv_tokens is not None and free_kv_tokens < config.kv_tight_tokens:
        most = min(most, config.chunk_tight)
    least = min(config.chunk_min, most)
    if slack_s is None or most <= least or step_s(most) <= slack_s:
        return max(0, most)
    block = config.chunk_block
    low, high = 0, (most - least + block - 1) // block
    while high - low > 1:  # `largest`, inlined to save the calls
        middle = (low + high) // 2
        if step_s(least + middle * block) <= slack_s:
            low = middle
        else:
            high = middle
    return least + low * block


def largest(least: int, most: int, block: int, fits: Callable[[int], bool]) -> int:
    """`least` plus as many blocks as fit. `most` itself must not fit."""
    low, high = 0, (most - least + block - 1) // block
    while high - low > 1:
        middle = (low + high) // 2
        if fits(least + middle * block):
            low = middle
        else:
            high = middle
    return least + low * block
