"""What links still have to move of the loads under way, as it is known to who sends requests to units."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from bench.sim.states import State

Loads = Mapping[int, float]
"""Bytes by link."""


class Loading(Protocol):
    """What is asked of the simulation."""

    now: float

    def reuse_left(self, state: State) -> float: ...


class Told(NamedTuple):
    at_s: float
    loads: Loads


class OwedLoads:
    """As of `age_s` ago; only of the requests that were sent since then it is known at once what they load."""

    def __init__(self, simulation: Loading, age_s: float) -> None:
        self.simulation = simulation
        self.age_s = age_s
        self._loading: dict[State, None] = {}
        self._told: deque[Told] = deque()  # oldest first; one whenever a request arrives
        self._sent: deque[Told] = deque()

    def sent(self, state: State, loads: Loads) -> None:
        """A request that has just got a unit, and what it will load."""
        self._loading[state] = None
        if self.age_s:
            self._sent.append(Told(self.simulation.now, loads))

    def known(self) -> Loads:
        if not self.age_s:
            return self._now()
        now = self.simulation.now
        if not self._told or self._told[-1].at_s < now:
            self._told.append(Told(now, self._now()))
        while len(self._told) > 1 and self._told[1].at_s <= now - self.age_s:
            self._told.popleft()
        first = self._told[0]
        old_enough = first.at_s <= now - self.age_s
        loads = dict(first.loads) if old_enough else {}
        while old_enough and self._sent and self._sent[0].at_s < first.at_s:
            self._sent.popleft()
        for one in self._sent:
            _add(loads, one.loads, 1.0)
        return loads

    def _now(self) -> dict[int, float]:
        loads: dict[int, float] = {}
        for state in list(self._loading):
            if state.reuse is not None:
                _add(loads, state.reuse.path.shares, self.simulation.reuse_left(state))
            elif not state.undecided:
                del self._loading[state]
        return loads


def _add(loads: dict[int, float], more: Loads, times: float) -> None:
    for link, size in more.items():
        loads[link] = loads.get(link, 0.0) + times * size
