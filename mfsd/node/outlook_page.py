"""The outlook page in words: a copy of what programs of this node read."""

from __future__ import annotations

import time
from pathlib import Path

from msgspec import Struct

from mfsd._native import NICS_MAX, Client, Mode, OutlookPage, OutlookPort
from mfsd.node.addresses import address_of_gid
from mfsd.policy.outlook import PortLoad, fetch_forecast, tier_of_fetch

DIRECTIONS = ("out", "in")
TIERS = ("critical", "early", "last", "scavenger")


class Port(Struct, frozen=True):
    nic: str
    direction: str
    rate_bytes_per_s: int
    waiting_bytes: dict[str, int]
    in_flight_bytes: int
    achieved_bytes_per_s: int
    unscheduled_bytes_per_s: int
    fetch_gib_ns: int | None
    """How long a fetch of 1 GiB that something waits for would take by this port alone. None: bytes go out here."""


class Far(Struct, frozen=True):
    port: str
    rate_bytes_per_s: int | None
    owed_ns: int | None
    """None: no coordinator reports it."""
    achieved_bytes_per_s: int | None


class Shown(Struct, frozen=True):
    epoch: int
    age_ns: int
    valid_for_ns: int
    coordinator_for_ns: int | None
    """How long the coordinator's report on far ports still holds. None: nothing is known about them."""
    ports: list[Port]
    far_ports: list[Far]
    pruned: list[int]


def read_page(socket: Path) -> Shown | None:
    """Attaches like any program. Returns None if this daemon has no page. Raises OSError if no daemon answers."""
    with Client.attach(str(socket), process="mfsctl", mode=Mode.OBSERVE) as client:
        page, names = client.outlook(), [client.nic_name(nic) for nic in range(NICS_MAX)]
    return None if page is None else shown(page, names, time.monotonic_ns())


def shown(page: OutlookPage, names: list[str], now_ns: int) -> Shown:
    """`names`: NIC names by index."""
    return Shown(
        page.epoch,
        max(0, now_ns - page.written_ns),
        max(0, page.valid_until_ns - now_ns),
        page.far_valid_until_ns - now_ns if page.far_valid_until_ns > now_ns else None,
        [
            Port(
                names[at // 2],
                DIRECTIONS[at % 2],
                port.rate_bytes_per_s,
                dict(zip(TIERS, port.waiting_bytes, strict=True)),
                port.in_flight_bytes,
                port.achieved_bytes_per_s,
                port.unscheduled_bytes_per_s,
                _fetch_gib_ns(port) if DIRECTIONS[at % 2] == "in" else None,
            )
            for at, port in enumerate(page.ports)
        ],
        [
            Far(
                f"{address_of_gid(far.peer)}/{DIRECTIONS[1 - far.direction]}",
                far.rate_bytes_per_s or None,
                far.owed_ns,
                far.achieved_bytes_per_s or None,
            )
            for far in page.fars
        ],
        list(page.pruned),
    )


def _fetch_gib_ns(port: OutlookPort) -> int | None:
    forecast = fetch_forecast(1 << 30, PortLoad(*port), None, tier_of_fetch(1))
    return None if forecast is None else forecast.time_ns
