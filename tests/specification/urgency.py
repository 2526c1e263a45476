"""How urgent a flow is: RLI for early stages, MLU and its levels for the last stage (paper 4.3, 4.4.1)."""

from __future__ import annotations

import math

from mfsd.policy.types import NO_DEADLINE


def relative_layer_index(layer_target: int, layer_current: int) -> int:
    """RLI = L_target - L_curr (paper 4.4.1), never below 0: what is overdue is as urgent as what is due."""
    return max(0, layer_target - layer_current)


def effective_rate_bytes_per_s(rate_bytes_per_s: int, rho: float, rho_max: float) -> int:
    """B (1 - rho), what load leaves of a port (paper 4.3), rounded down, at least 1.

    rho is clipped to 0..rho_max; a load that is not a number counts as none.
    """
    clipped = min(rho, rho_max) if rho > 0.0 else 0.0
    return max(1, math.floor(rate_bytes_per_s * (1.0 - clipped)))


def crossing_ns(remaining_bytes: int, deadline_ns: int, effective_rate_bytes_per_s: int, threshold: float) -> int:
    """The first nanosecond at which MLU reaches `threshold` if no byte is served until then (closed form).

    MLU(t) = Q  <=>  t = D - bytes / (Q B (1 - rho)). Exact rule, for other implementations: the lead
    floor((bytes * 1e9) / (rate * Q)) in IEEE doubles, bytes and rate converted first; then D - lead.
    Without a deadline: NO_DEADLINE. May be in the past, even negative.
    """
    if deadline_ns == NO_DEADLINE:
        return NO_DEADLINE
    return deadline_ns - math.floor(float(remaining_bytes) * 1e9 / (float(effective_rate_bytes_per_s) * threshold))


def level_at(
    now_ns: int,
    remaining_bytes: int,
    deadline_ns: int,
    effective_rate_bytes_per_s: int,
    falling_thresholds: tuple[float, ...],
) -> int:
    """The level by MLU alone: 1 when MLU >= Q_1, i + 1 when Q_{i+1} <= MLU < Q_i, the last below all
    (design).

    falling_thresholds are Q_1 > Q_2 > ...; the result is 1..len(falling_thresholds) + 1.
    """
    for i, threshold in enumerate(falling_thresholds):
        if now_ns >= crossing_ns(remaining_bytes, deadline_ns, effective_rate_bytes_per_s, threshold):
            return i + 1
    return len(falling_thresholds) + 1
