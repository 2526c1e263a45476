"""Requests that still wait at engines, and what is owed for them at the ports of the owners of their KV. Pure.

Only the reading node knows of a read, so the sum over all nodes is made here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mfsd.coordinator.state import BUDGET_MAX_NS
from mfsd.policy.outlook import needed_by
from mfsd.proto.wire import WAITING_PER_NODE_MAX


class WaitingReport(NamedTuple):
    request_id: int
    budget_left_ns: int | None
    rank: int
    engine: int
    relegated: bool
    demands: Mapping[int, int]
    """Port number -> bytes."""


class _Waiting(NamedTuple):
    deadline_ns: int | None
    rank: int
    engine: int
    relegated: bool
    demands: Mapping[int, int]


class WaitingRequests:
    def __init__(self) -> None:
        self._nodes: dict[str, dict[int, _Waiting]] = {}
        self._unconfirmed: dict[str, set[int]] = {}
        """Requests reported before the reconnection and not since."""
        self._bytes: dict[int, int] = {}
        """Port -> bytes."""
        self._at: dict[int, dict[tuple[str, int], int]] = {}
        """Port -> node and request -> bytes."""
        self.relegated = 0
        self.touched: set[int] = set()
        """Ports at which something has changed; the caller clears it."""

    def __len__(self) -> int:
        return sum(map(len, self._nodes.values()))

    def put(self, node: str, report: WaitingReport, now_ns: int) -> bool:
        """Adds or replaces a request. Returns False if this node has too many already."""
        requests = self._nodes.setdefault(node, {})
        if report.request_id not in requests and len(requests) >= WAITING_PER_NODE_MAX:
            return False
        self.remove(node, report.request_id)
        deadline_ns = None
        if report.budget_left_ns is not None:
            deadline_ns = now_ns + min(max(-BUDGET_MAX_NS, report.budget_left_ns), BUDGET_MAX_NS)
        # a relegated request is fetched by the scavenger and delays no other
        demands = {} if report.relegated else {port: size for port, size in report.demands.items() if size}
        self._nodes.setdefault(node, {})[report.request_id] = _Waiting(
            deadline_ns, report.rank, report.engine, report.relegated, demands
        )
        self.relegated += report.relegated
        for port, size in demands.items():
            self._bytes[port] = self._bytes.get(port, 0) + size
            self._at.setdefault(port, {})[node, report.request_id] = size
        self.touched.update(demands)
        return True

    def remove(self, node: str, request_id: int) -> None:
        """Removes a request. An unknown one is ignored."""
        requests = self._nodes.get(node, {})
        self._unconfirmed.get(node, set()).discard(request_id)
        found = requests.pop(request_id, None)
        if found is None:
            return
        self.relegated -= found.relegated
        for port, size in found.demands.items():
            self._bytes[port] -= size
            del self._at[port][node, request_id]
            if not self._at[port]:
                del self._at[port], self._bytes[port]
        self.touched.update(found.demands)
        if not requests:
            del self._nodes[node]

    def connect(self, node: str) -> None:
        """Its snapshot follows."""
        self._unconfirmed[node] = set(self._nodes.get(node, ()))

    def synchronise(self, node: str) -> None:
        """Removes what the node's snapshot did not contain."""
        for request_id in list(self._unconfirmed.pop(node, ())):
            self.remove(node, request_id)

    def forget(self, node: str) -> None:
        self._unconfirmed.pop(node, None)
        for request_id in list(self._nodes.get(node, ())):
            self.remove(node, request_id)

    def size_bytes(self, port: int) -> int:
        """Returns the bytes owed at the port."""
        return self._bytes.get(port, 0)

    def size_bytes_before(self, port: int, deadline_ns: int) -> int:
        """The part of `size_bytes` that is needed by the deadline. Each load is needed no later than any request that
        its engine serves after it is due."""
        due: dict[tuple[str, int], dict[int, int | None]] = {}
        size = 0
        for (node, request_id), part in self._at.get(port, {}).items():
            engine = node, self._nodes[node][request_id].engine
            if engine not in due:
                due[engine] = self._needed_by(*engine)
            needed_ns = due[engine][request_id]
            size += part if needed_ns is not None and needed_ns <= deadline_ns else 0
        return size

    def _needed_by(self, node: str, engine: int) -> dict[int, int | None]:
        return needed_by(
            (request_id, row.rank, row.deadline_ns)
            for request_id, row in self._nodes[node].items()
            if row.engine == engine
        )
