"""Every number of the meta controller, with its range and default."""

from __future__ import annotations

from enum import Enum

import msgspec

from mfsd.policy.serve.config import DAY_S, Policy


class Strategy(str, Enum):
    """How an order is chosen (H-MAS C.2)."""

    RULES = "rules"
    DRIFT = "drift"
    CLASSIFIER = "classifier"
    BANDIT = "bandit"
    LLM = "llm"
    """By a model behind an endpoint; only for live engines."""


POOL = (Policy.SRPF, Policy.TWO_LANE, Policy.HYBRID, Policy.EDF, Policy.SRTF, Policy.WFQ, Policy.FCFS)
"""The default choices. The first one holds until there is evidence for another."""


class MetaConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Numbers of the meta controller. Raises ValueError on construction naming the field, its value and the range."""

    strategy: Strategy = Strategy.RULES
    pool: tuple[Policy, ...] = POOL
    every_s: float = 30.0
    """Time between two decisions."""
    short_s: float = 5.0
    """Window for the guards."""
    long_s: float = 300.0
    """Window for decisions."""
    requests_min: int = 20
    """A window with fewer requests is no evidence."""

    bypass_share: float = 0.9
    """Share of late requests in the short window above which the bypass begins."""
    bypass_after_s: float = 10.0
    """How long that must last before it begins."""
    bypass_max_s: float = 60.0
    """The bypass ends after this time in any case: its order may be what keeps requests late."""
    rollback_ratio: float = 1.2
    """Growth of the late share, or of the 99th percentile of TTFT, that reverts a switch."""
    rollback_within_s: float = 20.0
    rollback_floor: float = 0.05
    """Smaller late shares count as this one. Otherwise one late request after none would revert any switch."""
    barred_s: float = 120.0
    """How long an order is not chosen again after it was reverted."""

    unknown_max: float = 0.5
    """Share of unknown requests above which no order is chosen that goes by expected outputs."""
    late_share: float = 0.05
    """Below this share nothing is wrong and the order stays."""
    overload: float = 1.0
    """Queued seconds over the tightest time limit, from which on more is queued than can be in time."""
    blocking: float = 1.5
    """Late share of short requests over that of long ones, from which on long requests block short ones."""
    unfairness: float = 6.0
    """Largest late share of a tenant over the mean of the others, from which on shares are unfair."""
    confidence: float = 0.002
    """For drift detection: chance of a false alarm."""
    exploration: float = 0.3
    """For the bandit: weight of what is not known yet."""

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not low <= value <= high:  # written so that NaN fails
                raise ValueError(f"{name} is {value}: use {low:g} to {high:g}")
        if not self.pool:
            raise ValueError("pool is empty: name at least one policy")
        if self.short_s > self.long_s:
            raise ValueError(f"short_s is {self.short_s}: use at most long_s, {self.long_s}")


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("every_s", 0.1, DAY_S), ("short_s", 0.1, DAY_S), ("long_s", 0.1, DAY_S), ("requests_min", 1, 1 << 20),
    ("bypass_share", 0, 1), ("bypass_after_s", 0, DAY_S), ("bypass_max_s", 0.1, DAY_S), ("rollback_ratio", 1, 1000),
    ("rollback_within_s", 0, DAY_S), ("rollback_floor", 0, 1), ("barred_s", 0, DAY_S), ("unknown_max", 0, 1),
    ("late_share", 0, 1), ("overload", 0, 1e6), ("blocking", 0, 1e6), ("unfairness", 1, 1e6), ("confidence", 1e-9, 0.5),
    ("exploration", 0, 100),
)  # fmt: skip
