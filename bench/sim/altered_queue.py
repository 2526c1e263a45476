"""The production host queue under other rules: the same queue, given altered facts of each message."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench.sim.host_queue import RmlqNetwork
from mfsd._native import Rmlq

if TYPE_CHECKING:
    from bench.sim.hold import Hold
    from bench.sim.topology import Topology
    from mfsd.policy import PolicyConfig

Alter = Callable[[Rmlq, int, dict[str, Any]], None]
"""Changes the facts of a message that is submitted, given the queue and the time in ns."""


class _AlteredQueue:
    """A queue of one NIC; everything but `submit` is the queue's own."""

    def __init__(self, queue: Rmlq, alter: Alter) -> None:
        self._queue, self._alter = queue, alter

    def submit(self, now_ns: int, size_bytes: int, **facts: Any) -> int:
        self._alter(self._queue, now_ns, facts)
        return self._queue.submit(now_ns, size_bytes, **facts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class AlteredNetwork(RmlqNetwork):
    def __init__(self, topology: Topology, config: PolicyConfig, alter: Alter, hold: Hold | None, reads: bool) -> None:
        super().__init__(topology, config, hold=hold, reads=reads)
        self.alter_flow = alter

    def queue(self, nic: int) -> Rmlq:
        if nic not in self.queues:
            self.queues[nic] = _AlteredQueue(super().queue(nic), self.alter_flow)  # type: ignore[assignment]
        return self.queues[nic]
