"""What a scheduling core changes from one event to the next, which is all that the coordinator sends."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from mfsd._native import PlanCore
from mfsd.policy.config import PolicyConfig
from mfsd.policy.result import Batch, Pruned


class Change(NamedTuple):
    pruned: tuple[Pruned, ...]
    infeasible: tuple[int, ...]
    """Requests that would be late even with every port to themselves, and are not pruned."""
    restored: tuple[int, ...]
    """Requests that are neither pruned nor infeasible any more."""


class Planner(Protocol):
    """A core that reports what changes. A refused event (ValueError) changes nothing. Loads are in nanoseconds of their
    port, so ports can be added and change their rates without a new core."""

    name: str

    def arrive(self, batch: Batch, now_ns: int) -> Change: ...
    def update(self, batch: Batch, now_ns: int) -> Change: ...
    def depart(self, batch_id: int, now_ns: int) -> Change: ...
    def hold(self) -> None:
        """Events are recorded without effect until `release`, so thousands cost little more than one."""

    def release(self, now_ns: int) -> Change: ...
    def drop_budget(self) -> int: ...
    def spend(self, requests: int) -> None:
        """Sets how many requests are pruned by their engines. They spend the drop budget from the next event on."""

    def promised_ns(self, port: int, red_ns: int | None = None) -> int:
        """Returns how long the port is busy with batches of this RED and before (None: all), without pruned
        requests."""


NOTHING = Change((), (), ())


class NativePlanner:
    """The incremental core in C, which reports what an event changed without evaluating everything."""

    name = "native"

    def __init__(self, config: PolicyConfig, resources: int) -> None:
        self._core = PlanCore(config, resources)
        self._held = False

    def arrive(self, batch: Batch, now_ns: int) -> Change:
        self._core.arrive(batch, now_ns)
        return self._changed()

    def update(self, batch: Batch, now_ns: int) -> Change:
        self._core.update(batch, now_ns)
        return self._changed()

    def depart(self, batch_id: int, now_ns: int) -> Change:
        self._core.depart(batch_id, now_ns)
        return self._changed()

    def hold(self) -> None:
        self._held = True
        self._core.hold()

    def release(self, now_ns: int) -> Change:
        self._held = False
        self._core.release(now_ns)
        return self._changed()

    def drop_budget(self) -> int:
        return self._core.counts().drop_budget

    def spend(self, requests: int) -> None:
        self._core.spend(requests)

    def promised_ns(self, port: int, red_ns: int | None = None) -> int:
        return self._core.promised(port, red_ns)

    def _changed(self) -> Change:
        if self._held:
            return NOTHING
        delta = self._core.delta()
        return Change(tuple(delta.pruned), tuple(delta.infeasible), tuple(delta.restored))


def new_planner(config: PolicyConfig, resources: int) -> Planner:
    """Makes a core for resources numbered from 0."""
    return NativePlanner(config, resources)
