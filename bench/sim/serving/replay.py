"""The inputs of a run's plans as JSON lines, and a check whether plan_step makes the same plans from them again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO

import msgspec

from mfsd.policy.serve import ServeConfig, ServeState, StepPlan, StepView, plan_step


class Planned(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step. The state is the one before it, so a line can be replayed by itself. config: set if it differs from the
    line before."""

    now_s: float
    view: StepView
    state: ServeState
    plan: StepPlan
    config: ServeConfig | None = None


class Recorder:
    """A `journal` for `simulate` that writes lines; for one replica."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._config: ServeConfig | None = None

    def __call__(self, view: StepView, state: ServeState, config: ServeConfig, now_s: float, plan: StepPlan) -> None:
        given = None if config == self._config else config
        self._config = config
        self._file.write(msgspec.json.encode(Planned(now_s, view, state, plan, given)) + b"\n")


def differing(lines: Iterable[bytes]) -> list[int]:
    """Returns the numbers of the lines, from 1, for which plan_step now makes another plan, in any bit."""
    config, found = ServeConfig(), []
    for number, line in enumerate(lines, 1):
        step = msgspec.json.decode(line, type=Planned)
        config = step.config or config
        plan, _ = plan_step(step.view, step.state, config, step.now_s)
        if msgspec.json.encode(plan) != msgspec.json.encode(step.plan):
            found.append(number)
    return found
