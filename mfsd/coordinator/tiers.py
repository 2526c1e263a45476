"""What engines report of each tier of requests, by node and summed over all nodes. Pure.

The sums are updated with each report, so that a reader need not add up a cluster each time. A node's part is removed
with its stream: nothing older than its daemon's last report is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from mfsd.policy.request_tiers import NodeTiers, TierReport, added

NAMES_MAX = 256
"""Limit of the tiers with a name of their own in a cluster, because names are labels of metrics."""


class TierTable:
    def __init__(self) -> None:
        self.sums: dict[str, TierReport] = {}
        """By tier, over all nodes."""
        self.nodes_with: Counter[str] = Counter()
        """Number of nodes that have the tier."""
        self.shown: dict[str, bytes] = {}
        """The daemon's message by node, to pass on to readers; without nodes that have sent none."""
        self._taken: dict[str, Mapping[str, TierReport]] = {}
        """By node: its part of the sums."""

    def put(self, node: str, found: NodeTiers, sent: bytes) -> int:
        """Replaces the node's report. Returns how many of its tiers the sums leave out because the cluster has too
        many."""
        self.forget(node)
        taken: dict[str, TierReport] = {}
        for name, report in found.tiers.items():
            if name in self.sums or len(self.sums) < NAMES_MAX:
                taken[name] = report
                self.sums[name] = added(self.sums.get(name), report)
                self.nodes_with[name] += 1
        self._taken[node] = taken
        if sent:
            self.shown[node] = sent
        return len(found.tiers) - len(taken)

    def forget(self, node: str) -> None:
        """Its daemon is gone, or starts anew."""
        self.shown.pop(node, None)
        for name, report in self._taken.pop(node, {}).items():
            self.nodes_with[name] -= 1
            if self.nodes_with[name]:
                self.sums[name] = added(self.sums[name], report, -1)
            else:
                del self.sums[name], self.nodes_with[name]
