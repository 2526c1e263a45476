"""Every number that the rules of workflows depend on, with its range and default (Maestro's where it names one)."""

from __future__ import annotations

import msgspec


class WorkflowConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Raises ValueError on construction naming the field, its value and what is allowed."""

    margin_quantile: float = 0.95
    """Share of the latest stages whose KV memory stays within the margin."""
    margin_window: int = 512
    margin_min: float = 0.05
    margin_max: float = 1.0
    """Also the margin while too few stages have ended for the quantile."""

    ready_weight: float = 1.0
    """Lambda of Eq 5."""
    disruption_weight: float = 1.0
    """Mu of Eq 5."""
    network_share: float = 0.25
    """Gamma: share of the network in the affinity. The rest is how well the KV memory fits."""
    network_share_interactive: float = 0.5
    normalise_window: int = 256
    """Candidates over which each measure is normalised."""
    normalise_low: float = 0.05
    normalise_high: float = 0.95

    profile_window: int = 64
    """For each key: the number of latest ends of which the median remaining time is taken."""
    profile_least: int = 5
    """With fewer ends a coarser key is asked."""
    intent_bins: int = 4

    preempt_gain: float = 0.2
    """A job gives way at a stage's end if it is behind another by more than this share of its own remaining time."""
    preempt_cooldown_s: float = 5.0
    aging_s: float = 60.0
    """Waiting time that counts as one second less of remaining time. 0: no aging. A smaller value lets what has waited
    go before what is short as soon as the queue is longer than a few minutes."""

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not low <= value <= high:  # written so that NaN fails
                raise ValueError(f"{name} is {value}: use {low:g} to {high:g}")
        for lower, upper in (("margin_min", "margin_max"), ("normalise_low", "normalise_high")):
            if getattr(self, lower) > getattr(self, upper):
                raise ValueError(f"{lower} is {getattr(self, lower)}: use at most {upper}, {getattr(self, upper)}")


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("margin_quantile", 0.5, 0.999), ("margin_window", 1, 1 << 16), ("margin_min", 0, 10), ("margin_max", 0, 10),
    ("ready_weight", 0, 1000), ("disruption_weight", 0, 1000), ("network_share", 0, 1),
    ("network_share_interactive", 0, 1), ("normalise_window", 2, 1 << 16), ("normalise_low", 0, 1),
    ("normalise_high", 0, 1), ("profile_window", 1, 1 << 16), ("profile_least", 1, 1 << 16), ("intent_bins", 1, 64),
    ("preempt_gain", 0, 1), ("preempt_cooldown_s", 0, 86_400), ("aging_s", 0, 86_400),
)  # fmt: skip
