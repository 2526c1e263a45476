"""The work that a cluster gives its coordinator, drawn from a seed: batches over 1,024 nodes with two ports each."""

from __future__ import annotations

import random
import time
from typing import NamedTuple

from mfsd.coordinator.cluster import Cluster
from mfsd.node.link_interface import BatchSummary, PortDemand, RequestSummary
from mfsd.policy.config import PolicyConfig
from mfsd.policy.load import Loads
from mfsd.policy.pruning import plan
from mfsd.policy.result import Batch

NODES = 1_024
RATE_BYTES_PER_S = 50_000_000_000  # 400 Gbit/s
MS = 1_000_000


def ports_of(node: int) -> dict[str, int]:
    return {f"{address(node)}/in": RATE_BYTES_PER_S, f"{address(node)}/out": RATE_BYTES_PER_S}


def address(node: int) -> str:
    return f"10.{node >> 16 & 255}.{node >> 8 & 255}.{node & 255}"


class Load:
    """Batches of 1 to 8 requests: reused KV from two nodes of the pool, new KV to one decode node each."""

    def __init__(self, seed: int, first_batch: int = 1, bytes_scale: float = 1.0) -> None:
        """bytes_scale: 1 loads the ports lightly."""
        self._scale = bytes_scale
        self._random = random.Random(seed)
        self._numbers = iter(range(first_batch, 2**63))

    def batch(self, node: int) -> BatchSummary:
        """A new batch of this node. About one in a hundred has a deadline that it can hardly make."""
        draw = self._random
        number = next(self._numbers)
        own = address(node)
        requests = []
        for i in range(draw.randint(1, 8)):
            size = int(self._scale * draw.lognormvariate(16.0, 1.0))  # 9 MB in the middle
            decode, pool = address(draw.randrange(NODES)), address(draw.randrange(NODES))
            reused = int(size * draw.random())
            demands = [PortDemand(f"{own}/out", size), PortDemand(f"{decode}/in", size)]
            if reused:
                demands += [PortDemand(f"{pool}/out", reused), PortDemand(f"{own}/in", reused)]
            budget_ms = draw.uniform(1_500, 6_000) if draw.random() > 0.01 else draw.uniform(50, 400)
            requests.append(RequestSummary(number * 16 + i, int(budget_ms * MS), tuple(demands)))
        return BatchSummary(number, f"unit-{node}", int(draw.uniform(10, 300) * MS), tuple(requests))

    def later(self, batch: BatchSummary) -> BatchSummary:
        """The batch a layer later: less compute and fewer bytes."""
        requests = tuple(
            RequestSummary(
                r.request_id,
                (r.budget_left_ns or 0) - 3 * MS,
                tuple(PortDemand(d.port, d.size_bytes * 9 // 10) for d in r.demands),
            )
            for r in batch.requests
        )
        return BatchSummary(batch.batch_id, batch.unit, batch.compute_left_ns * 9 // 10, requests)

    def node(self, among: range) -> int:
        return self._random.choice(among)

    def random(self) -> float:
        return self._random.random()


class Snapshot(NamedTuple):
    """What the reference plans afresh, in the other process: here it would keep the leader from its lease."""

    policy: PolicyConfig
    batches: list[Batch]
    ports: int
    now_ns: int

    @classmethod
    def of(cls, cluster: Cluster, now_ns: int) -> Snapshot:
        batches = [cluster._merged(active, now_ns)[0] for active in cluster.batches.values()]
        return cls(cluster.policy, batches, len(cluster.ports), now_ns)

    def reference_ms(self) -> float:
        """What planning afresh takes, as ReferenceCore does for every event."""
        capacities: Loads = dict.fromkeys(range(self.ports), 10**9)
        start_s = time.perf_counter()
        plan(self.policy, self.batches, capacities, self.now_ns)
        return (time.perf_counter() - start_s) * 1e3
