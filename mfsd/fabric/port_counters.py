"""Reads what a port has carried: bytes by direction and, where the driver counts them, by priority; pause frames.

Bytes by priority are what the whole port carried. Without them sysfs has what RDMA did (`port_xmit_data` and
`port_rcv_data`, in words of four bytes). A device with several ports has the sum of them: MFS plans with devices.
Reading may take milliseconds, as drivers ask firmware: never on a thread that schedules.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from mfsd.fabric.counter_names import PRIORITIES, scheme_of, values

SYSFS = Path("/sys/class/infiniband")
WORD_BYTES = 4

Statistics = Callable[[str], Mapping[str, int]]
"""Name of an interface -> its driver's statistics by name. Raises OSError."""


class PortCounters(Struct, frozen=True):
    """One reading. By direction: sent, received; None and (): the port does not count it."""

    at_ns: int
    bytes: tuple[int | None, int | None]
    priority_bytes: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    pauses: tuple[int | None, int | None] = (None, None)


class PortReader:
    """Of one device. Files and names are found at each reading: devices are renamed and unplugged."""

    def __init__(
        self,
        device: str,
        sysfs: Path = SYSFS,
        statistics: Statistics | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._folder = sysfs / device
        self._statistics = statistics if statistics is not None else EthtoolStatistics()
        self._clock_ns = clock_ns

    def read(self) -> PortCounters:
        """What cannot be read is None."""
        at_ns = self._clock_ns()
        found = self._found()
        names = scheme_of(found)
        if names is None:
            return PortCounters(at_ns, self._words())
        by_priority = tuple(tuple(values(found, name)) for name in names.bytes)
        pauses = tuple(
            sum(counts) if (counts := [v for name in side for v in values(found, name)]) else None
            for side in names.pauses
        )
        if any(len(side) != PRIORITIES for side in by_priority):
            whole = self._words()
            if None in whole:
                whole = (by_priority[0][0], by_priority[1][0])
            return PortCounters(at_ns, whole, pauses=(pauses[0], pauses[1]))
        sent, received = by_priority
        return PortCounters(at_ns, (sum(sent), sum(received)), (sent, received), (pauses[0], pauses[1]))

    def _words(self) -> tuple[int | None, int | None]:
        return self._sum("port_xmit_data"), self._sum("port_rcv_data")

    def _sum(self, name: str) -> int | None:
        counts = [_number(port / "counters" / name) for port in self._folder.glob("ports/*")]
        known = [count for count in counts if count is not None]
        return sum(known) * WORD_BYTES if known else None

    def _found(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for interface in _entries(self._folder / "device/net"):
            try:
                _add(found, self._statistics(interface))
            except OSError:
                continue  # renamed or gone, or a driver without statistics
        if scheme_of(found) is None:
            for folder in self._folder.glob("ports/*/hw_counters"):
                paths = {name: _number(folder / name) for name in _entries(folder)}
                _add(found, {name: count for name, count in paths.items() if count is not None})
        return found


class EthtoolStatistics:
    """The kernel's statistics of an interface, as `ethtool -S` prints them. Their names are read once."""

    def __init__(self) -> None:
        self._open: dict[str, object] = {}

    def __call__(self, interface: str) -> Mapping[str, int]:
        from pyroute2.ethtool.ioctl import IoctlEthtool, NoSuchDevice, NotSupportedError  # slow to import

        try:
            handle = self._open.get(interface)
            if handle is None:
                handle = self._open[interface] = IoctlEthtool(interface)
            return dict(handle.get_statistics())  # type: ignore[attr-defined]
        except (OSError, NoSuchDevice, NotSupportedError, AssertionError) as error:
            # another device has the name now, or statistics changed with its channels
            self._open.pop(interface, None)
            raise OSError(f"{interface}: no statistics: {error}") from error


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        total[name] = total.get(name, 0) + count


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None  # `N/A (no PMA)`, an interval in milliseconds of another form


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 -- names are wanted
    except OSError:
        return []
