"""Drivers' names for the byte and pause counters of a port, in `ethtool -S` or in sysfs (`hw_counters`).

A scheme of names fits a port whose statistics contain the scheme's byte counters. `{n}` is a priority, 0 to 7. Pause
counters that a device does not have are left out of the sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

PRIORITIES = 8


class Names(NamedTuple):
    """One scheme of names. Each pair is (sent, received)."""

    driver: str
    bytes: tuple[str, str]
    """A name with `{n}` is one counter for each priority; without it, one for the whole port."""
    pauses: tuple[tuple[str, ...], tuple[str, ...]]
    """Counters of frames that tell the other end to pause; they are added up."""

    def fit(self, statistics: Mapping[str, int]) -> bool:
        return all(name.format(n=0) in statistics for name in self.bytes)


SCHEMES = (
    # soft RoCE has these, too, in hw_counters
    Names(
        "mlx5_core",
        ("tx_prio{n}_bytes", "rx_prio{n}_bytes"),
        (("tx_prio{n}_pause", "tx_global_pause"), ("rx_prio{n}_pause", "rx_global_pause")),
    ),
    Names(
        "bnxt_en",
        ("tx_bytes_pri{n}", "rx_bytes_pri{n}"),
        (("tx_pfc_ena_frames_pri{n}", "tx_pause_frames"), ("rx_pfc_ena_frames_pri{n}", "rx_pause_frames")),
    ),
    Names(
        "ionic",
        ("octets_tx_ok", "octets_rx_ok"),
        (("tx_pripause_{n}", "frames_tx_pause"), ("rx_pripause_{n}", "frames_rx_pause")),
    ),
    Names(
        "ice",
        ("tx_bytes.nic", "rx_bytes.nic"),
        (("tx_priority_{n}_xoff.nic", "tx_link_xoff.nic"), ("rx_priority_{n}_xoff.nic", "rx_link_xoff.nic")),
    ),
)

KNOWN = frozenset(
    name.format(n=n)
    for names in SCHEMES
    for name in itertools.chain(names.bytes, *names.pauses)
    for n in range(PRIORITIES)
)
"""All names of all schemes. Other counters need not be read."""


def scheme_of(statistics: Mapping[str, int]) -> Names | None:
    return next((names for names in SCHEMES if names.fit(statistics)), None)


def values(statistics: Mapping[str, int], name: str) -> list[int]:
    """Returns the values of one name: eight by priority, or one, or as many of them as there are."""
    names = [name.format(n=n) for n in range(PRIORITIES)] if "{n}" in name else [name]
    return [statistics[each] for each in names if each in statistics]
