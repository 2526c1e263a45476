"""Derives from a profile the DSCPs that packets carry: stage -> classes -> DSCP. Every host marks by this table, with
or without a daemon, and the same profile configures the switches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mfsd.fabric.policy import MFS_CLASSES, Profile, class_dscps, fold_classes
from mfsd.policy.marks import divided
from mfsd.policy.types import Stage


class WireTable(NamedTuple):
    dscp: tuple[int, ...]
    """DSCP of each MFS class, the highest first."""
    stages: Mapping[Stage, tuple[int, ...]]
    """Classes of each stage, the highest first, for hosts that mark transfers by stage and size only. A daemon chooses
    the class of each transfer by its urgency."""


def wire_table(profile: Profile, mfs_classes: int = MFS_CLASSES) -> WireTable:
    """Returns the table. A stage gets one MFS class for each of its fabric classes, because MFS classes with the same
    fabric class do not differ there."""
    fold = fold_classes(profile, mfs_classes)
    lanes = [fold.index(fabric_class) for fabric_class in sorted(set(fold))]
    by_stage = divided(len(lanes)).by_stage()
    stages = {stage: tuple(lanes[one] for one in classes) for stage, classes in by_stage.items()}
    return WireTable(class_dscps(profile, mfs_classes), stages)
