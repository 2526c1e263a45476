"""How long a transfer will take, as far as the network knows: the arithmetic of the outlook page.

Engines ask before they fetch (`Session.fetch_ns`), routers ask the coordinator (`POST /v1/transfer-time`), and the
simulator asks with its own numbers. All of them call `fetch_forecast` or `transfer_forecast`, so they cannot disagree.
csrc/client/outlook.c has the same arithmetic in C; tests compare the two.

A transfer goes through two ports at once, so it takes as long as the slower one. What waits at a port goes before the
transfer if its tier is no worse. Collectives never wait: their share of the rate comes off first.

Unknown is None, never 0: a caller without an answer does what it would have done without MFS.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from mfsd.policy.estimate import transfer_ns
from mfsd.policy.types import Tier

RATE_SHARE_LEAST: Final = 16
"""Collectives are assumed to leave at least one part in so many of a port's rate, since they come in bursts."""

WATCHED_RANK: Final = 2**32 - 1
"""The rank of a row that is no request: an engine only wants to know what its owners' ports owe."""
WATCHED_BYTES: Final = 1
"""The size that such a row names a port with, since a daemon does not report ports for 0 bytes."""

Waiting = tuple[int, int, int, int]
"""Bytes by tier: critical, early, last, scavenger."""


class PortLoad(NamedTuple):
    """The load of one direction of a port of this node."""

    rate_bytes_per_s: int
    """0: unknown."""
    waiting_bytes: Waiting = (0, 0, 0, 0)
    """Asked for, not yet permitted."""
    in_flight_bytes: int = 0
    """Permitted, not yet complete."""
    achieved_bytes_per_s: int = 0
    """Recent rate of what asks for permits. For display only: an idle port also achieves nothing."""
    unscheduled_bytes_per_s: int = 0
    """Recent rate of what never waits (collectives)."""


class FarLoad(NamedTuple):
    """The load of the port at the other end."""

    rate_bytes_per_s: int = 0
    """0: unknown."""
    owed_ns: int | None = None
    """How long the port needs for all that is promised to go through it, summed by the coordinator. None: unknown."""
    read_bytes_per_s: int = 0
    """The recent rate of this node's own reads from it. 0: it has read nothing."""


class Forecast(NamedTuple):
    bytes_ahead: int
    """Bytes that go before the transfer at the deciding port, including those in flight."""
    time_ns: int
    """From now until the last byte has arrived."""

    def in_time(self, now_ns: int, deadline_ns: int) -> bool:
        return now_ns + self.time_ns <= deadline_ns


def bytes_ahead(port: PortLoad, tier: Tier) -> int:
    """The bytes that go through the port before a new transfer of that tier."""
    return port.in_flight_bytes + sum(port.waiting_bytes[: tier + 1])


def tier_of_fetch(deadline_ns: int) -> Tier:
    """The tier of a fetch. With a deadline, something waits for it: it goes with the early stages. Without one (0),
    such as a prefetch, it goes behind all that waits."""
    return Tier.EARLY if deadline_ns else Tier.SCAVENGER


def rate_left(rate_bytes_per_s: int, unscheduled_bytes_per_s: int) -> int:
    """What collectives, and whatever else never waits, leave of a port's rate."""
    return max(rate_bytes_per_s - unscheduled_bytes_per_s, rate_bytes_per_s // RATE_SHARE_LEAST, 1)


def fetch_forecast(
    size_bytes: int,
    own: PortLoad,
    far: FarLoad | None = None,
    tier: Tier = Tier.EARLY,
    announced_bytes: int = 0,
    far_bytes: int | None = None,
) -> Forecast | None:
    """Forecasts how long a fetch of that size takes from now on. None if the own port's rate is unknown.

    `own` is the incoming direction of the port that fetches. `far` is the outgoing direction of the owner's port, or
    None where nothing is known about it. The load of the far port contains what this node already waits for from it.
    The two ports work at the same time, so nothing counts twice.

    `announced_bytes` of the far port's load are this very fetch, which does not go before itself. `far_bytes` go
    through the far port, by default `size_bytes`; more where other NICs fetch parts of the same. Where the coordinator
    says nothing about the far port, the rate of this node's own reads from it stands in for its load.
    """
    if own.rate_bytes_per_s <= 0:
        return None
    ahead = bytes_ahead(own, tier)
    rate = rate_left(own.rate_bytes_per_s, own.unscheduled_bytes_per_s)
    time_ns = transfer_ns(ahead + size_bytes, rate)
    far_bytes = size_bytes if far_bytes is None else far_bytes
    if far is not None and far.owed_ns is not None:
        far_rate = far.rate_bytes_per_s or own.rate_bytes_per_s
        owed_ns = max(0, far.owed_ns - transfer_ns(announced_bytes, far_rate))
        far_ns = owed_ns + transfer_ns(far_bytes, far_rate)
        if far_ns > time_ns:
            return Forecast(owed_ns * far_rate // 1_000_000_000, far_ns)
    elif far is not None and far.read_bytes_per_s:
        time_ns = max(time_ns, transfer_ns(far_bytes, far.read_bytes_per_s))
    return Forecast(ahead, time_ns)


class PortAhead(NamedTuple):
    """A port that a transfer goes through, as the coordinator knows it."""

    owed_bytes: int
    """Bytes that go before the transfer."""
    rate_bytes_per_s: int
    unscheduled_bytes_per_s: int = 0
    """Recent rate of what no daemon orders."""


def transfer_forecast(size_bytes: int, ports: Iterable[PortAhead]) -> Forecast | None:
    """Forecasts how long a transfer through these ports takes. None without ports, or if the rate of one is unknown."""
    slowest: Forecast | None = None
    for port in ports:
        if port.rate_bytes_per_s <= 0:
            return None
        rate = rate_left(port.rate_bytes_per_s, port.unscheduled_bytes_per_s)
        time_ns = transfer_ns(port.owed_bytes + size_bytes, rate)
        if slowest is None or time_ns > slowest.time_ns:
            slowest = Forecast(port.owed_bytes, time_ns)
    return slowest


def needed_by(requests: Iterable[tuple[int, int, int | None]]) -> dict[int, int | None]:
    """When the load of each request that queues at one engine must be there. Rows are (request, rank, deadline or
    None).

    An engine serves its queue by rank. So a load is needed no later than the first deadline among its request and those
    behind it. None: none of them has a deadline.
    """
    found: dict[int, int | None] = {}
    least_ns: int | None = None
    for request_id, _, deadline_ns in sorted(requests, key=lambda row: (row[1], row[0]), reverse=True):
        if deadline_ns is not None and (least_ns is None or deadline_ns < least_ns):
            least_ns = deadline_ns
        found[request_id] = least_ns
    return found
