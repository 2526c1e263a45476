"""The life of one process of an engine that the gateway starts."""

from __future__ import annotations

import asyncio
import math

from mfsd.policy.workflow import HOLD_S, Runs
from mfsd.serve.gateway.backend import Backend
from mfsd.serve.gateway.replicas import LiveReplica, Stage


class Life:
    """From the decision to start the process until none of its processes is left."""

    def __init__(self, replica: LiveReplica) -> None:
        self.replica, self.backend = replica, Backend(replica.settings.command)
        self.task: asyncio.Task[None]
        self.change: asyncio.Task[None] | None = None
        """While it falls asleep or wakes. If that fails it ends only when the process has."""
        self.begun_s: float | None = None
        self.served_s: float | None = None
        """When it began to serve, after its start or its last sleep; None: not yet."""
        self.has_served = False
        self.wanted_gone = False
        self.over = False
        """Whether it serves no more: it is wanted gone, or ends by itself."""

    @property
    def runs(self) -> Runs:
        replica, served_s = self.replica, math.inf if self.served_s is None else self.served_s
        return Runs(replica.name, replica.requests, replica.used_s, served_s, replica.settings.memory_bytes)

    def serves(self, now_s: float) -> None:
        self.served_s = self.replica.used_s = now_s
        self.has_served = True

    def idle(self, now_s: float) -> bool:
        """Whether it runs without requests. The calls that it was started for get their places just after its start."""
        replica, served_s = self.replica, self.served_s
        if replica.stage is not Stage.RUNS or replica.requests or served_s is None:
            return False
        return replica.used_s > served_s or now_s - served_s >= HOLD_S

    @property
    def giving_way(self) -> asyncio.Task[None] | None:
        """What ends when the memory that it gives up is free; None: it gives up none, or that is free."""
        if self.replica.stage is Stage.STOPS:
            return self.task
        asleep = self.change is None or self.change.done()
        return None if asleep or self.replica.stage is not Stage.SLEEPS else self.change
