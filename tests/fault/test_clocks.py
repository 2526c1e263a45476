"""Clocks of hosts that differ by days, or jump: the cluster's order is by what is left of each budget."""

from __future__ import annotations

import time
from pathlib import Path

from mfsd.node.link import Link
from mfsd.node.link_interface import Identity, LinkSettings
from tests.support.cluster import Coordinator, Node, in_loop, until

DAYS_NS = 100 * 24 * 3600 * 10**9


def with_clock(node: Node, name: str, coordinator: Coordinator, ahead_ns: int) -> Node:
    """The node's link, on a clock of its own."""
    settings = LinkSettings(addresses=(coordinator.address,), ttl_ns=30 * 10**9)
    ports = {f"{name}/in": 10**9, f"{name}/out": 10**9}
    clock = lambda: time.monotonic_ns() + ahead_ns  # noqa: E731
    node.link = Link(settings, Identity(name, "test", 1), ports, node.received, node.log, clock_ns=clock)
    return node


@in_loop
async def test_hosts_whose_clocks_are_days_apart_are_ordered_by_their_budgets(tmp_path: Path) -> None:
    with Coordinator(tmp_path) as coordinator:
        early = with_clock(Node("a", coordinator.address), "a", coordinator, DAYS_NS)
        late = with_clock(Node("b", coordinator.address), "b", coordinator, -time.monotonic_ns() + 10**9)
        async with early as a, late as b:
            a.arrive(1, 30)
            b.arrive(2, 10)
            a.arrive(3, 20)
            b.arrive(4, 40)
            await until(lambda: a.received.batches() == [3, 1] and b.received.batches() == [2, 4], "each node's order")
            seen = [(row.batch_id, row.red_left_ns) for row in coordinator.status().batches]
            assert [batch for batch, _ in seen] == [2, 3, 1, 4]
            assert all(0 < left_ns <= 40 * 10**9 for _, left_ns in seen), seen
            age_s = a.link.status().age_s
            assert age_s is not None and age_s < 30
