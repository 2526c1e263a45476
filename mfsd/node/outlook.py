"""The daemon's part of the outlook page: far ports of the node's current flows, and pruned requests.

The arbiter writes the node's own ports. This part changes when batches, waiting requests or the coordinator's order
change. Changes within a few milliseconds are written once. Without a coordinator nothing is known to be owed anywhere,
and no request is pruned.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from mfsd._native import OUTLOOK_FARS_MAX, OUTLOOK_PRUNED_MAX, DemandSnapshot
from mfsd.node.addresses import address_of_gid

WRITE_S = 0.005
"""Changes within this time are written together."""
PRUNED_TTL_NS = 3_000_000_000
"""How long a request counts as pruned: the arbiter's thread keeps the page valid even if this loop hangs."""
PRUNED_AGAIN_S = 1.0
"""How often pruned requests, if there are any, are written again."""
NO_PEER = bytes(16)

Far = tuple[bytes, int]
"""GID of a port elsewhere, and the direction of the flows as seen from this node."""


class Promise(Struct, frozen=True):
    """The coordinator's report on one port."""

    owed_ns: int
    """How long the port needs for all that is promised there."""
    rate_bytes_per_s: int


class Page(Protocol):
    """The part of the arbiter that this module needs."""

    def outlook(
        self,
        fars: Sequence[tuple[bytes, int, int, int | None]],
        pruned: Collection[int],
        far_valid_until_ns: int,
        pruned_valid_until_ns: int,
    ) -> None: ...


def fars_of(demands: Iterable[DemandSnapshot]) -> frozenset[Far]:
    """The far ports of flows that still have something to move."""
    return frozenset((d.peer, d.direction) for d in demands if d.bytes_left and d.peer != NO_PEER)


def far_name(far: Far) -> str:
    """The cluster's name of the port at the other end."""
    peer, direction = far
    return f"{address_of_gid(peer)}/{'out' if direction == 1 else 'in'}"


class OutlookWriter:
    """Owned by the daemon's loop."""

    def __init__(self, page: Page, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._page = page
        self._clock_ns = clock_ns
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._flows: dict[Hashable, frozenset[Far]] = {}
        self._promises: dict[str, Promise] = {}
        self._until_ns = 0
        self._pruned: frozenset[int] = frozenset()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def stop(self) -> None:
        self._loop = None
        for timer in (self._timer, self._again):
            if timer is not None:
                timer.cancel()

    # ---- what is known ---------------------------------------------------------------------------

    def flows(self, owner: Hashable, fars: frozenset[Far]) -> None:
        """Sets the far ports that a batch, or a client's waiting requests, use from now on. Empty: it is gone."""
        if self._flows.get(owner, frozenset()) == fars:
            return
        if fars:
            self._flows[owner] = fars
        else:
            del self._flows[owner]
        self._changed()

    def pruned(self, requests: Collection[int]) -> None:
        """Sets all requests that are pruned now."""
        if self._pruned != requests:
            self._pruned = frozenset(requests)
            self._changed()

    def promised(self, promises: Mapping[str, Promise], ttl_ns: int) -> None:
        """Takes the coordinator's latest report on these ports. All ports' reports hold for `ttl_ns` from now on."""
        self._promises.update(promises)
        self.confirmed(ttl_ns)

    def confirmed(self, ttl_ns: int) -> None:
        """The coordinator is alive, so its latest reports still hold."""
        self._until_ns = self._clock_ns() + ttl_ns
        if self._promises:
            self._changed()

    def forgotten(self) -> None:
        """There is another coordinator, or none: nothing is known about what is owed."""
        if self._promises or self._until_ns:
            self._promises.clear()
            self._until_ns = 0
            self._changed()

    # ---- writing ---------------------------------------------------------------------------------

    def _changed(self) -> None:
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(WRITE_S, self.write)

    def write(self) -> None:
        self._timer = None
        self._write_again()
        fars = sorted(frozenset[Far]().union(*self._flows.values()))[:OUTLOOK_FARS_MAX]
        rows = []
        for far in fars:
            promise = self._promises.get(far_name(far))
            rows.append((*far, promise.rate_bytes_per_s, promise.owed_ns) if promise else (*far, 0, None))
        pruned, pruned_until_ns = sorted(self._pruned)[:OUTLOOK_PRUNED_MAX], self._clock_ns() + PRUNED_TTL_NS
        try:
            self._page.outlook(rows, pruned, self._until_ns, pruned_until_ns)
        except OSError as error:
            if error.errno != errno.ESHUTDOWN:
                raise

    def _write_again(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._pruned and self._loop is not None:
            self._again = self._loop.call_later(PRUNED_AGAIN_S, self._changed)
