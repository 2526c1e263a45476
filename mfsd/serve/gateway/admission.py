"""Gives each call a place at a replica: at once, else in the order of the queue, else none."""

from __future__ import annotations

import asyncio
import bisect
import math
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from mfsd.policy.route import Call, Choice, Refusal, Role, RouteConfig, Router, choose, queue_key
from mfsd.policy.serve import ProgramTable
from mfsd.serve.gateway.prompt import Prompt
from mfsd.serve.gateway.replicas import LiveReplica, ReplicaSet
from mfsd.serve.gateway.settings import GatewaySettings
from mfsd.serve.settings import NO_TIER

RETRY_MIN_S: Final = 1
RETRY_MAX_S: Final = 60
PACE_WEIGHT: Final = 0.05
"""Weight of the latest interval between the ends of two calls in the mean interval."""


STARTS: Final = Choice(replica=None, reason="its engine has not started yet", refused=Refusal.SATURATED)
Among = frozenset[str] | None
"""Names of the replicas that a call may go to; None: all."""


class Place(NamedTuple):
    """A call's place at a replica. The replica counts the call from now on."""

    replica: LiveReplica
    choice: Choice
    waited_s: float


class NoPlace(Exception):
    """No replica can take the call, now or ever."""

    def __init__(self, choice: Choice, retry_after_s: int = 0) -> None:
        super().__init__(choice.reason)
        self.choice, self.retry_after_s = choice, retry_after_s


class _Waiter:
    __slots__ = ("among", "call", "key", "place", "prompt", "role", "since_s")

    def __init__(
        self, call: Call, prompt: Prompt, role: Role, among: Among, key: tuple[int, ...], since_s: float
    ) -> None:
        self.call, self.prompt, self.role, self.key, self.since_s = call, prompt, role, key, since_s
        self.among = among
        self.place: asyncio.Future[Place] = asyncio.get_running_loop().create_future()


class Admission:
    def __init__(self, settings: GatewaySettings, replicas: ReplicaSet, programs: ProgramTable) -> None:
        self._settings, self._replicas, self._programs = settings.admission, replicas, programs
        self._route = settings.route
        self._config = RouteConfig(load=settings.route.load, locality_tokens=settings.route.locality_tokens)
        self._start_max_s = settings.residency.start_max_s
        self.starts: Callable[[Call, Prompt, Role, Among], bool] = lambda *_: False
        """Whether an engine starts or will start that can serve a call which no healthy replica can take."""
        self._queue: list[_Waiter] = []
        """Waiting calls in the queue's order."""
        self._number = 0
        self.of_tier: Counter[str] = Counter()
        """Calls that are at engines now, by tier."""
        self._interval_s = 0.0
        self._ended_s = math.nan

    def __len__(self) -> int:
        return len(self._queue)

    def choose_decode(self, call: Call, prompt: Prompt) -> LiveReplica | None:
        """Returns the decode instance for a call that is not prefilled yet, if routing depends on what ports owe. None:
        the choice is made later.

        The call's KV counts at that port from now on. The call gets no place there yet, since it would take that from
        calls that decode now. The caller must take back the replica's `expected`."""
        if self._route.decode is not Router.OWED:
            return None
        choice = self._choose(Router.OWED, call, prompt, Role.DECODE, None)
        replica = None if choice.replica is None else self._replicas.by_name[choice.replica]
        if replica is None or not replica.settings.port:
            return None
        replica.owed.send(call.kv_bytes, self._now_s())
        replica.expected += 1
        return replica

    async def place(
        self, call: Call, prompt: Prompt, role: Role, among: Among = None, intended: LiveReplica | None = None
    ) -> Place:
        """Waits for a place. intended: a replica that is used if it can take the call at once. The place must be given
        back by `ended`. NoPlace."""
        since_s = self._now_s()
        choice, place = self._try(call, prompt, role, among, since_s, intended)
        if place is not None:
            return place
        if choice.refused is not Refusal.SATURATED:
            raise NoPlace(choice)
        most_s = self._settings.wait_max_s + (self._start_max_s if choice is STARTS else 0.0)
        return await self._wait(call, prompt, role, among, since_s, most_s)

    def ended(self, place: Place, call: Call) -> None:
        """Ends a place, so that its replica may get another call. The caller updates the counts of the replica."""
        self.of_tier[call.tier] -= 1
        now_s = self._now_s()
        if self._ended_s == self._ended_s:
            interval_s = min(now_s - self._ended_s, RETRY_MAX_S)
            self._interval_s += PACE_WEIGHT * (interval_s - self._interval_s)
        self._ended_s = now_s
        self.wake()

    def give_back(self, place: Place, call: Call, prompt: Prompt) -> None:
        """Gives back a place by which nothing was sent."""
        place.replica.leave(prompt.tokens)
        self.ended(place, call)

    def wake(self) -> None:
        """Gives free places to waiting calls. Call it also when a replica comes back or is removed."""
        longest = self._replicas.longest_prompts()  # there may be places for short prompts and none for long ones
        full: set[tuple[str, str, Role, Among, int]] = set()
        for waiter in list(self._queue):
            too_small = bisect.bisect_left(longest, waiter.prompt.tokens_least)
            kind = (waiter.call.model, waiter.call.tier, waiter.role, waiter.among, too_small)
            if kind in full or waiter.place.done():
                continue
            choice, place = self._try(waiter.call, waiter.prompt, waiter.role, waiter.among, waiter.since_s)
            if place is not None:
                self._queue.remove(waiter)
                waiter.place.set_result(place)
            elif choice.refused is Refusal.SATURATED:
                full.add(kind)
            else:
                self._queue.remove(waiter)
                waiter.place.set_exception(NoPlace(choice))

    def ranked(
        self,
        router: Router,
        call: Call,
        prompt: Prompt,
        among: Among,
        most: int,
        without: Collection[str] = (),
    ) -> list[str]:
        """Returns the names of the replicas that the router would choose now, the best first. Nothing is counted."""
        left = [one for one in self._replicas.view(prompt, among) if one.name not in without]
        found: list[str] = []
        while left and len(found) < most:
            choice = choose(router, call, left, self._programs, self._config)
            if choice.replica is None:
                break
            found.append(choice.replica)
            left = [one for one in left if one.name != choice.replica]
        return found

    def _try(
        self,
        call: Call,
        prompt: Prompt,
        role: Role,
        among: Among,
        since_s: float,
        intended: LiveReplica | None = None,
    ) -> tuple[Choice, Place | None]:
        most = self._settings.requests_max.get(call.tier or NO_TIER)
        if most is not None and self.of_tier[call.tier] >= most:
            reason = f"tier {call.tier or NO_TIER} has {most} requests at engines, which is its limit"
            return Choice(replica=None, reason=reason, refused=Refusal.SATURATED), None
        router: Router = self._route.decode if role is Role.DECODE else self._route.router
        choice = self._choose(router, call, prompt, role, among, intended)
        if choice.replica is None:
            if choice.refused is Refusal.UNHEALTHY and self.starts(call, prompt, role, among):
                return STARTS, None
            return choice, None
        replica = self._replicas.by_name[choice.replica]
        replica.begin(prompt.tokens)
        replica.used_s = self._now_s()
        if role is Role.DECODE and replica is not intended:
            replica.owed.send(call.kv_bytes, replica.used_s)
        self.of_tier[call.tier] += 1
        return choice, Place(replica, choice, self._now_s() - since_s)

    def _choose(
        self,
        router: Router,
        call: Call,
        prompt: Prompt,
        role: Role,
        among: Among,
        intended: LiveReplica | None = None,
    ) -> Choice:
        """Chooses a replica. One that fails its calls gets only those that no other replica may take; calls for which
        the others have no place now are not among them."""
        now_s = self._now_s()
        if intended is not None and intended in self._replicas.all and not intended.behind(now_s):
            choice = choose(router, call, [intended.view(prompt)], self._programs, self._config, role)
            if choice.replica is not None:
                return choice
        in_front = self._replicas.in_front(among, now_s)
        choice = choose(router, call, self._replicas.view(prompt, in_front), self._programs, self._config, role)
        if choice.replica is not None or choice.refused is Refusal.SATURATED or in_front is among:
            return choice
        return choose(router, call, self._replicas.view(prompt, among), self._programs, self._config, role)

    async def _wait(self, call: Call, prompt: Prompt, role: Role, among: Among, since_s: float, most_s: float) -> Place:
        self._number += 1
        key = (*queue_key(self._settings.order, call), self._number)
        waiter = _Waiter(call, prompt, role, among, key, since_s)
        bisect.insort(self._queue, waiter, key=lambda one: one.key)
        if len(self._queue) > self._settings.queue_max:
            last = self._queue.pop()
            last.place.set_exception(NoPlace(_full("the queue is full"), self.retry_after_s()))
        try:
            done, _ = await asyncio.wait({waiter.place}, timeout=most_s)
        except asyncio.CancelledError:  # the client has left
            if waiter.place.done() and waiter.place.exception() is None:
                self.give_back(waiter.place.result(), call, prompt)
            raise
        finally:
            if waiter in self._queue:
                self._queue.remove(waiter)
        if not done:
            raise NoPlace(_full("the request has waited as long as it may"), self.retry_after_s())
        return waiter.place.result()

    def retry_after_s(self) -> int:
        """Returns the seconds until all calls that wait now have been served, at the recent pace."""
        wait_s = math.ceil(self._interval_s * (len(self._queue) + 1))
        return max(RETRY_MIN_S, min(RETRY_MAX_S, wait_s))

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()


def _full(reason: str) -> Choice:
    return Choice(
        replica=None,
        reason=f"every replica has as many requests as it may have, and {reason}",
        refused=Refusal.SATURATED,
    )
