"""Limits how long KV may stand still for permits in all, like production's `max_hold`. After that its waiting messages
go without permits, in the lowest class but one. In the class that the queue would give them then they delayed what
could still be in time: agents in hot, 10 points of one seed."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bench.sim.cluster import Config
    from bench.sim.states import Flow

CLOSE_S: Final = 1e-9


class Hold:
    """One time budget for each flow (reuse of a request, or what a batch sends of one). It runs while messages of the
    flow wait and none is under way."""

    def __init__(self, most_s: float) -> None:
        self.most_s = most_s
        self._under_way: dict[Flow, int] = {}  # messages
        self._since: dict[Flow, float] = {}
        self._stood: dict[Flow, float] = {}
        self._spent: set[Flow] = set()
        self._ends: list[tuple[float, int, Flow]] = []
        self._number = 0

    def spent(self, flow: Flow) -> bool:
        return flow in self._spent

    def waits(self, flow: Flow, now_s: float) -> None:
        """Messages of the flow wait, from now on or still."""
        if flow in self._under_way or flow in self._since or flow in self._spent:
            return
        self._since[flow] = now_s
        self._number += 1
        heapq.heappush(self._ends, (now_s + self.most_s - self._stood.get(flow, 0.0), self._number, flow))

    def goes(self, flow: Flow, now_s: float) -> None:
        """A message of the flow is posted."""
        self._under_way[flow] = self._under_way.get(flow, 0) + 1
        since = self._since.pop(flow, None)
        if since is not None:
            self._stood[flow] = self._stood.get(flow, 0.0) + now_s - since

    def arrives(self, flow: Flow, now_s: float, more: bool) -> None:
        """A message of the flow has arrived; more: others wait or are under way."""
        self._under_way[flow] -= 1
        if not self._under_way[flow]:
            del self._under_way[flow]
            if more:
                self.waits(flow, now_s)

    def end(self, flow: Flow) -> None:
        self._since.pop(flow, None)
        self._stood.pop(flow, None)
        self._spent.discard(flow)

    def next_s(self) -> float:
        while self._ends and self._ends[0][2] not in self._since:
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else math.inf

    def over(self, now_s: float) -> list[Flow]:
        """Returns the flows whose budget is used up by now."""
        found = []
        while self.next_s() <= now_s + CLOSE_S:
            flow = heapq.heappop(self._ends)[2]  # the entry may be of an earlier standstill
            if self._stood.get(flow, 0.0) + now_s - self._since[flow] >= self.most_s - 2 * CLOSE_S:
                self._spent.add(flow)
                found.append(flow)
        return found


def hold_of(config: Config) -> Hold | None:
    """Returns None if KV may be held without limit."""
    return None if config.max_hold_s is None else Hold(config.max_hold_s)
