"""Tells the coordinator how loaded this node's ports are, also while no batch changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from mfsd._native import Direction, NicFacts
from mfsd.node.addresses import PortNames

INTERVAL_NS = 1_000_000_000
"""A port's load is told this often at most."""
STEP = 0.02
"""And only when it has moved by so much of the port's rate."""


class Facts(Protocol):
    """The part of the arbiter that is needed here."""

    def facts(self, nic: int, direction: int) -> NicFacts: ...


class Loads(Protocol):
    """The part of the link to the coordinator that is needed here."""

    def port_load(self, port: str, rho: float) -> None: ...


class LoadReports:
    def __init__(
        self,
        facts: Facts,
        ports: PortNames,
        nic_names: Callable[[], Mapping[int, str]],
        reports: Loads,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """nic_names: device by index."""
        self._facts = facts
        self._ports = ports
        self._nic_names = nic_names
        self._reports = reports
        self._clock_ns = clock_ns
        self._told: dict[str, float] = {}
        self._looked_ns = clock_ns() - INTERVAL_NS

    def look(self) -> None:
        """Tells the loads that have moved since they were told. To be called now and then, such as with the leader's
        heartbeats."""
        now_ns = self._clock_ns()
        if now_ns - self._looked_ns < INTERVAL_NS:
            return
        self._looked_ns = now_ns
        for nic, name in self._nic_names().items():
            for direction, way in ((Direction.OUT, "out"), (Direction.IN, "in")):
                port, rho = f"{self._ports.own(name)}/{way}", self._facts.facts(nic, direction).rho
                if abs(rho - self._told.get(port, 0.0)) >= STEP:
                    self._told[port] = rho
                    self._reports.port_load(port, rho)
