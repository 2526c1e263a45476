"""From the host's exact order to the few priorities a fabric has (paper 5, design)."""

from __future__ import annotations

from mfsd.policy.words import Tier


def wire_class(classes: int, tier: Tier, rli: int = 0, level: int = 1) -> int:
    """The class 0..classes-1 (0 highest) that carries a message on the wire, for 2..8 classes.

    classes >= 3: critical last stage 0; early stages 1 + min(RLI, classes - 3); other last stages by level,
    level 2 on class 1 and so on, on classes 1..classes - 2; scavenger classes - 1. What does not fit folds
    into the lowest class of its kind, so the urgent end keeps its resolution. Two classes keep the principle
    itself: what may be deferred (last stage, scavenger) stays below what may not.
    """
    if not 2 <= classes <= 8:
        raise ValueError(f"classes is {classes}: use 2 to 8")
    if tier is Tier.CRITICAL:
        return 0
    if tier is Tier.SCAVENGER:
        return classes - 1
    if classes == 2:
        return 0 if tier is Tier.EARLY else 1
    if tier is Tier.EARLY:
        return 1 + min(max(rli, 0), classes - 3)
    return min(max(level - 1, 1), classes - 2)
