"""A leader's cluster whose daemons remember what they were sent, and batches for it."""

from __future__ import annotations

from mfsd.coordinator.cluster import Cluster
from mfsd.coordinator.state import BatchReport, Delta, RequestReport
from mfsd.policy.config import PolicyConfig

MS = 1_000_000
S = 1_000_000_000
RATE = 1_000_000_000
GRACE_NS = 5 * S


class World:
    """A cluster whose daemons remember what they were sent."""

    def __init__(self, *nodes: str, policy: PolicyConfig | None = None) -> None:
        self.cluster = Cluster(policy or PolicyConfig(drop_budget=0.5), RATE, GRACE_NS)
        self.keys: dict[str, dict[int, int]] = {}
        self.pruned: dict[str, set[tuple[int, int]]] = {}
        self.infeasible: dict[str, set[tuple[int, int]]] = {}
        self.refused: dict[str, dict[int, str]] = {}
        for name in nodes:
            self.join(name)

    def join(self, name: str, now_ns: int = 0) -> None:
        self.cluster.connect(name, {f"{name}/in": RATE, f"{name}/out": RATE}, now_ns)
        self.cluster.synchronise(name, now_ns)
        self.tell()

    def port(self, name: str) -> int:
        return self.cluster.ports.number(name)

    def arrive(self, node: str, report: BatchReport, now_ns: int = 0) -> None:
        self.cluster.arrive(node, report, now_ns)
        self.tell()

    def update(self, node: str, report: BatchReport, now_ns: int = 0) -> None:
        self.cluster.update(node, report, now_ns)
        self.tell()

    def depart(self, node: str, batch_id: int, now_ns: int = 0) -> None:
        self.cluster.depart(node, batch_id, now_ns)
        self.keys[node].pop(batch_id, None)
        self.tell()

    def tell(self) -> dict[str, Delta]:
        """Gives every daemon what it has not been sent."""
        reported = {}
        for name in sorted(self.cluster.dirty):
            delta = self.cluster.take(name)
            if delta is None:
                continue
            reported[name] = delta
            keys, pruned = self.keys.setdefault(name, {}), self.pruned.setdefault(name, set())
            infeasible = self.infeasible.setdefault(name, set())
            if delta.snapshot:
                keys.clear()
                pruned.clear()
                infeasible.clear()
            keys.update(delta.keys)
            pruned.update((e.batch_id, e.request_id) for e in delta.pruned)
            pruned.difference_update(delta.restored, delta.infeasible)
            infeasible.update(delta.infeasible)
            infeasible.difference_update(delta.restored, ((e.batch_id, e.request_id) for e in delta.pruned))
            self.refused.setdefault(name, {}).update(delta.refused)
        return reported

    def order(self, node: str) -> list[int]:
        keys = self.keys[node]
        return sorted(keys, key=lambda b: (keys[b], b))


def batch(
    batch_id: int, *budgets_ns: int | None, port: int = 0, size: int = 1000, compute_ns: int = 0, unit: str = "u"
) -> BatchReport:
    requests = [RequestReport(batch_id * 100 + i, b, {port: size}) for i, b in enumerate(budgets_ns)]
    return BatchReport(batch_id, unit, compute_ns, requests, {})


def heavy(batch_id: int, budget_ns: int, size: int, port: int) -> BatchReport:
    return BatchReport(
        batch_id,
        "u",
        0,
        [
            RequestReport(batch_id * 100, budget_ns, {port: size}),
            RequestReport(batch_id * 100 + 1, budget_ns, {port: 1000}),
        ],
        {},
    )
