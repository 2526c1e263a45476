"""The bytes that links still have to move for loads under way, as known to a router of requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from bench.sim.states import State

Loads = Mapping[int, float]
"""Bytes by link."""


class Loading(Protocol):
    """The part of the simulation that is needed here."""

    now: float

    def reuse_left(self, state: State) -> float: ...


class Reading(NamedTuple):
    at_s: float
    loads: Loads


class OwedLoads:
    """What is owed as of `age_s` ago, plus the loads of requests sent since then, which are known at once."""

    def __init__(self, simulation: Loading, age_s: float) -> None:
        self.simulation = simulation
        self.age_s = age_s
        self._loading: dict[State, None] = {}
        self._readings: deque[Reading] = deque()  # oldest first; one entry for each arrival
        self._sent: deque[Reading] = deque()

    def sent(self, state: State, loads: Loads) -> None:
        """A request has just got a unit; `loads` is what it will load."""
        self._loading[state] = None
        if self.age_s:
            self._sent.append(Reading(self.simulation.now, loads))

    def known(self) -> Loads:
        if not self.age_s:
            return self._now()
        now = self.simulation.now
        if not self._readings or self._readings[-1].at_s < now:
            self._readings.append(Reading(now, self._now()))
        while len(self._readings) > 1 and self._readings[1].at_s <= now - self.age_s:
            self._readings.popleft()
        first = self._readings[0]
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
