"""Load that no daemon orders, and what is known of it.

GPUs that post by themselves, and programs without the library, bypass MFS. At every sending NIC such a load comes in
bursts and goes before all other traffic. In production the daemon reads the port's counters at intervals
(mfsd/node/port_watch.py), and its windows expect the link to have that much less until the next reading. Here a NIC is
read at the first decision after the interval, and each reading covers the time since the one before.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from bench.sim.cluster import Cluster

NS = 1_000_000_000
LEFT = 0.02  # share of the link that remains while the load sends


class Events(Protocol):
    """The part of a simulation that this load needs."""

    cluster: Cluster
    network: Any
    now: float
    unfinished: int

    def at(self, time: float, act: Callable[[Any], None], what: Any) -> None: ...


class BypassLoad:
    """The load of one simulation; its bursts are the same for every policy."""

    def __init__(self, simulation: Events, share: float, burst_s: float) -> None:
        config, topology = simulation.cluster.config, simulation.cluster.topology
        self.simulation = simulation
        self.link = topology.link
        self.height = min(1.0 - LEFT, 2.0 * share) * self.link  # bytes per second while it sends
        self.burst_s = burst_s
        self.pause_s = burst_s * (self.height / (share * self.link) - 1.0)
        self.interval_ns = None if config.bypass_read_s is None else int(config.bypass_read_s * NS)
        self.random = random.Random(f"bypass {simulation.cluster.seed}")
        self.sends = [False] * topology.nics
        self.bytes = [0.0] * topology.nics  # at `since`
        self.since = [0.0] * topology.nics
        self.read: dict[int, tuple[int, float]] = {}  # by NIC: time of the last reading, and the bytes then
        self.rates: dict[int, float] = {}
        for nic in range(topology.nics):
            simulation.at(self.random.expovariate(1.0 / self.pause_s), self._change, nic)

    def _change(self, nic: int) -> None:
        simulation = self.simulation
        self.bytes[nic] = self.sent(nic)
        self.since[nic] = simulation.now
        starts = self.sends[nic] = not self.sends[nic]
        fluid = getattr(simulation.network, "fluid", None)  # the network without contention has none
        if fluid is not None:
            fluid.set_capacity(nic, self.link - (self.height if starts else 0.0))
        if simulation.unfinished:
            mean = self.burst_s if starts else self.pause_s
            simulation.at(simulation.now + self.random.expovariate(1.0 / mean), self._change, nic)
        elif starts and fluid is not None:
            fluid.set_capacity(nic, self.link)

    def sent(self, nic: int) -> float:
        return self.bytes[nic] + self.sends[nic] * self.height * (self.simulation.now - self.since[nic])

    def rate(self, nic: int, now_ns: int) -> float:
        """Returns the load as known in bytes per second: 0 without readings, the mean between the two latest ones, or
        (interval 0) the true value."""
        if self.interval_ns is None:
            return 0.0
        if not self.interval_ns:
            return self.sends[nic] * self.height
        at_ns, before = self.read.get(nic, (0, 0.0))
        if now_ns - at_ns >= self.interval_ns:
            sent = self.sent(nic)
            self.rates[nic] = (sent - before) * NS / (now_ns - at_ns)
            self.read[nic] = (now_ns, sent)
        return self.rates.get(nic, 0.0)
