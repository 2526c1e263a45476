"""What a run serves."""

from __future__ import annotations

from typing import NamedTuple

from bench.sim.serving import Call, Program


class Workload(NamedTuple):
    """`source`: from what it was drawn."""

    work: list[Call | Program]
    source: str
