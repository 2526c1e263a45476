"""What a run serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bench.sim.serving import Call, Program


class Workload(NamedTuple):
    """`source`: what it was drawn from."""

    work: Sequence[Call | Program]
    source: str
