"""From the host's exact order to the few priorities a fabric has (paper 5, design, docs/simulation.md)."""

from __future__ import annotations

from typing import Final

from mfsd.policy.config import Variant
from mfsd.policy.types import Tier

LOADS: Final = {
    2: (0, 0, 0, 0),
    3: (0, 0, 0, 0),
    4: (1, 1, 1, 2),
    5: (1, 1, 1, 2),
    6: (1, 2, 2, 3),
    7: (1, 2, 2, 4),
    8: (1, 2, 3, 5),
}
"""Variant mfs, of each number of classes: those of loads, by how long what is left takes the port."""
LAST: Final = {
    2: (1, 1, 1),
    3: (1, 1, 1),
    4: (2, 2, 2),
    5: (2, 2, 3),
    6: (3, 3, 4),
    7: (3, 4, 5),
    8: (4, 5, 6),
}
"""Those of last stages that are not critical, by when they are due."""


def wire_class(
    classes: int,
    tier: Tier,
    rli: int = 0,
    level: int = 1,
    *,
    reuse: bool = False,
    load_step: int | None = None,
    due_step: int = 2,
    variant: Variant = Variant.MFS,
) -> int:
    """The class 0..classes-1 (0 highest) that carries a message on the wire, for 2..8 classes.

    Variant mfs: collectives and control 0; `reuse` (stage 1) by `load_step`, or where that is not known by its RLI, but
    not in the class that only the longest loads have; critical last stages with the shortest loads; other last stages
    by `due_step`; scavenger classes - 1.
    Variant paper: critical last stages 0; early stages 1 + min(RLI, classes - 3); other last stages by level, level 2
    on class 1 and so on, on classes 1..classes - 2. What does not fit folds into the lowest class of its kind.
    """
    if not 2 <= classes <= 8:
        raise ValueError(f"classes is {classes}: use 2 to 8")
    if tier is Tier.SCAVENGER:
        return classes - 1
    if classes == 2:
        return 1 if tier is Tier.LAST else 0
    if variant is Variant.PAPER:
        if tier is Tier.CRITICAL:
            return 0
        if tier is Tier.EARLY:
            return 1 + min(max(rli, 0), classes - 3)
        return min(max(level - 1, 1), classes - 2)
    loads = LOADS[classes]
    if tier is Tier.CRITICAL:
        return loads[0]
    if tier is Tier.LAST:
        return LAST[classes][due_step]
    if not reuse:
        return 0
    return loads[min(max(rli, 0), 2) if load_step is None else load_step]
