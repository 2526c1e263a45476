"""What still queues at this engine, announced to the node's daemon by what has changed. No vLLM in here.

The coordinator adds up at each port what waiting requests will fetch there and push into it, in the order of their
engines; only who moves it can tell. A tick looks at nothing while nothing has changed, says at most
:data:`ANNOUNCED_PER_TICK` things, and those :data:`EVERY_S` after the ones before. A request that leaves the queue is
withdrawn at once: no tick may follow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from mfsd.client.types import Flow, Waiting
from mooncake_adapter.session import STAGE_P2D, STAGE_REUSE
from mooncake_adapter.slo import monotonic_ns
from mooncake_adapter.vllm.ranks import Ranks
from mooncake_adapter.vllm.requests import Progress, RequestInfo, Requests
from mooncake_adapter.vllm.token_bytes import TokenBytes
from mooncake_adapter.warn_once import WarnOnce

EVERY_S = 0.05
"""The daemon reads what waits at most every 20 ms, and the whole of it."""
ASK_S = 1.0
"""While something waits and nothing changes, so often the session is asked: it notices a daemon that was started again
when it is used, and tells it what waits."""
REST_S = 0.02
"""Before the next ones where a tick could not say all."""
ANNOUNCED_PER_TICK = 32
ANNOUNCED_MAX = 512
"""At once, the first in order: half of what the daemon's table has for a process, the rest is for batches."""
SWITCH = "announce_waiting"
"""In the connector's configuration; true if it is not there."""


class Daemon(Protocol):
    """The part of a session that announces."""

    def waiting_changed(self, requests: Sequence[Waiting], gone: Sequence[int] = ()) -> None: ...


class Source(NamedTuple):
    """Where reuse comes from, and by which device."""

    bytes_of_token: TokenBytes
    """0: unknown; then what a request will fetch is not announced."""
    nic: int = 0
    owners: tuple[str, ...] = ()
    """Addresses of the store's nodes, which have a like share each. None: only this node's own port is known."""


_Announced = tuple[int, tuple[int, int], bool]
"""What can change of it: rank, tokens to fetch and to compute, relegated. A tick makes one of each request."""


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
        self._announced: dict[str, _Announced] = {}
        self._number: dict[str, int] = {}
        """Of those announced, with the next: they stay as they were first."""
        self._due_ns: dict[str, int] = {}
        self._next_s = self._ask_s = 0.0

    @property
    def wants_order(self) -> bool:
        """Whether the next tick will say anything: only then is it worth the while to ask for the engine's order."""
        return self._requests.changed and self._clock_s() >= self._next_s

    def ordered(self, names: Iterable[str], aside: Collection[str] = ()) -> None:
        """The scheduler's own order of what waits, and what it has put behind all others itself; without any, requests
        count in the order of their arrival."""
        self._order, self._aside = tuple(names), frozenset(aside)

    def set_aside(self, name: str) -> bool:
        """It was announced that the scheduler has put this one aside: then it is pruned for that reason alone."""
        announced = self._announced.get(name)
        return announced is not None and announced[2]

    def announced_bytes(self, name: str) -> int:
        """That are announced for this request now, from each owner."""
        announced = self._announced.get(name)
        return self._share(announced[1][0]) if announced is not None else 0

    def tick(self) -> None:
        """Once a step."""
        requests = self._requests
        self.withdraw()
        if not requests.changed and not self._announced:
            return
        now_s = self._clock_s()
        if requests.changed and now_s >= self._next_s:
            self._next_s, self._ask_s = now_s + EVERY_S, now_s + ASK_S
            self._guarded(self._announce)
            if requests.changed:
                self._next_s = now_s + REST_S
        elif now_s >= self._ask_s:
            self._ask_s = now_s + ASK_S
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
            if self._announced.pop(name, None) is not None and number is not None:
                gone.append(number)
        if gone:
            self._daemon.waiting_changed((), gone)

    def _announce(self) -> None:
        requests, announced = self._requests, self._announced
        waiting = requests.waiting
        names, aside = self._names(), self._aside
        requests.ranks = ranks = self._ranks.arrange(names)
        first, self._requests.changed = names[:ANNOUNCED_MAX], False
        if len(names) > ANNOUNCED_MAX:
            self._forget(announced.keys() - set(first))
        changed: list[Waiting] = []
        new: dict[str, _Announced] = {}
        for name in first:
            progress = waiting[name]
            now = (ranks[name], progress.awaits(), name in aside)
            if announced.get(name) == now:
                continue
            if len(changed) == ANNOUNCED_PER_TICK:
                requests.changed = True  # the rest in the next tick
                break
            changed.append(self._waiting(name, progress, now))
            new[name] = now
        announced.update(new)
        if changed:
            self._daemon.waiting_changed(changed)

    def _names(self) -> list[str]:
        """What waits, first in order first. Of what the scheduler has not named, that whose KV is on its way goes
        first; the rest is new and goes last."""
        waiting = self._requests.waiting
        if not self._order:
            return list(waiting)
        ordered = dict.fromkeys([name for name in self._order if name in waiting])
        unnamed = [name for name in waiting if name not in ordered]
        on_its_way = [name for name in unnamed if waiting[name].loading]
        return [*on_its_way, *ordered, *[name for name in unnamed if not waiting[name].loading]]

    def _waiting(self, name: str, progress: Progress, now: _Announced) -> Waiting:
        if name not in self._number:
            self._number[name] = progress.info.number
            self._due_ns[name] = monotonic_ns(progress.info.deadline_unix_ns)
        rank, (fetch_tokens, tokens_left), relegated = now
        flows = self._fetches(progress.info, fetch_tokens) + self._pushes(progress)
        return Waiting(self._number[name], rank, self._due_ns[name], tokens_left, relegated, flows)

    def _pushes(self, progress: Progress) -> tuple[Flow, ...]:
        """KV of the whole prompt, to a decode instance: through this node's port, and into that one's where the router
        has named it. Until it runs: then its batch says so."""
        size_bytes = int(progress.prompt_tokens * self._source.bytes_of_token.own) if progress.info.sends else 0
        if not size_bytes:
            return ()
        return (Flow(STAGE_P2D, progress.info.decode_nic, size_bytes, self._source.nic),)

    def _fetches(self, info: RequestInfo, tokens: int) -> tuple[Flow, ...]:
        owners, share = self._source.owners, self._share(tokens)
        if info.loads and info.decode_nic:
            return ()  # the prefill instance was told, too, and counts it at this node's port: once is enough
        if info.loads or not owners:
            # a prefill instance tells its own daemon what it still has to send: this node's port alone is announced
            owners, share = ("",), int(tokens * self._source.bytes_of_token.own)
        if not share:
            return ()
        return tuple([Flow(STAGE_REUSE, owner, share, self._source.nic, 0, True) for owner in owners])

    def _share(self, tokens: int) -> int:
        """Bytes of so many tokens from each owner."""
        return -(-int(tokens * self._source.bytes_of_token.owner) // max(1, len(self._source.owners)))
