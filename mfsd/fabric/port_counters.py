"""Reads the counters of a port: bytes by direction and, if the driver counts them, by priority; pause frames.

Bytes by priority include all traffic of the port. Without them, sysfs has the bytes of RDMA only (`port_xmit_data` and
`port_rcv_data`, in words of four bytes). For a device with several ports their sum is read, since MFS plans by device.
Reading may take milliseconds, because drivers ask firmware: never do it on a thread that schedules.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from mfsd.fabric.counter_names import KNOWN, PRIORITIES, scheme_of, values
from mfsd.fabric.driver_statistics import EthtoolStatistics

SYSFS = Path("/sys/class/infiniband")
WORD_BYTES = 4
NUMBER_BYTES = 64
SCAN_NS = 1_000_000_000
"""The files and interfaces of a device are looked up this often, and when one of them has disappeared."""

Statistics = Callable[[str], Mapping[str, int]]
"""Name of an interface -> its driver's statistics by name. Raises OSError."""


class PortCounters(Struct, frozen=True):
    """One reading, by direction: sent, received. None and (): the port does not count it."""

    at_ns: int
    bytes: tuple[int | None, int | None]
    priority_bytes: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    pauses: tuple[int | None, int | None] = (None, None)


class PortReader:
    """Reads the counters of one device. Its files stay open between readings."""

    def __init__(
        self,
        device: str,
        sysfs: Path = SYSFS,
        statistics: Statistics | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._folder = sysfs / device
        self._statistics = statistics if statistics is not None else EthtoolStatistics(only=KNOWN)
        self._clock_ns = clock_ns
        self._scanned_ns: int | None = None
        self._interfaces: list[str] = []
        self._words: tuple[list[_File], list[_File]] = ([], [])
        self._hw_counters: dict[str, list[_File]] = {}

    def read(self) -> PortCounters:
        """Returns a reading. Counters that cannot be read are None."""
        at_ns = self._clock_ns()
        if self._scanned_ns is None or at_ns - self._scanned_ns >= SCAN_NS:
            self._scan(at_ns)
        found = self._found()
        names = scheme_of(found)
        if names is None:
            return PortCounters(at_ns, self._read_words())
        by_priority = tuple(tuple(values(found, name)) for name in names.bytes)
        pauses = tuple(
            sum(counts) if (counts := [v for name in side for v in values(found, name)]) else None
            for side in names.pauses
        )
        if any(len(side) != PRIORITIES for side in by_priority):
            whole = self._read_words()
            if None in whole:
                whole = (by_priority[0][0], by_priority[1][0])
            return PortCounters(at_ns, whole, pauses=(pauses[0], pauses[1]))
        sent, received = by_priority
        return PortCounters(at_ns, (sum(sent), sum(received)), (sent, received), (pauses[0], pauses[1]))

    def close(self) -> None:
        for file in itertools.chain(*self._words, *self._hw_counters.values()):
            file.close()
        self._words, self._hw_counters = ([], []), {}

    def _scan(self, at_ns: int) -> None:
        """Looks up the files and interfaces again, because devices may be renamed or unplugged."""
        self.close()
        self._scanned_ns = at_ns
        self._interfaces = _entries(self._folder / "device/net")
        sent, received = (
            [_File(port / "counters" / name) for port in self._folder.glob("ports/*")]
            for name in ("port_xmit_data", "port_rcv_data")
        )
        self._words = (sent, received)
        for folder in self._folder.glob("ports/*/hw_counters"):
            for name in KNOWN.intersection(_entries(folder)):
                self._hw_counters.setdefault(name, []).append(_File(folder / name))

    def _read_words(self) -> tuple[int | None, int | None]:
        return self._sum(self._words[0]), self._sum(self._words[1])

    def _sum(self, files: Sequence[_File]) -> int | None:
        counts = self._numbers(files)
        return sum(counts) * WORD_BYTES if counts else None

    def _numbers(self, files: Sequence[_File]) -> list[int]:
        counts = []
        for file in files:
            if (count := file.read()) is not None:
                counts.append(count)
            elif file.lost:
                self._scanned_ns = None  # the next reading scans again
        return counts

    def _found(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for interface in self._interfaces:
            try:
                for name, count in self._statistics(interface).items():
                    found[name] = found.get(name, 0) + count
            except OSError:
                continue  # renamed or gone, or a driver without statistics
        if scheme_of(found) is None:
            for name, files in self._hw_counters.items():
                if counts := self._numbers(files):
                    found[name] = found.get(name, 0) + sum(counts)
        return found


class _File:
    """A number in sysfs, which produces the text anew for each reading from the start."""

    def __init__(self, path: Path) -> None:
        self.lost = False
        """Whether the file has disappeared."""
        try:
            self._descriptor: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._descriptor = None

    def read(self) -> int | None:
        if self._descriptor is None:
            return None
        try:
            return int(os.pread(self._descriptor, NUMBER_BYTES, 0))
        except ValueError:
            return None  # `N/A (no PMA)`, an interval in milliseconds of another form
        except OSError:
            self.lost = True
            return None

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 -- names are wanted
    except OSError:
        return []
