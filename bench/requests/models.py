"""Chooses the model that each request, or program, asks for, independently of its other properties."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from bench.requests.settings import Settings
from bench.sim.serving import Call, Program, model_name


def asked(work: Sequence[Call | Program], settings: Settings, seed: int) -> Sequence[Call | Program]:
    """All calls of a program ask for the same model."""
    if not settings.models:
        return work
    chance = random.Random(f"models {seed}")
    names = [model_name(number) for number in range(settings.models)]
    shares = [1.0 / (number + 1) ** settings.model_skew for number in range(settings.models)]
    return [_of(one, chance.choices(names, shares)[0]) for one in work]


def _of(one: Call | Program, model: str) -> Call | Program:
    if isinstance(one, Call):
        return msgspec.structs.replace(one, model=model)
    return msgspec.structs.replace(one, calls=tuple(msgspec.structs.replace(c, model=model) for c in one.calls))
