"""Dual regulation (H-MAS 3.4.2, algorithm 2 (C)).

A step's decode tokens follow its time at once; concurrency follows the mean of the worse of KV use and step time. Each
is over its target, and inside the band nothing moves.

In the paper decode tokens follow KV use, too. But a decode that pauses keeps its memory: where little was free, all but
the minimum paused, and freed none (docs/requests.md).
"""

from __future__ import annotations

import msgspec

from mfsd.policy.serve.config import ServeConfig


class Regulation(msgspec.Struct, frozen=True):
    """decode_tokens and requests: the two caps. errors: those of the latest steps, oldest first."""

    decode_tokens: float
    requests: float
    errors: tuple[float, ...] = ()


def initial(config: ServeConfig) -> Regulation:
    return Regulation(float(config.requests_max), float(config.requests_max))


def regulated(config: ServeConfig, before: Regulation, kv_share: float, step_s: float) -> Regulation:
    """e = u - clip(u, band); B -= eta_B e, clipped to its range; N -= eta_N times the mean of the last W errors.

    kv_share: of the memory, in use. step_s: time of the latest step; 0 before the first. N only changes once there are
    W errors, so that only what persists changes concurrency.
    """
    step = step_s / config.step_target_s
    errors = (*before.errors, _error(config, max(kv_share, step)))[-config.regulate_window :]
    moved = config.decode_tokens_gain * _error(config, step)
    decode_tokens = _clip(before.decode_tokens - moved, config.decode_tokens_min, config)
    requests = before.requests
    if len(errors) == config.regulate_window:
        requests = _clip(requests - config.requests_gain * sum(errors) / len(errors), config.requests_min, config)
    return Regulation(decode_tokens, requests, errors)


def _error(config: ServeConfig, used: float) -> float:
    return used - min(max(used, config.band_low), config.band_high)


def _clip(value: float, least: int, config: ServeConfig) -> float:
    return min(max(value, float(min(least, config.requests_max))), float(config.requests_max))
