"""What a call inherits from its program under the baselines: nothing, or what the program has left to compute."""

from __future__ import annotations

from collections.abc import Sequence

from bench.requests.policies import Inherit
from bench.sim.serving import Call, Program
from mfsd.policy.serve import Inherited, ProgramTable, Service

PROMPT_S, OUTPUT_S = 8e-5, 4e-4
"""Time of one token as assumed by hindsight: a share of full steps of an 8B model on one A100."""


class Nothing(ProgramTable):
    """Each call is on its own: queues by call, not by program."""

    def call_arrived(self, program: str, engine: str, now_s: float, prompt_tokens: int = 0) -> Inherited:
        super().call_arrived(program, engine, now_s, prompt_tokens)
        return Inherited()


class Hindsight(ProgramTable):
    """Knows in advance the calls of a program that have not ended: the shortest remaining goes first. A bound, not a
    policy. Of concurrent calls the first in the program counts as the first that ended."""

    def __init__(self, work: Sequence[Call | Program]) -> None:
        super().__init__()
        programs = [item for item in work if isinstance(item, Program)]
        self._left = {f"program {number}": [_cost_s(c) for c in p.calls] for number, p in enumerate(programs)}

    def call_arrived(self, program: str, engine: str, now_s: float, prompt_tokens: int = 0) -> Inherited:
        super().call_arrived(program, engine, now_s, prompt_tokens)
        return Inherited(sum(self._left.get(program, ())))

    def call_ended(self, program: str, inherited: Inherited, service_s: float, wait_s: float, now_s: float) -> None:
        super().call_ended(program, inherited, service_s, wait_s, now_s)
        if self._left.get(program):
            self._left[program].pop(0)


def table(inherit: Inherit, work: Sequence[Call | Program]) -> ProgramTable:
    match inherit:
        case Inherit.NONE:
            return Nothing()
        case Inherit.HINDSIGHT:
            return Hindsight(work)
        case Inherit.PLAS:
            return ProgramTable(Service.PLAS)
        case Inherit.ATLAS:
            return ProgramTable(Service.ATLAS)


def _cost_s(call: Call) -> float:
    return (call.prompt_tokens - call.prefix_tokens) * PROMPT_S + call.output_tokens * OUTPUT_S
