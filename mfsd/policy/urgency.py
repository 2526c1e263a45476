"""MLU and its thresholds, which give last stages their levels in variant paper (paper 4.3)."""

from __future__ import annotations

import math

from mfsd.policy.config import PolicyConfig
from mfsd.policy.types import NO_DEADLINE, NS_PER_S


def minimal_link_utilization(
    remaining_bytes: int, deadline_ns: int, now_ns: int, effective_rate_bytes_per_s: int
) -> float:
    """MLU(t): the share of the residual rate that a request needs to be in time (paper 4.3).

    `effective_rate_bytes_per_s` is B (1 - rho). Infinite when bytes are left and the deadline has passed. Only for
    explanations and traces: levels are decided by crossing times, which have no rounding of their own.
    """
    if remaining_bytes <= 0 or deadline_ns == NO_DEADLINE:
        return 0.0
    if now_ns >= deadline_ns:
        return math.inf
    return remaining_bytes * NS_PER_S / ((deadline_ns - now_ns) * effective_rate_bytes_per_s)


def thresholds(config: PolicyConfig) -> tuple[float, ...]:
    """The `levels - 1` thresholds Q_1 > Q_2 > ...: Q_i = U E^-(i-1) (paper 4.3; exponent as in the design)."""
    return tuple(config.threshold_top / config.threshold_base**i for i in range(config.levels - 1))
