"""Marking without a daemon: chooses a transfer's class by its stage and size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from mfsd.policy.types import Stage

CLASSES_MAX: Final = 8
RULES_MAX: Final = 64
"""MFS_RULES_MAX in csrc/include/mfs/abi.h."""
ROLES: Final = ("any", "nccl-data", "nccl-cts", "nccl-flush", "kv", "bulk")
SIZED: Final = (Stage.REUSE, Stage.P2D)
"""Stages whose transfers are divided by size."""


class MarkRule(NamedTuple):
    """Gives queue pairs a DSCP when they are connected. Empty and None match everything; the first match wins."""

    library: str = ""
    process: str = ""
    communicator: str = ""
    peer: str = ""
    """A network, such as 10.1.0.0/16."""
    role: str = "any"
    dscp: int | None = None
    """None keeps what the program has set."""


class Marks(NamedTuple):
    """What a program goes by that marks its own transfers."""

    dscp: tuple[int | None, ...]
    """The DSCP of each class on the wire, highest class first."""
    stages: Mapping[Stage, tuple[int, ...]]
    """The classes of each stage, highest first. The smaller a transfer, the higher its class."""
    sizes: Mapping[Stage, tuple[int, ...]]
    """For each class of a stage but the last: the largest transfer that goes in it, in bytes."""
    rules: tuple[MarkRule, ...] = ()

    def wire_class(self, stage: int, size_bytes: int | None = None) -> int:
        """Returns the class of a transfer. An unknown size counts as the largest, an unknown stage as background."""
        known = Stage(stage) if stage in self.stages else Stage.BACKGROUND
        classes, edges = self.stages[known], self.sizes.get(known, ())
        if size_bytes is None:
            return classes[len(edges)]
        return classes[sum(size_bytes > edge for edge in edges)]


class StageClasses(NamedTuple):
    """How a fabric's classes are divided among stages, without a daemon."""

    collective: int
    reuse: tuple[int, ...]
    p2d: tuple[int, ...]
    background: int

    def by_stage(self) -> dict[Stage, tuple[int, ...]]:
        return {
            Stage.CONTROL: (self.collective,),
            Stage.REUSE: self.reuse,
            Stage.COLLECTIVE: (self.collective,),
            Stage.P2D: self.p2d,
            Stage.BACKGROUND: (self.background,),
        }


def divided(classes: int, *, background: bool = True) -> StageClasses:
    """Divides the classes. Raises ValueError if their number is not from 1 to 8.

    Collectives get the highest class. Of those below, loads get the upper half (and the middle one if their number is
    odd), and last stages the lower half. With `background` and at least three classes, the lowest is background's
    alone; otherwise last stages share it.
    """
    if not 1 <= classes <= CLASSES_MAX:
        raise ValueError(f"classes is {classes}: use 1 to {CLASSES_MAX}")
    lowest = classes - 1
    apart = background and classes >= 3
    between = tuple(range(1, lowest if apart else classes)) or (lowest,)
    loads = (len(between) + 1) // 2
    return StageClasses(0, between[:loads], between[loads:] or between, lowest)


def checked(marks: Marks) -> Marks:
    """Returns the marks unchanged if they can be used. Raises ValueError that names what is wrong."""
    count = len(marks.dscp)
    if not 1 <= count <= CLASSES_MAX:
        raise ValueError(f"dscp names {count} classes: use 1 to {CLASSES_MAX}")
    if Stage.BACKGROUND not in marks.stages:
        raise ValueError("stages: background is missing; name its class")
    for stage, classes in marks.stages.items():
        if not classes or classes[-1] >= count or list(classes) != sorted(set(classes)):
            raise ValueError(f"stages: {stage.name.lower()} has classes {list(classes)}: use rising ones below {count}")
    for stage, edges in marks.sizes.items():
        name = stage.name.lower()
        if stage not in SIZED or stage not in marks.stages:
            raise ValueError(f"sizes: {name} has none; use reuse or p2d")
        if list(edges) != sorted(set(edges)) or (edges and edges[0] < 1):
            raise ValueError(f"sizes: {name} has {list(edges)}: use rising sizes above 0")
        if edges and len(marks.stages[stage]) == 1:
            raise ValueError(
                f"sizes: {name} has one class here, whatever the size: leave {name} out, or choose a profile with more"
            )
        if len(edges) >= len(marks.stages[stage]):
            raise ValueError(
                f"sizes: {name} has {len(edges)} of them for {len(marks.stages[stage])} classes; "
                f"use at most {len(marks.stages[stage]) - 1}"
            )
    if len(marks.rules) > RULES_MAX:
        raise ValueError(f"{len(marks.rules)} rules: use at most {RULES_MAX}")
    return marks
