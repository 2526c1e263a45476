"""The cluster's NIC ports by number, and what collectives usually move through them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from mfsd.policy.estimate import transfer_ns

PORTS_MAX = 65_536
TIME_MAX_NS = 10_000_000_000_000
"""Nearly three hours of one port for one request: more is capped, so that no sum in a core overflows."""
UNITS_MAX = 4_096
"""Limit of the units whose history is kept. The unit that has been silent for longest is dropped first."""
HISTORY_WEIGHT = 0.25
"""Weight of the latest batch in the moving estimate, so that about the last four count most."""


class PortsExhausted(ValueError):
    """More ports than a cluster can have."""


class Use(NamedTuple):
    """Recent measured use of a port, in thousandths of its rate."""

    permille: tuple[int, ...] = ()
    """By class."""
    unscheduled: int = 0
    passed: int = 0
    bypass: int = 0
    """Includes what peers posted for the port. Peers report that, so the total does not contain it."""

    def total(self) -> int:
        return sum(self.permille) + self.unscheduled + self.passed


IDLE = Use()
CLASSES_MAX = 8
MOVED_MAX = 2**63
"""Rates above this, which no port has, are capped, so that their sums fit on the wire."""


class Port(Struct):
    name: str
    rate_bytes_per_s: int
    declared: bool = False
    """Whether its own daemon has reported the rate."""
    rho: float = 0.0
    """Measured by its daemon. Only shown: the estimate does not use it, because it includes the batches' own bytes."""
    use: Use = IDLE


class PortTable:
    """Numbers ports in the order in which they are first named. A port keeps its number."""

    def __init__(self, rate_default_bytes_per_s: int) -> None:
        self._rate_default_bytes_per_s = rate_default_bytes_per_s
        self._number: dict[str, int] = {}
        self.ports: list[Port] = []
        self.changed: set[int] = set()
        """Ports whose rate has changed since the last `take_changed`, so loads may have been converted with another
        one."""

    def __len__(self) -> int:
        return len(self.ports)

    def number(self, name: str) -> int:
        """Returns the port's number. A port that no daemon has declared has the default rate. Raises PortsExhausted."""
        number = self._number.get(name)
        if number is None:
            if len(self.ports) >= PORTS_MAX:
                raise PortsExhausted(f"more than {PORTS_MAX} ports: are port names made up, or not reused?")
            number = self._number[name] = len(self.ports)
            self.ports.append(Port(name, self._rate_default_bytes_per_s))
        return number

    def find(self, name: str) -> int | None:
        return self._number.get(name)

    def declare(self, name: str, rate_bytes_per_s: int) -> int:
        """Declares a daemon's own port. Loads converted from now on use this rate; rate 0 means unknown."""
        spoken_of = name in self._number
        number = self.number(name)
        port = self.ports[number]
        if rate_bytes_per_s > 0:
            if spoken_of and port.rate_bytes_per_s != rate_bytes_per_s:
                self.changed.add(number)
            port.rate_bytes_per_s = rate_bytes_per_s
            port.declared = True
        return number

    def take_changed(self) -> set[int]:
        changed, self.changed = self.changed, set()
        return changed

    def time_ns(self, number: int, size_bytes: int) -> int:
        """Returns the time that the bytes take on the port alone, at most `TIME_MAX_NS`."""
        return min(transfer_ns(size_bytes, self.ports[number].rate_bytes_per_s), TIME_MAX_NS)

    def load(self, number: int, rho: float) -> bool:
        """Sets the port's rho. Returns False and changes nothing if rho is not a valid load."""
        if not (math.isfinite(rho) and rho >= 0.0):
            return False
        self.ports[number].rho = rho
        return True


class Moved(NamedTuple):
    """Through all ports, in bytes per second."""

    classes: list[int]
    unscheduled: int
    passed: int
    busiest_permille: int


def moved(ports: Iterable[Port]) -> Moved:
    """Sums up what all ports moved recently. Traffic that never waits is reported in both directions and counted
    once."""
    classes, unscheduled, passed, busiest = [0] * CLASSES_MAX, 0, 0, 0
    for port in ports:
        use = port.use
        if use is IDLE:
            continue
        for c, permille in enumerate(use.permille[:CLASSES_MAX]):
            if permille:
                classes[c] += permille * port.rate_bytes_per_s
        if port.name.endswith("/out"):
            unscheduled += use.unscheduled * port.rate_bytes_per_s
        passed += use.passed * port.rate_bytes_per_s
        busiest = max(busiest, use.total())
    *classes, unscheduled, passed = (min(rate // 1000, MOVED_MAX) for rate in (*classes, unscheduled, passed))
    return Moved(classes, unscheduled, passed, busiest)


class RoutingHistory:
    """A moving estimate of the bytes that collectives of one batch of a unit move through each port, from its last
    batches (expert routing changes slowly). Each node of the unit reports its own part."""

    def __init__(self) -> None:
        self._units: dict[str, dict[str, dict[int, float]]] = {}
        """Unit -> node -> port -> bytes."""

    def observe(self, unit: str, node: str, moved: Mapping[int, int]) -> None:
        """moved: port number -> bytes of one batch through this node. The first batch is the initial estimate."""
        nodes = self._units.pop(unit, {})
        old = nodes.get(node)
        if old is None:
            new = {port: float(size) for port, size in moved.items()}
        else:
            new = {}
            for port in old.keys() | moved.keys():
                before = old.get(port, 0.0)
                after = before + HISTORY_WEIGHT * (moved.get(port, 0) - before)
                if after >= 1.0:
                    new[port] = after
        nodes[node] = new
        self._units[unit] = nodes
        while len(self._units) > UNITS_MAX:
            del self._units[next(iter(self._units))]

    def estimate(self, unit: str) -> Mapping[int, float]:
        """Returns port number -> bytes."""
        total: dict[int, float] = {}
        for moved in self._units.get(unit, {}).values():
            for port, size in moved.items():
                total[port] = total.get(port, 0.0) + size
        return total

    def forget(self, node: str) -> None:
        """The node is gone: the unit's batches no longer run there."""
        for nodes in self._units.values():
            nodes.pop(node, None)
