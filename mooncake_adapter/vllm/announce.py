"""What still queues at this engine, told to the node's daemon: the difference to what was told last. No vLLM in here.

The coordinator adds up at each port what waiting requests will fetch there, in the order of their engines; only who
reads can tell. A tick looks at nothing while nothing has changed, says at most :data:`TOLD_PER_TICK` things, and
those :data:`EVERY_S` after the ones before. A request that leaves the queue is withdrawn at once: no tick may follow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from mfsd.client.types import Flow, Waiting
from mooncake_adapter.session import STAGE_REUSE
from mooncake_adapter.slo import monotonic_ns
from mooncake_adapter.vllm.ranks import Ranks
from mooncake_adapter.vllm.requests import Progress, Requests
from mooncake_adapter.warn_once import WarnOnce

EVERY_S = 0.05
"""The daemon reads what waits at most every 20 ms, and the whole of it."""
LOOK_S = 1.0
"""While something waits and nothing changes, so often the session is asked: it notices a daemon that was started again
when it is used, and tells it what waits."""
TOLD_PER_TICK = 128
TOLD_MAX = 512
"""At once, the first in order: half of what the daemon's table has for a process, the rest is for batches."""
SWITCH = "announce_waiting"
"""In the connector's configuration; true if it is not there."""


class Daemon(Protocol):
    """The part of a session that is told."""

    def waiting_changed(self, requests: Sequence[Waiting], gone: Sequence[int] = ()) -> None: ...


class Source(NamedTuple):
    """Where reuse comes from, and by which device."""

    bytes_of_token: float
    """0: unknown; then nobody is told what a request will fetch."""
    nic: int = 0
    owners: tuple[str, ...] = ()
    """Addresses of the store's nodes, which have a like share each. None: only this node's own port is known."""


class _Told(NamedTuple):
    """What the daemon was told that can change."""

    rank: int
    fetch_tokens: int
    tokens_left: int
    relegated: bool


class Announcer:
    """Of one scheduler. Nothing here raises: what goes wrong is warned of once, and the engine serves on."""

    def __init__(
        self,
        daemon: Daemon,
        requests: Requests,
        source: Source,
        once: WarnOnce,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._daemon, self._requests, self._source, self._once = daemon, requests, source, once
        self._clock_s = clock_s
        requests.left = []
        self._ranks = Ranks()
        self._order: Sequence[str] = ()
        self._aside: frozenset[str] = frozenset()
        self._told: dict[str, _Told] = {}
        self._number: dict[str, int] = {}
        """Of those told, with the next: they stay as they were first."""
        self._due_ns: dict[str, int] = {}
        self._next_s = self._look_s = 0.0

    @property
    def wants_order(self) -> bool:
        """Whether the next tick will say anything: only then is it worth the while to ask for the engine's order."""
        return self._requests.changed and self._clock_s() >= self._next_s

    def ordered(self, names: Iterable[str], aside: Collection[str] = ()) -> None:
        """The scheduler's own order of what waits, and what it has put behind all others itself; without any, requests
        count in the order of their arrival."""
        self._order, self._aside = tuple(names), frozenset(aside)

    def set_aside(self, name: str) -> bool:
        """It was told that the scheduler has put this one aside: then it is pruned for that reason and no other."""
        told = self._told.get(name)
        return told is not None and told.relegated

    def tick(self) -> None:
        """Once a step."""
        requests = self._requests
        self.withdraw()
        if not requests.changed and not self._told:
            return
        now_s = self._clock_s()
        if requests.changed and now_s >= self._next_s:
            self._next_s, self._look_s = now_s + EVERY_S, now_s + LOOK_S
            self._guarded(self._announce)
        elif now_s >= self._look_s:
            self._look_s = now_s + LOOK_S
            self._guarded(self._daemon.waiting_changed, ())

    def withdraw(self) -> None:
        """What has left the queue since the last time, scheduled, aborted or ended."""
        if left := self._requests.left:
            self._requests.left = []
            self._guarded(self._forget, left)

    def _guarded(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:
            self._once.warn("announce", "what waits could not be announced (%s); requests run as without it", error)

    def _forget(self, names: Iterable[str]) -> None:
        gone = []
        for name in names:
            number = self._number.pop(name, None)
            self._due_ns.pop(name, None)
            if self._told.pop(name, None) is not None and number is not None:
                gone.append(number)
        if gone:
            self._daemon.waiting_changed((), gone)

    def _announce(self) -> None:
        requests, told = self._requests, self._told
        waiting = requests.waiting
        names, aside = self._names(), self._aside
        requests.ranks = ranks = self._ranks.arrange(names)
        first, self._requests.changed = names[:TOLD_MAX], False
        if len(names) > TOLD_MAX:
            self._forget(told.keys() - set(first))
        changed: list[Waiting] = []
        new: dict[str, _Told] = {}
        for name in first:
            progress = waiting[name]
            now = _Told(ranks[name], progress.fetch_tokens, progress.tokens_to_compute, name in aside)
            if told.get(name) == now:
                continue
            if len(changed) == TOLD_PER_TICK:
                requests.changed = True  # the rest in the next tick
                break
            changed.append(self._waiting(name, progress, now))
            new[name] = now
        told.update(new)
        if changed:
            self._daemon.waiting_changed(changed)

    def _names(self) -> list[str]:
        """What waits, first in order first. What the scheduler has not named is blocked, so it is ahead of the others:
        on its way already."""
        waiting = self._requests.waiting
        if not self._order:
            return list(waiting)
        ordered = dict.fromkeys([name for name in self._order if name in waiting])
        return [*[name for name in waiting if name not in ordered], *ordered]

    def _waiting(self, name: str, progress: Progress, now: _Told) -> Waiting:
        if name not in self._number:
            self._number[name] = progress.info.number
            self._due_ns[name] = monotonic_ns(progress.info.deadline_unix_ns)
        flows = self._flows(progress.info.loads, int(now.fetch_tokens * self._source.bytes_of_token))
        return Waiting(self._number[name], now.rank, self._due_ns[name], now.tokens_left, now.relegated, flows)

    def _flows(self, from_prefill: bool, size_bytes: int) -> tuple[Flow, ...]:
        if not size_bytes:
            return ()
        # a prefill instance tells its own daemon what it still has to send: only this node's port is to be told
        owners = ("",) if from_prefill else self._source.owners or ("",)
        share = -(-size_bytes // len(owners))
        return tuple([Flow(STAGE_REUSE, owner, share, self._source.nic, 0, True) for owner in owners])
