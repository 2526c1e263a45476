"""A stored table of which order was best in which regime. The nearest regime decides.

`drift` asks when the load has changed, `classifier` at every decision. The regimes are those of simulated slices on
seeds kept for this (docs/meta.md says how the table is made).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from mfsd.policy.serve.config import Policy
from mfsd.policy.serve.meta.view import Views


class Regime(NamedTuple):
    features: tuple[float, ...]
    best: tuple[Policy, ...]
    """Best first."""


def features(views: Views) -> tuple[float, ...]:
    """Queue, mix of lengths, share of late requests, share with late tokens; each 0 to 1, whatever the engine's
    speed."""
    long = views.long
    return (_bounded(views.load), _bounded(long.service_cv), long.late_share, long.late_tokens_share)


def _bounded(value: float) -> float:
    return value / (1.0 + value)


TABLE: Final[tuple[Regime, ...]] = (
    Regime((0.01, 0.571, 0.0, 0.001), (Policy.FCFS, Policy.TWO_LANE, Policy.HYBRID)),  # gradual
    Regime((0.135, 0.515, 0.003, 0.022), (Policy.HYBRID, Policy.WFQ, Policy.TWO_LANE)),  # gradual
    Regime((0.424, 0.391, 0.083, 0.058), (Policy.TWO_LANE, Policy.HYBRID, Policy.SRPF)),  # gradual
    Regime((0.017, 0.417, 0.0, 0.006), (Policy.HYBRID, Policy.SRPF, Policy.EDF)),  # mix
    Regime((0.304, 0.378, 0.074, 0.004), (Policy.SRPF, Policy.FCFS, Policy.TWO_LANE)),  # mix
    Regime((0.384, 0.39, 0.335, 0.004), (Policy.FCFS, Policy.WFQ, Policy.SRPF)),  # mix
    Regime((0.007, 0.402, 0.0, 0.0), (Policy.TWO_LANE, Policy.HYBRID, Policy.SRPF)),  # both
    Regime((0.473, 0.385, 0.127, 0.001), (Policy.TWO_LANE, Policy.HYBRID, Policy.SRPF)),  # both
    Regime((0.381, 0.387, 0.377, 0.001), (Policy.WFQ, Policy.HYBRID, Policy.SRTF)),  # both
)


def nearest(views: Views, table: tuple[Regime, ...] = TABLE) -> tuple[Policy, ...]:
    """The orders of the nearest regime. Of equally near ones the first counts."""
    here = features(views)
    return min(table, key=lambda regime: math.dist(regime.features, here)).best if table else ()
