"""Reads the ports' counters in a slow loop of its own, and gives the arbiter the traffic past MFS as a load.

Files and drivers are read in a thread. They may take milliseconds, and neither the arbiter nor the daemon's loop waits
for them. Reading takes at most a twentieth of a core: if it is slow it is done rarely. A load that is not confirmed
expires.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from mfsd._native import NicCounted
from mfsd.fabric.port_counters import SYSFS, PortCounters, PortReader
from mfsd.fabric.port_moved import Moved, moved
from mfsd.node.bypass import LEAST_SHARE, BypassAccount
from mfsd.node.control import PortStatus
from mfsd.node.nics import read_host_rates, read_physical

SCAN_NS = 1_000_000_000
"""How often the devices and their ports' rates are looked up."""
NO_DEVICE_S = 1.0
"""How often devices are looked up on a host without any."""
COST_SHARE = 20
VALID_READINGS = 4
VALID_LEAST_NS = 500_000_000
RATE_DEFAULT_BYTES_PER_S = 125_000_000_000
"""Rate of a port whose rate is unknown, only for judging its counters."""


class Arbiter(Protocol):
    def counted(self, nic: int) -> NicCounted: ...
    def bypass(self, nic: int, sent_bytes_per_s: int, received_bytes_per_s: int, valid_until_ns: int) -> None: ...


class Logger(Protocol):
    def warning(self, event: str, **values: object) -> None: ...


class Nics(Protocol):
    def names(self) -> dict[int, str]: ...
    def watched(self, name: str) -> int: ...
    def configured(self, name: str) -> int: ...


class _Port:
    def __init__(self, name: str, sysfs: Path, clock_ns: Callable[[], int]) -> None:
        self.reader = PortReader(name, sysfs, clock_ns=clock_ns)
        self.before: PortCounters | None = None
        self.read_ns = 0
        self.account = BypassAccount()
        self.pauses: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self.counts_pauses = [False, False]
        self.loaded = False
        self.doubted = [False, False]

    def quiet(self, reading: PortCounters) -> bool:
        """Whether nothing has moved, and no load or doubt has to be confirmed or taken back."""
        before = self.before
        return (
            before is not None
            and not self.loaded
            and not any(self.doubted)
            and (before.bytes, before.priority_bytes, before.pauses)
            == (reading.bytes, reading.priority_bytes, reading.pauses)
        )

    def advance(self, reading: PortCounters) -> None:
        self.before, self.read_ns = reading, reading.at_ns


class PortWatch:
    """Owned by the daemon's loop."""

    def __init__(
        self,
        arbiter: Arbiter,
        nics: Nics,
        priorities: Callable[[], Sequence[int]],
        interval_ns: int,
        sysfs: Path = SYSFS,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        log: Logger | None = None,
    ) -> None:
        """`priorities` of the classes of MFS; empty: unknown."""
        self._arbiter = arbiter
        self._nics = nics
        self._priorities = priorities
        self._interval_ns = interval_ns
        self._sysfs = sysfs
        self._clock_ns = clock_ns
        self._log = log
        self._ports: dict[str, _Port] = {}
        self._borrows: dict[str, bool] = {}
        """Whether each device uses another device's port. Read once, while the device is there."""
        self._rates: dict[str, int] = {}
        self._scanned_ns = 0
        self._pause_s = 0.0
        self._stopped = threading.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._interval_ns:
                self.take(*await loop.run_in_executor(None, self._read_until_news))
        finally:
            self._stopped.set()

    def _read_until_news(self) -> tuple[dict[str, int], dict[str, PortCounters]]:
        """Runs in a thread. Wakes the daemon's loop only for what it has to know."""
        while True:
            self._stopped.wait(self._pause_s)
            begun_ns = time.monotonic_ns()
            rates, readings = self.read()
            took_s = (time.monotonic_ns() - begun_ns) / 1e9
            self._pause_s = max(self._interval_ns / 1e9, took_s * (COST_SHARE - 1)) if readings else NO_DEVICE_S
            if self._stopped.is_set() or not self._all_quiet(readings):
                return rates, readings

    def _all_quiet(self, readings: Mapping[str, PortCounters]) -> bool:
        """Whether nothing has changed since the last readings. If so, takes these over."""
        if self._ports.keys() != readings.keys():
            return False
        quiet = all(self._ports[name].quiet(reading) for name, reading in readings.items())
        if quiet:
            for name, reading in readings.items():
                self._ports[name].advance(reading)
        return quiet

    def read(self) -> tuple[dict[str, int], dict[str, PortCounters]]:
        """Returns rates and counters by device, without virtual functions: they use another's port. Runs in a
        thread."""
        at_ns = time.monotonic_ns()
        if not self._rates or at_ns - self._scanned_ns >= SCAN_NS:
            self._scanned_ns = at_ns
            self._scan()
        return self._rates, {name: self._ports[name].reader.read() for name in self._rates}

    def _scan(self) -> None:
        all_rates = read_host_rates(self._sysfs)
        self._borrows = {
            name: self._borrows[name] if name in self._borrows else read_physical(name, self._sysfs) != name
            for name in all_rates
        }
        self._rates = {name: rate for name, rate in all_rates.items() if not self._borrows[name]}
        for name in self._rates:
            if name not in self._ports:
                self._ports[name] = _Port(name, self._sysfs, self._clock_ns)

    def take(self, rates: Mapping[str, int], readings: Mapping[str, PortCounters]) -> None:
        for name in self._ports.keys() - readings.keys():
            self._ports.pop(name).reader.close()
        numbers = {name: index for index, name in self._nics.names().items()}
        for name, reading in readings.items():
            port = self._ports[name]
            rate = self._nics.configured(name) or rates[name] or RATE_DEFAULT_BYTES_PER_S
            before = port.before
            port.advance(reading)
            if before is None:
                if name in numbers:
                    port.account.add(Moved(0), self._arbiter.counted(numbers[name]), rate)
                continue
            news = moved(before, reading, rate)
            self._doubt(name, port, before, news)
            self._count_pauses(port, news)
            if name not in numbers and _notable(news, rate):
                numbers[name] = self._nics.watched(name)
            if name in numbers:
                self._take_bypass(port, numbers[name], news, rate)

    def _take_bypass(self, port: _Port, nic: int, news: Moved, rate: int) -> None:
        if not any(news.bytes) and not port.loaded:
            return  # nothing moves: no need to ask the arbiter
        port.account.add(news, self._arbiter.counted(nic), rate, self._priorities())
        load = port.account.load_bytes_per_s
        if any(load) or port.loaded:
            port.loaded = any(load)
            valid_ns = max(VALID_READINGS * self._interval_ns, VALID_LEAST_NS)
            self._arbiter.bypass(nic, *load, self._clock_ns() + valid_ns)

    def _doubt(self, name: str, port: _Port, before: PortCounters, news: Moved) -> None:
        """Logs impossible counters, once until they are possible again."""
        assert port.before is not None
        for direction, word in enumerate(("sent", "received")):
            counts = before.bytes[direction], port.before.bytes[direction]
            doubted = news.elapsed_ns > 0 and None not in counts and news.bytes[direction] is None
            if doubted and not port.doubted[direction] and self._log is not None:
                self._log.warning(
                    "port-counter-unbelievable",
                    nic=name,
                    counter=word,
                    before=counts[0],
                    now=counts[1],
                    after_ms=news.elapsed_ns // 1_000_000,
                )
            port.doubted[direction] = doubted

    def _count_pauses(self, port: _Port, news: Moved) -> None:
        for direction, frames in enumerate(news.pauses):
            if frames is not None:
                port.counts_pauses[direction] = True
                port.pauses[direction]["all"] += frames

    def rates(self, name: str) -> tuple[int, int]:
        """Bypass traffic, out and in, in bytes per second; 0 if it was not read recently."""
        port = self._ports.get(name)
        late_ns = max(VALID_READINGS * self._interval_ns, VALID_LEAST_NS)
        if port is None or self._clock_ns() - port.read_ns > late_ns:
            return 0, 0
        return port.account.rates_bytes_per_s

    def status(self, name: str) -> PortStatus | None:
        """None: the counters have not been read twice."""
        port = self._ports.get(name)
        if port is None or port.before is None:
            return None
        return PortStatus(
            *self.rates(name),
            dict(port.account.bytes[0]),
            dict(port.account.bytes[1]),
            *(port.pauses[d]["all"] if port.counts_pauses[d] else None for d in (0, 1)),
        )


def _notable(news: Moved, rate_bytes_per_s: int) -> bool:
    least = LEAST_SHARE * rate_bytes_per_s * news.elapsed_ns / 1e9
    return any((size or 0) > least for size in news.bytes)
