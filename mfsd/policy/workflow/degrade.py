"""What gives way when a stage's KV memory does not fit, and what that costs (Maestro algorithm 2, Eq 4)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import NamedTuple

import msgspec


class EngineState(IntEnum):
    """In the order in which engines are asked to give way."""

    IDLE = 1
    """Running, without a stage."""
    SLEEPING = 2
    FALLING_ASLEEP = 3
    """Changing from idle to sleeping."""
    ACTIVE = 4


class Action(str, Enum):
    """The five levels, least disruption first."""

    SLEEP = "sleep"
    EVICT = "evict"
    STOP = "stop"
    SWAP = "swap"
    ABORT = "abort"


INTERRUPTS = frozenset({Action.SWAP, Action.ABORT})
"""Actions that interrupt stages in progress."""


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """A model's engine on the node, and the time to undo each action."""

    model: str
    state: EngineState
    weights_bytes: int
    context_bytes: int
    kv_bytes: int = 0
    """KV of its active stages."""
    reload_s: float = 0.0
    """To load weights from host memory to the GPU."""
    restart_s: float = 0.0
    """To make a new context."""
    swap_s: float = 0.0
    """To move KV to host memory and back."""
    recompute_s: float = 0.0
    """To compute its stages' tokens again."""


class Step(NamedTuple):
    model: str
    action: Action
    freed_bytes: int
    restore_s: float


class Degradation(NamedTuple):
    """The plan. `cost_s` is C_deg of Eq 4 (the score takes it in ms)."""

    steps: tuple[Step, ...]
    interrupts: bool
    cost_s: float

    @property
    def freed_bytes(self) -> int:
        return sum(step.freed_bytes for step in self.steps)


NOTHING = Degradation((), False, 0.0)


def plan_degradation(
    required_bytes: int, engines: Iterable[Engine], host_free_bytes: int, interrupt_s: float
) -> Degradation | None:
    """Algorithm 2. Returns None if all of it would not free enough.

    Goes by state; engines of one state in the order given (least recently used first). `interrupt_s` is c_int, the SLO
    of those that are interrupted.
    """
    steps: list[Step] = []
    freed = 0
    for engine in sorted(engines, key=lambda e: e.state):
        if freed >= required_bytes:
            break
        step, host_bytes = _best(engine, host_free_bytes)
        if step.freed_bytes <= 0:
            continue
        host_free_bytes -= host_bytes
        freed += step.freed_bytes
        steps.append(step)
    if freed < required_bytes:
        return None
    interrupts = any(step.action in INTERRUPTS for step in steps)
    return Degradation(tuple(steps), interrupts, sum(s.restore_s for s in steps) + interrupts * interrupt_s)


def _best(engine: Engine, host_free_bytes: int) -> tuple[Step, int]:
    """The least action that the engine's state allows, and the host memory that it takes."""
    name = engine.model
    match engine.state:
        case EngineState.IDLE if engine.weights_bytes <= host_free_bytes:
            return Step(name, Action.SLEEP, engine.weights_bytes, engine.reload_s), engine.weights_bytes
        case EngineState.SLEEPING:
            return Step(name, Action.EVICT, engine.context_bytes, engine.restart_s), 0
        case EngineState.ACTIVE if engine.kv_bytes <= host_free_bytes:
            return Step(name, Action.SWAP, engine.kv_bytes, engine.swap_s), engine.kv_bytes
        case EngineState.ACTIVE:
            return Step(name, Action.ABORT, engine.kv_bytes, engine.recompute_s), 0
    both = engine.weights_bytes + engine.context_bytes
    return Step(name, Action.STOP, both, engine.reload_s + engine.restart_s), 0
