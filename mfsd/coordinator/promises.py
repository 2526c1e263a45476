"""What is promised at the ports that a daemon speaks of: what has changed by much since it was last told so. Pure."""

from __future__ import annotations

from mfsd.coordinator.cluster import Cluster
from mfsd.proto import mfs_pb2 as pb

STEP_NS = 1_000_000
STEP_SHARE = 8
"""A port's time is told again when it has moved by more than a millisecond and by an eighth of itself."""
PORTS_PER_MESSAGE_MAX = 4_096


class PromisesOf:
    """One daemon's stream: port numbers, and what it was told of each."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """From here on its port numbers start anew."""
        self._number: dict[int, int] = {}
        self._told: dict[int, tuple[int, int]] = {}
        """Time owed, and rate."""
        self._new: set[int] = set()

    def name(self, port: int, number: int) -> None:
        """The daemon speaks of the cluster's port by this number."""
        self._number[port] = number
        self._new.add(port)

    @property
    def waits(self) -> bool:
        """Whether it has still to be told of some port."""
        return bool(self._new)

    def later(self, touched: set[int]) -> None:
        """It cannot be told now of what has changed at these ports."""
        self._new |= touched & self._number.keys()

    def take(self, cluster: Cluster, touched: set[int], term: int) -> pb.ToNode | None:
        """What to tell it; None: nothing. `touched`: ports at which something has changed since the last call."""
        ports = self._new | (touched & self._number.keys())
        self._new = set(sorted(ports)[PORTS_PER_MESSAGE_MAX:])
        message: pb.ToNode | None = None
        for port in sorted(ports)[:PORTS_PER_MESSAGE_MAX]:
            owed_ns, rate = cluster.owed_ns(port), cluster.ports.ports[port].rate_bytes_per_s
            before = self._told.get(port)
            if before is not None and before[1] == rate and not _moved(before[0], owed_ns):
                continue
            self._told[port] = owed_ns, rate
            if message is None:
                message = pb.ToNode(promises=pb.Promises(term=term))
            message.promises.port.append(self._number[port])
            message.promises.owed_ns.append(owed_ns)
            message.promises.rate_bytes_per_s.append(rate)
        return message


def _moved(before_ns: int, now_ns: int) -> bool:
    return (before_ns == 0) != (now_ns == 0) or abs(now_ns - before_ns) > max(STEP_NS, before_ns // STEP_SHARE)
