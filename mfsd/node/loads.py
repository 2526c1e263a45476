"""Reports to the coordinator what uses this node's ports and (variant paper) how loaded they are, also while no batch
changes."""

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
"""A port's load is reported this often at most."""
STEP = 0.02
"""And only when it has moved by so much of the port's rate."""
SAMPLES = 6
"""What was used is counted over as many samples: a task counts when it is complete, and one may take seconds."""


class Facts(Protocol):
    """The part of the arbiter that is needed here."""

    def nic_stats(self, index: int) -> NicStats: ...


class Loads(Protocol):
    """The part of the link to the coordinator that is needed here."""

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
        """nic_names: device by index. bypass: of a device, what its port carries past MFS, out and in, in bytes/s."""
        self._facts = facts
        self._ports = ports
        self._nic_names = nic_names
        self._reports = reports
        self._clock_ns = clock_ns
        self._bypass = bypass
        self._reported: dict[str, float] = {}
        self._uses_reported: dict[str, PortUse] = {}
        self._counted: dict[int, deque[_Counted]] = {}
        """By NIC, the last samples."""
        self._looked_ns = clock_ns() - INTERVAL_NS

    def sample(self) -> None:
        """Reports the loads and uses that have moved since the last report. To be called now and then, such as with the
        leader's heartbeats."""
        now_ns = self._clock_ns()
        if now_ns - self._looked_ns < INTERVAL_NS:
            return
        self._looked_ns = now_ns
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
    """Between two samples. Nothing after the first of them."""
    possible = (now.at_ns - before.at_ns) / 1e9 * rate_bytes_per_s
    carried = zip(now.carried[direction], before.carried[direction], strict=True)
    if possible <= 0:
        return PortUse(tuple(0.0 for _ in carried))
    return PortUse(
        tuple((new - old) / possible for new, old in carried),
        (now.unscheduled - before.unscheduled) / possible,
        (now.passed - before.passed) / possible if direction == Direction.OUT else 0.0,
    )
