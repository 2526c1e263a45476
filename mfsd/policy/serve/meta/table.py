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
    Regime((0.009, 0.571, 0.0, 0.0), (Policy.SRPF, Policy.TWO_LANE, Policy.HYBRID)),  # gradual
    Regime((0.163, 0.515, 0.005, 0.0), (Policy.SRPF, Policy.TWO_LANE, Policy.HYBRID)),  # gradual
    Regime((0.393, 0.39, 0.078, 0.019), (Policy.SRPF, Policy.WFQ, Policy.HYBRID)),  # gradual
    Regime((0.016, 0.417, 0.0, 0.0), (Policy.SRPF, Policy.TWO_LANE, Policy.HYBRID)),  # mix
    Regime((0.27, 0.386, 0.04, 0.0), (Policy.TWO_LANE, Policy.SRPF, Policy.HYBRID)),  # mix
    Regime((0.321, 0.381, 0.214, 0.011), (Policy.SRPF, Policy.WFQ, Policy.HYBRID)),  # mix
    Regime((0.007, 0.402, 0.0, 0.0), (Policy.SRPF, Policy.TWO_LANE, Policy.HYBRID)),  # both
    Regime((0.433, 0.379, 0.132, 0.001), (Policy.HYBRID, Policy.TWO_LANE, Policy.SRPF)),  # both
    Regime((0.331, 0.386, 0.337, 0.027), (Policy.SRPF, Policy.WFQ, Policy.HYBRID)),  # both
)


def nearest(views: Views, table: tuple[Regime, ...] = TABLE) -> tuple[Policy, ...]:
    """The orders of the nearest regime. Of equally near ones the first counts."""
    here = features(views)
    return min(table, key=lambda regime: math.dist(regime.features, here)).best if table else ()
