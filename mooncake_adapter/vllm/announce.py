"""Announces the requests that wait at this engine to the node's daemon, by what has changed. No vLLM in here.

The coordinator adds up, at each port, the bytes that waiting requests will fetch and push there, in the order of their
engines. Only the side that moves the bytes can announce them. A tick does nothing while nothing has changed. It sends
at most :data:`ANNOUNCED_PER_TICK` changes, :data:`EVERY_S` after the previous ones. A request that leaves the queue is
withdrawn at once, as no further tick may follow.
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
"""Interval between announcements. The daemon reads all waiting requests at most every 20 ms."""
ASK_S = 1.0
"""Interval of empty calls to the session while something waits and nothing changes: only when used does the session
notice that the daemon was restarted and announce to it again."""
REST_S = 0.02
"""Pause before the rest, if one tick could not send all changes."""
ANNOUNCED_PER_TICK = 32
ANNOUNCED_MAX = 512
"""Limit of the requests announced at once, the first in order. Half of the daemon's table for a process; the rest is
for batches."""
SWITCH = "announce_waiting"
"""Key of the connector's configuration; true by default."""


class Daemon(Protocol):
    """The part of a session that announces."""

    def waiting_changed(self, requests: Sequence[Waiting], gone: Sequence[int] = ()) -> None: ...


class Source(NamedTuple):
    """Where reused KV comes from, and by which NIC."""

    bytes_of_token: TokenBytes
    """0: unknown; then fetches are not announced."""
    nic: int = 0
    owners: tuple[str, ...] = ()
    """Addresses of the store's nodes, which are assumed to have equal shares. Empty: only this node's own port is
    known."""


_Announced = tuple[int, tuple[int, int], bool]
"""What can change of a request: rank, (tokens to fetch, tokens to compute), relegated. A tuple, as a tick makes one for
each request."""


class Announcer:
    """Announces the requests of one scheduler. Nothing here raises: an error is warned of once, and the engine serves
    on."""

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
        """Numbers of the requests that are or will next be announced. They and the due times stay as first
        announced."""
        self._due_ns: dict[str, int] = {}
        self._next_s = self._ask_s = 0.0

    @property
    def wants_order(self) -> bool:
        """Whether the next tick will send anything; only then is the engine's order worth computing."""
        return self._requests.changed and self._clock_s() >= self._next_s

    def ordered(self, names: Iterable[str], aside: Collection[str] = ()) -> None:
        """Sets the scheduler's order of waiting requests, and which it has itself put behind all others. Without an
        order requests count in the order of their arrival."""
        self._order, self._aside = tuple(names), frozenset(aside)

    def set_aside(self, name: str) -> bool:
        """Whether it was announced that the scheduler has put this request aside; it is then pruned for that reason
        alone."""
        announced = self._announced.get(name)
        return announced is not None and announced[2]

    def announced_bytes(self, name: str) -> int:
        """Returns the bytes that are announced for this request now, from each owner."""
        announced = self._announced.get(name)
        return self._share(announced[1][0]) if announced is not None else 0

    def tick(self) -> None:
        """Sends what is due. Called once a step."""
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
        """Withdraws the requests that have left the queue since the last call: scheduled, aborted or ended."""
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
                requests.changed = True  # the rest is sent by the next tick
                break
            changed.append(self._waiting(name, progress, now))
            new[name] = now
        announced.update(new)
        if changed:
            self._daemon.waiting_changed(changed)

    def _names(self) -> list[str]:
        """Returns the waiting requests, the first in order first. Of those that the scheduler has not named, the ones
        whose KV is on its way go first; the others are new and go last."""
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
        """KV of the whole prompt, sent to a decode instance through this node's port and into that instance's, if the
        router has named it. Announced until the request runs; from then on its batch reports it."""
        size_bytes = int(progress.prompt_tokens * self._source.bytes_of_token.own) if progress.info.sends else 0
        if not size_bytes:
            return ()
        return (Flow(STAGE_P2D, progress.info.decode_nic, size_bytes, self._source.nic),)

    def _fetches(self, info: RequestInfo, tokens: int) -> tuple[Flow, ...]:
        owners, share = self._source.owners, self._share(tokens)
        if info.loads and info.decode_nic:
            return ()  # the prefill instance, which knows the NIC, too, counts them at this node's port
        if info.loads or not owners:
            # a prefill instance announces what it has to send to its own daemon, so only this node's port is announced
            owners, share = ("",), int(tokens * self._source.bytes_of_token.own)
        if not share:
            return ()
        return tuple([Flow(STAGE_REUSE, owner, share, self._source.nic, 0, True) for owner in owners])

    def _share(self, tokens: int) -> int:
        """Returns the bytes of this many tokens from each owner."""
        return -(-int(tokens * self._source.bytes_of_token.owner) // max(1, len(self._source.owners)))
