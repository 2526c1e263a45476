"""Dual regulation (H-MAS 3.4.2, algorithm 2 (C)).

A step's decode tokens follow utilisation at once, concurrency follows its mean. Utilisation is the worse of KV use and
step time over its target. Inside the band nothing moves.
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


def utilisation(config: ServeConfig, kv_used_tokens: int, kv_tokens: int | None, step_s: float | None) -> float:
    used = kv_used_tokens / kv_tokens if kv_tokens else 0.0
    return max(used, step_s / config.step_target_s if step_s is not None else 0.0)


def regulated(config: ServeConfig, before: Regulation, used: float) -> Regulation:
    """e = u - clip(u, band); B -= eta_B e, clipped to its range; N -= eta_N times the mean of the last W errors.

    N only changes once there are W errors, so that only what persists changes concurrency.
    """
    error = used - min(max(used, config.band_low), config.band_high)
    errors = (*before.errors, error)[-config.regulate_window :]
    decode_tokens = _clip(before.decode_tokens - config.decode_tokens_gain * error, config.decode_tokens_min, config)
    requests = before.requests
    if len(errors) == config.regulate_window:
        requests = _clip(requests - config.requests_gain * sum(errors) / len(errors), config.requests_min, config)
    return Regulation(decode_tokens, requests, errors)


def _clip(value: float, least: int, config: ServeConfig) -> float:
    return min(max(value, float(min(least, config.requests_max))), float(config.requests_max))
