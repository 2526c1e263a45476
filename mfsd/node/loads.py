"""Reports this node's port use and (variant paper) load to the coordinator, even while no batch changes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from mfsd._native import Direction
from mfsd.node.addresses import PortNames
from mfsd.node.link_interface import PortUse

if TYPE_CHECKING:
    from mfsd._native import NicStats

INTERVAL_NS = 1_000_000_000
"""Least time between two reports of a port's load."""
STEP = 0.02
"""Least change, as a share of the port's rate, that is reported."""
SAMPLES = 6
"""Use is measured over so many samples: a task counts when it is complete, and one may take seconds."""


class Facts(Protocol):
    """The part of the arbiter that this module needs."""

    def nic_stats(self, index: int) -> NicStats: ...


class Loads(Protocol):
    """The part of the link to the coordinator that this module needs."""

    def port_load(self, port: str, rho: float) -> None: ...
    def port_use(self, port: str, use: PortUse) -> None: ...


class _Counted(NamedTuple):
    """Bytes through a NIC since the daemon started."""

    at_ns: int
    carried: tuple[tuple[int, ...], ...]
    """By direction, then class."""
    unscheduled: int
    passed: int


class LoadReports:
    def __init__(
        self,
        facts: Facts,
        ports: PortNames,
        nic_names: Callable[[], Mapping[int, str]],
        reports: Loads,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        bypass: Callable[[str], tuple[int, int]] = lambda name: (0, 0),
    ) -> None:
        """`nic_names`: devices by index. `bypass`: what a device's port carries past MFS, out and in, in bytes/s."""
        self._facts = facts
        self._ports = ports
        self._nic_names = nic_names
        self._reports = reports
        self._clock_ns = clock_ns
        self._bypass = bypass
        self._reported: dict[str, float] = {}
        self._uses_reported: dict[str, PortUse] = {}
        self._counted: dict[int, deque[_Counted]] = {}
        """The latest samples of each NIC."""
        self._read_ns = clock_ns() - INTERVAL_NS

    def sample(self) -> None:
        """Reports loads and uses that have changed since the last report. Call it with each heartbeat, for instance."""
        now_ns = self._clock_ns()
        if now_ns - self._read_ns < INTERVAL_NS:
            return
        self._read_ns = now_ns
        for nic, name in self._nic_names().items():
            stats = self._facts.nic_stats(nic)
            now = _Counted(
                now_ns,
                tuple(map(tuple, stats["carried_bytes"])),
                stats["unscheduled_carried_bytes"],
                stats["passed_bytes"],
            )
            samples = self._counted.setdefault(nic, deque(maxlen=SAMPLES))
            samples.append(now)
            before = samples[0]
            for direction, direction_name in ((Direction.OUT, "out"), (Direction.IN, "in")):
                port = f"{self._ports.own(name)}/{direction_name}"
                if stats["load"] is not None:
                    self._report_load(port, stats["load"][direction])
                bypass = self._bypass(name)[direction] / stats["rate_bytes_per_s"]
                use = msgspec.structs.replace(_used(before, now, direction, stats["rate_bytes_per_s"]), bypass=bypass)
                if use.differs(self._uses_reported.get(port, PortUse((0.0,) * len(use.classes))), STEP):
                    self._uses_reported[port] = use
                    self._reports.port_use(port, use)

    def _report_load(self, port: str, rho: float) -> None:
        if abs(rho - self._reported.get(port, 0.0)) >= STEP:
            self._reported[port] = rho
            self._reports.port_load(port, rho)


def _used(before: _Counted, now: _Counted, direction: int, rate_bytes_per_s: int) -> PortUse:
    """The use between two samples; none if there is no time between them."""
    possible = (now.at_ns - before.at_ns) / 1e9 * rate_bytes_per_s
    carried = zip(now.carried[direction], before.carried[direction], strict=True)
    if possible <= 0:
        return PortUse(tuple(0.0 for _ in carried))
    return PortUse(
        tuple((new - old) / possible for new, old in carried),
        (now.unscheduled - before.unscheduled) / possible,
        (now.passed - before.passed) / possible if direction == Direction.OUT else 0.0,
    )
