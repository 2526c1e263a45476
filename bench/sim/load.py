"""The measured load of a port, as csrc/arbiter/load.c measures it for variant paper."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from mfsd.policy import PolicyConfig
from mfsd.policy.types import NS_PER_S


class Load(msgspec.Struct, frozen=True):
    """Measured load rho of one port: an exponential moving average, as a share of its rate (design)."""

    rho: float = 0.0

    def observe(self, served_bytes: int, elapsed_ns: int, rate_bytes_per_s: int, config: PolicyConfig) -> Load:
        """Returns the load after `served_bytes` that count (`counts_as_load`) left in the last `elapsed_ns`.

        An interval of length 0 changes nothing: its bytes belong in the next call. One long interval and several short
        ones at the same rate give the same result, so the time between readings does not matter.
        """
        if elapsed_ns <= 0:
            return self
        share = served_bytes * NS_PER_S / (rate_bytes_per_s * elapsed_ns)
        weight = -math.expm1(-elapsed_ns / config.load_time_constant_ns)
        return Load(self.rho + weight * (share - self.rho))


def bottleneck_rho(loads: Iterable[Load]) -> float:
    """Returns the rho of a flow over several ports: that of the busiest (design). 0 without ports."""
    return max((load.rho for load in loads), default=0.0)
