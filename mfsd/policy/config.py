"""Every number the policy depends on, with its range."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, Final

import msgspec

from mfsd import _native


class Variant(str, Enum):
    """Which rules arbitrate."""

    MFS = "mfs"
    """The default: critical by laxity, and only at the cost of those who can afford it."""
    PAPER = "paper"
    """The paper's rules as written."""


class EarlyOrder(str, Enum):
    """How early-stage flows are ordered in variant mfs; the paper's is by rank (docs/simulation.md compares)."""

    RANK = "rank"
    """RLI, then the batch's rank, then stage 2 before stage 1 (paper 4.5)."""
    COLLECTIVE_FIRST = "collective-first"
    """Every stage 2 before every stage 1; stage 1 by RLI, then rank."""
    SHORTEST = "shortest"
    """RLI, then the power of two of all that the batch waits for on this port (the shortest remaining time), then
    its rank."""


_NATIVE: Final[Any] = _native.Policy()
"""The defaults. They and the limits come from the native core (MFS_POLICY_PARAMETERS in csrc/include/mfs/policy.h).
What the core does not have is stated here."""


class PolicyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of the policy. The same values serve the daemon, the coordinator and the simulator.

    Raises ValueError on construction (msgspec.ValidationError with the field's path when decoded) naming
    the field, its value and what is allowed.
    """

    variant: Variant = tuple(Variant)[_NATIVE.variant]
    classes: int = _NATIVE.classes
    """K: priorities on the wire, 2..8; 0 is highest."""
    levels: int = _NATIVE.levels
    """Variant paper: levels of last-stage flows in the host's queue, 2..8 (paper: P_1..P_K)."""
    threshold_base: float = _native.THRESHOLD_BASE
    """Variant paper: E > 1, the ratio of neighbouring thresholds (paper 4.3)."""
    threshold_top: float = _native.THRESHOLD_TOP
    """Variant paper: U in (0, 1], Q_1, the MLU from which a flow is at level 1 (paper 4.3)."""
    rho_max: float = _NATIVE.rho_max
    """Variant paper: the measured load is clipped to this, 0 <= rho_max < 1, so that MLU stays finite."""
    load_time_constant_ns: int = _native.LOAD_TIME_CONSTANT_NS
    """Time constant of the moving average that measures load."""
    promotion_interval_ns: int = _NATIVE.promotion_interval_ns
    """How often a last-stage flow whose compute has ended is evaluated (paper 4.5)."""
    critical_laxity_share: float = _NATIVE.critical_laxity_share
    """Variant mfs: a last stage is critical, and goes with the shortest loads, below a laxity of this share of its
    request's budget; 0: none is."""
    soon_ns: int = _NATIVE.soon_ns
    """Variant mfs: last stages that are due within this travel a class above the others, those due within a tenth of it
    two classes above; 0: all in one class."""
    short_load_ns: int = _NATIVE.short_load_ns
    """Variant mfs: loads that take the port up to a quarter of this travel in the first class of loads, up to this in
    the second, up to four times this in the third, others with last stages that are due within `soon`: what is fetched
    by all of the load, what is sent by its rest; 0: all in the third."""
    early_order: EarlyOrder = tuple(EarlyOrder)[_NATIVE.early_order]
    """Variant mfs: who goes first among early-stage flows of equal RLI."""
    drop_budget: float = 0.05
    """Share of active requests that may be pruned at once (paper: B); 0 turns pruning off."""
    readmission_margin: float = _NATIVE.readmission_margin
    """Share of the remaining budget that must be to spare before a request leaves the scavenger."""

    def __post_init__(self) -> None:
        for name, parameter in _native.POLICY_PARAMETERS.items():
            if not isinstance(value := getattr(self, name), Enum):
                _within(name, value, parameter.least, parameter.most)
        if self.variant is Variant.PAPER and self.levels < 2:
            raise ValueError(
                f"levels is {self.levels}: use 2 to 8, since variant 'paper' reserves class 0 for level 1 "
                "and needs a level below it"
            )
        if not (1.0 < self.threshold_base < math.inf):
            raise ValueError(f"threshold_base is {self.threshold_base}: use a number above 1, such as 4")
        if not (0.0 < self.threshold_top <= 1.0):
            raise ValueError(
                f"threshold_top is {self.threshold_top}: use a number above 0 and up to 1 "
                "(an MLU above 1 cannot be met)"
            )
        if not (0.0 <= self.rho_max < 1.0):
            raise ValueError(f"rho_max is {self.rho_max}: use at least 0 and below 1")
        _within("load_time_constant_ns", self.load_time_constant_ns, 1, 3_600_000_000_000)
        _within("drop_budget", self.drop_budget, 0.0, 1.0)


def _within(field: str, value: float, low: float, high: float) -> None:
    if not (low <= value <= high):  # written so that NaN fails
        raise ValueError(f"{field} is {value}: use {low} to {high}")
