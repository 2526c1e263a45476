"""Reports to a daemon what is promised at the ports that it has named, when that has changed by much since the last
report. Pure."""

from __future__ import annotations

from mfsd.coordinator.cluster import Cluster
from mfsd.proto import mfs_pb2 as pb

STEP_NS = 1_000_000
STEP_SHARE = 8
"""A port's time is sent again when it has changed by more than a millisecond and more than an eighth."""
PORTS_PER_MESSAGE_MAX = 4_096


class PromisesOf:
    """State of one daemon's stream: its port numbers, and what was last sent for each port."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Resets the port numbers, which start anew."""
        self._number: dict[int, int] = {}
        self._sent_of: dict[int, tuple[int, int]] = {}
        """Time owed, and rate."""
        self._new: set[int] = set()

    def name(self, port: int, number: int) -> None:
        """The daemon calls the cluster's port by this number."""
        self._number[port] = number
        self._new.add(port)

    @property
    def waits(self) -> bool:
        """Whether the state of some port has still to be sent."""
        return bool(self._new)

    def later(self, touched: set[int]) -> None:
        """Postpones changes at these ports, because the daemon cannot be sent anything now."""
        self._new |= touched & self._number.keys()

    def take(self, cluster: Cluster, touched: set[int], term: int) -> pb.ToNode | None:
        """Returns what to send; None: nothing. `touched`: ports with a change since the last call."""
        ports = self._new | (touched & self._number.keys())
        self._new = set(sorted(ports)[PORTS_PER_MESSAGE_MAX:])
        message: pb.ToNode | None = None
        for port in sorted(ports)[:PORTS_PER_MESSAGE_MAX]:
            owed_ns, rate = cluster.owed_ns(port), cluster.ports.ports[port].rate_bytes_per_s
            before = self._sent_of.get(port)
            if before is not None and before[1] == rate and not _moved(before[0], owed_ns):
                continue
            self._sent_of[port] = owed_ns, rate
            if message is None:
                message = pb.ToNode(promises=pb.Promises(term=term))
            message.promises.port.append(self._number[port])
            message.promises.owed_ns.append(owed_ns)
            message.promises.rate_bytes_per_s.append(rate)
        return message


def _moved(before_ns: int, now_ns: int) -> bool:
    return (before_ns == 0) != (now_ns == 0) or abs(now_ns - before_ns) > max(STEP_NS, before_ns // STEP_SHARE)
