"""From a profile to what packets carry: stage -> classes -> DSCP. Every host marks by this table, with a daemon and
without one, and the same profile configures the switches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mfsd.fabric.policy import MFS_CLASSES, Profile, class_dscps, fold_classes
from mfsd.policy.marks import divided
from mfsd.policy.types import Stage


class WireTable(NamedTuple):
    dscp: tuple[int, ...]
    """Of each MFS class, the highest first."""
    stages: Mapping[Stage, tuple[int, ...]]
    """Classes of each stage, the highest first, where transfers are marked by stage and size alone. A daemon chooses
    the class of each transfer by its urgency."""


def wire_table(profile: Profile, mfs_classes: int = MFS_CLASSES) -> WireTable:
    """A stage gets one MFS class of each of its fabric classes: MFS classes that share one are the same there."""
    fold = fold_classes(profile, mfs_classes)
    lanes = [fold.index(fabric_class) for fabric_class in sorted(set(fold))]
    by_stage = divided(len(lanes)).by_stage()
    stages = {stage: tuple(lanes[one] for one in classes) for stage, classes in by_stage.items()}
    return WireTable(class_dscps(profile, mfs_classes), stages)
