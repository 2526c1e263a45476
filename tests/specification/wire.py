"""From the host's exact order to the few priorities a fabric has (paper 5, design, docs/simulation.md)."""

from __future__ import annotations

from typing import Final

from mfsd.policy.config import Variant
from mfsd.policy.types import Tier

NEAR_CLASSES: Final = 6
"""A fabric with fewer has no class to spare for last stages that are near; one with more has several for loads."""


def wire_class(
    classes: int,
    tier: Tier,
    rli: int = 0,
    level: int = 1,
    *,
    reuse: bool = False,
    near: bool = False,
    variant: Variant = Variant.MFS,
) -> int:
    """The class 0..classes-1 (0 highest) that carries a message on the wire, for 2..8 classes.

    Variant mfs: critical last stage 0; collectives and control alone on 1; `reuse` (stage 1) on
    2 + min(RLI, classes - 6), of which loads without a batch tell their `load_step` in place of RLI; last stages that
    are not critical below all early stages, those that are `near` on classes - 3, the others on classes - 2; scavenger
    classes - 1. Five classes: near ones join the others. Four: reuse joins collectives. Three: so does class 0, since
    what may be deferred must stay below what may not. Two: what may be deferred shares one class.
    Variant paper: early stages 1 + min(RLI, classes - 3); other last stages by level, level 2 on class 1 and
    so on, on classes 1..classes - 2. What does not fit folds into the lowest class of its kind.
    """
    if not 2 <= classes <= 8:
        raise ValueError(f"classes is {classes}: use 2 to 8")
    if tier is Tier.CRITICAL:
        return 0
    if tier is Tier.SCAVENGER:
        return classes - 1
    if classes == 2:
        return 0 if tier is Tier.EARLY else 1
    if variant is Variant.PAPER:
        if tier is Tier.EARLY:
            return 1 + min(max(rli, 0), classes - 3)
        return min(max(level - 1, 1), classes - 2)
    spare = classes >= NEAR_CLASSES
    if tier is Tier.LAST:
        return classes - (3 if near and spare else 2)
    collectives = 0 if classes == 3 else 1
    if not reuse or classes < 5:
        return collectives
    return 2 + min(max(rli, 0), classes - (6 if spare else 5))
