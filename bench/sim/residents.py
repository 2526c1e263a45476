"""Engines of several models that share one memory: an engine is started or woken when a request wants its model, and
the least recently used one gives way.

The rules are the gateway's (mfsd.serve.gateway.residents): `Residency` and `held_for`. An engine with requests never
gives way, but gets no new ones once another engine has waited for its memory. Both simulators use this: a place is the
node of the step-level one (bench.sim.serving.node) or a unit of the layer-level one (bench.sim.activations).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Generic, Protocol, TypeVar

from mfsd.policy.workflow import Move, Residence, Residency, Runs, held_for

HOLD_CHECK_S = 1.0
"""Interval of checks whether engines are to be held, while one waits for memory."""

Asked = TypeVar("Asked")
"""What engines serve: a call, a request."""
Served = TypeVar("Served", contravariant=True)


class Place(Protocol[Served]):
    """Where the engines run."""

    def give(self, model: str, asked: Served, now_s: float) -> None:
        """The model's engine runs: it serves this now."""

    def load(self, model: str, moves: Sequence[Move], now_s: float) -> None:
        """Begins to load the engine; `Residents.loaded` is to be called when it runs."""

    def stop(self, model: str) -> None:
        """The engine has given way."""

    def check_at(self, at_s: float) -> None:
        """`Residents.hold_for_waiting` is to be called then."""


class Stage(Enum):
    STOPPED = 0
    """Or asleep."""
    STARTS = 1
    RUNS = 2


class _Engine(Generic[Asked]):
    def __init__(self, name: str) -> None:
        self.name, self.stage, self.held = name, Stage.STOPPED, False
        self.waiting: list[Asked] = []
        """What it has not been given yet."""
        self.requests = 0
        self.used_s = self.served_s = 0.0

    @property
    def idle(self) -> bool:
        return self.stage is Stage.RUNS and not self.requests


class Residents(Generic[Asked]):
    """The engines of one place. `weights_bytes`: of each model."""

    def __init__(self, place: Place[Asked], models: Iterable[str], memory: Residency, weights_bytes: int) -> None:
        self._place, self._memory, self._bytes = place, memory, weights_bytes
        self._by_name: dict[str, _Engine[Asked]] = {name: _Engine(name) for name in models}
        self._engines = list(self._by_name.values())
        self._short_s: dict[str, float] = {}
        """Wanted engines for which there is no memory: since when."""
        self._check_set = False

    def waiting(self, model: str) -> Sequence[Asked]:
        """Returns what waits for the model's engine."""
        return self._by_name[model].waiting

    def arrives(self, model: str, asked: Asked, now_s: float) -> None:
        engine = self._by_name[model]
        if engine.stage is Stage.RUNS and not engine.held:
            self._give(engine, asked, now_s)
            return
        engine.waiting.append(asked)
        if engine.stage is Stage.STOPPED:
            self._make_run(engine, now_s)

    def ended(self, model: str, now_s: float) -> None:
        """Something that the engine was given has ended."""
        engine = self._by_name[model]
        engine.requests -= 1
        engine.used_s = now_s
        if engine.requests == 0:
            for name in sorted(self._short_s, key=lambda name: self._short_s[name]):
                self._make_run(self._by_name[name], now_s)

    def loaded(self, model: str, now_s: float) -> None:
        engine = self._by_name[model]
        engine.stage, engine.served_s = Stage.RUNS, now_s
        self._give_all(engine, now_s)

    def hold_for_waiting(self, now_s: float) -> list[str]:
        """Holds engines for those that wait for memory. Returns the models whose engines are held no more and have been
        given what waited."""
        running = [
            Runs(one.name, one.requests, one.used_s, one.served_s, self._bytes)
            for one in self._engines
            if one.stage is not Stage.STOPPED
        ]
        held = set[str]()
        for name, since_s in self._short_s.items():
            held.update(held_for(self._memory.lacks_bytes(name), since_s, running, now_s))
        given: list[str] = []
        for engine in self._engines:
            engine.held = engine.name in held
            if engine.stage is Stage.RUNS and not engine.held and engine.waiting:
                self._give_all(engine, now_s)
                given.append(engine.name)
        self._check_set = bool(self._short_s)
        if self._check_set:
            self._place.check_at(now_s + HOLD_CHECK_S)
        return given

    def _give(self, engine: _Engine[Asked], asked: Asked, now_s: float) -> None:
        engine.requests += 1
        engine.used_s = now_s
        self._place.give(engine.name, asked, now_s)

    def _give_all(self, engine: _Engine[Asked], now_s: float) -> None:
        waiting, engine.waiting = engine.waiting, []
        for asked in waiting:
            self._give(engine, asked, now_s)

    def _make_run(self, engine: _Engine[Asked], now_s: float) -> None:
        """Starts the engine, or waits if those that could give way have requests."""
        on = [one for one in self._engines if one.stage is not Stage.STOPPED]
        for one in sorted(on, key=lambda one: one.used_s):
            self._memory.used(one.name)
        moves = self._memory.activate(engine.name, 0, busy={one.name for one in on if not one.idle})
        if moves is None:
            self._short_s.setdefault(engine.name, now_s)
            if not self._check_set:
                self._check_set = True
                self._place.check_at(now_s + HOLD_CHECK_S)
            return
        self._short_s.pop(engine.name, None)
        gone = [self._by_name[move.model] for move in moves if move.source is Residence.RUNNING]
        for one in gone:
            one.stage, one.held = Stage.STOPPED, False
            self._place.stop(one.name)
        engine.stage, engine.served_s = Stage.STARTS, math.inf
        self._place.load(engine.name, moves, now_s)
        for one in gone:
            if one.waiting:  # it was held
                self._make_run(one, now_s)
