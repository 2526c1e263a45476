"""Programs of several calls: the service that a whole program has had decides whose call goes first (Agentix 4.2).

The table belongs to the engine (or to the gateway, for several engines). What it says about a call is written on the
request when it arrives. A program never says that it has ended, so the one that was idle longest is forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from mfsd.policy.serve.config import ServeConfig
from mfsd.policy.serve.view import Request

IDLE_S: Final = 600.0
PROGRAMS_MAX: Final = 65_536


class Service(str, Enum):
    """What a program's priority counts."""

    PLAS = "plas"
    """The sum of its finished calls' time on the executor (Eq 1). For programs with one call at a time."""
    ATLAS = "atlas"
    """The longest chain of calls seen so far (Eq 2), one number per program. Each call inherits it, and updates it when
    its own chain is longer. For programs with calls side by side."""


class Inherited(NamedTuple):
    """What a call inherits on arrival."""

    service_s: float = 0.0
    wait_s: float = 0.0


class _Program:
    __slots__ = ("active", "engines", "last_s", "service_s", "wait_s")

    def __init__(self) -> None:
        self.service_s = self.wait_s = self.last_s = 0.0
        self.active = 0
        self.engines: dict[str, int] = {}
        """Engine -> the longest prompt that it was given."""


class ProgramTable:
    """Service, waiting, active calls and engines of each program. Times are the caller's and may not go back."""

    def __init__(
        self, service: Service = Service.PLAS, idle_s: float = IDLE_S, programs_max: int = PROGRAMS_MAX
    ) -> None:
        self._service, self._idle_s, self._max = service, idle_s, programs_max
        self._programs: OrderedDict[str, _Program] = OrderedDict()
        """Ordered by their last arrival or end."""

    def __len__(self) -> int:
        return len(self._programs)

    def call_arrived(self, program: str, engine: str, now_s: float, prompt_tokens: int = 0) -> Inherited:
        """Counts the call. Returns its priority and its program's waiting."""
        self._forget(now_s)
        entry = self._programs.get(program)
        if entry is None:
            if len(self._programs) >= self._max:
                self._forget_one(now_s)
            entry = self._programs[program] = _Program()
        self._touch(program, entry, now_s)
        entry.active += 1
        entry.engines[engine] = max(prompt_tokens, entry.engines.get(engine, 0))
        return Inherited(entry.service_s, entry.wait_s)

    def call_ended(self, program: str, inherited: Inherited, service_s: float, wait_s: float, now_s: float) -> None:
        """Updates its program with the call's own `service_s` and `wait_s`."""
        entry = self._programs.get(program)
        if entry is None:
            return
        self._touch(program, entry, now_s)
        entry.active = max(0, entry.active - 1)
        entry.wait_s += max(0.0, wait_s)
        if self._service is Service.PLAS:
            entry.service_s += max(0.0, service_s)
        else:
            entry.service_s = max(entry.service_s, inherited.service_s + max(0.0, service_s))

    def so_far_s(self, calls: Iterable[tuple[Inherited, float]]) -> float:
        """The service of a program including its unfinished calls, each given with its own service so far."""
        calls = list(calls)
        if self._service is Service.PLAS:
            return max(inherited.service_s for inherited, _ in calls) + sum(own_s for _, own_s in calls)
        return max(inherited.service_s + own_s for inherited, own_s in calls)

    def engines(self, program: str, prompt_tokens: int = 0) -> frozenset[str]:
        """Engines where a prompt of at least so many tokens has run: the router's locality (Agentix 4.3)."""
        entry = self._programs.get(program)
        if entry is None:
            return frozenset()
        return frozenset(engine for engine, longest in entry.engines.items() if longest >= prompt_tokens)

    def _touch(self, program: str, entry: _Program, now_s: float) -> None:
        entry.last_s = max(entry.last_s, now_s)
        self._programs.move_to_end(program)

    def _forget(self, now_s: float) -> None:
        while self._programs:
            program, entry = next(iter(self._programs.items()))
            if now_s - entry.last_s <= self._idle_s:
                return
            if entry.active:  # not idle, however long its call takes
                self._touch(program, entry, now_s)
            else:
                del self._programs[program]

    def _forget_one(self, now_s: float) -> None:
        """Forgets the program that was idle longest. If all have active calls, the table grows by one."""
        for _ in range(len(self._programs)):
            program, entry = next(iter(self._programs.items()))
            if not entry.active:
                del self._programs[program]
                return
            self._touch(program, entry, now_s)


def attained_s(request: Request) -> float:
    """Attained service of a call: what it inherited plus its own."""
    return request.program_service_s + request.service_s


def starving(config: ServeConfig, request: Request) -> bool:
    """(W_p + W_c) / (T_p + T_c) >= beta: the call goes to the first queue.

    Agentix then zeroes the call's own windows (4.2, anti-starvation); no engine does that here.
    """
    served = request.program_service_s + request.service_s
    waited = request.program_wait_s + request.wait_s
    return waited > 0 and waited >= config.starvation_ratio * served


def queue_of(config: ServeConfig, request: Request) -> int:
    """The queue of a call, 0 first. Queue i holds calls with less than queue_first_s 2^i.

    A call falls as its own service grows, which is the demotion by quantum.
    """
    if starving(config, request):
        return 0
    had, bound = attained_s(request), config.queue_first_s
    for queue in range(config.queues - 1):
        if had < bound:
            return queue
        bound *= 2
    return config.queues - 1
