"""MLU, by which last stages of variant paper have levels: its thresholds, and itself for explanations (paper 4.3)."""

from __future__ import annotations

import math

from mfsd.policy.config import PolicyConfig
from mfsd.policy.types import NO_DEADLINE, NS_PER_S


def minimal_link_utilization(
    remaining_bytes: int, deadline_ns: int, now_ns: int, effective_rate_bytes_per_s: int
) -> float:
    """MLU(t): the share of the residual rate a request needs to be in time (paper 4.3).

    effective_rate_bytes_per_s is B (1 - rho). Infinite when bytes are left and the deadline has passed.
    For explanations and traces: levels are decided by crossing times, which have no rounding of their own.
    """
    if remaining_bytes <= 0 or deadline_ns == NO_DEADLINE:
        return 0.0
    if now_ns >= deadline_ns:
        return math.inf
    return remaining_bytes * NS_PER_S / ((deadline_ns - now_ns) * effective_rate_bytes_per_s)


def thresholds(config: PolicyConfig) -> tuple[float, ...]:
    """Q_1 > Q_2 > ..., `levels - 1` of them: Q_i = U E^-(i-1) (paper 4.3; the exponent as the design has
    it)."""
    return tuple(config.threshold_top / config.threshold_base**i for i in range(config.levels - 1))
