"""static: stage 2, then stage 1 by layer, then stage 3 by deadline. The strongest simple rule, which MFS has to beat.

On a fabric with few classes flows wait in production's host queue. It is not given sizes that matter, when a load is
needed, or batches' ranks: loads go in the order in which they were asked for, last stages by deadline. static-exact:
exact order on every link, whatever classes the fabric has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.sim.altered_queue import AlteredNetwork
from bench.sim.hold import hold_of
from bench.sim.network import Network, SharedNetwork
from bench.sim.policies import Policy, pack, register
from mfsd.policy import EarlyOrder, PolicyConfig

if TYPE_CHECKING:
    from bench.sim.engine import Simulation
    from bench.sim.states import Batch, Flow
    from mfsd._native import Rmlq

LATER_NS = 3_600_000_000_000  # an hour: a deadline that is never missed, in the order of those that are missed


def by_deadline_alone(_queue: Rmlq, _now_ns: int, facts: dict[str, Any]) -> None:
    """Makes no last stage lost or near its deadline."""
    if facts["stage"] == 3:
        facts["deadline_ns"] += LATER_NS


@register("static")
class StaticStageAware(Policy):
    at_layers = True
    reuse_by_layer = True

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.queues: AlteredNetwork | None = None

    def network(self) -> Network | None:
        cluster = self.simulation.cluster
        if not cluster.config.fabric_classes:
            return None
        self.at_layers = self.reuse_by_layer = False
        config = PolicyConfig(
            classes=cluster.config.fabric_classes, early_order=EarlyOrder.RANK, critical_laxity_share=0.0
        )
        self.queues = AlteredNetwork(
            cluster.topology, config, by_deadline_alone, hold_of(cluster.config), cluster.config.reads
        )
        return self.queues

    def batch_began(self, batch: Batch) -> None:
        if self.queues is None:
            return
        self.layer_began(batch)
        for chunk in batch.chunks:
            if chunk.state.reuse is not None and self.simulation.early_fetch:
                self.queues.joined(chunk.state.reuse)

    def layer_began(self, batch: Batch) -> None:
        if self.queues is not None:
            self.queues.announce_batch(batch, rank=0, deadline_ns=1, compute_left_ns=0, layers=batch.layers)

    def batch_computed(self, batch: Batch) -> None:
        if self.queues is not None:
            self.queues.end_batch(batch)

    def order(self, flow: Flow) -> int:
        if flow.stage == 2 or flow.state is None:
            flow.wire_class = 0
            return pack(0)
        if flow.stage == 1:
            ahead = max(0, flow.layer - flow.batch.layer)
            flow.wire_class = 1 + min(ahead, 3)
            return pack(1, ahead)
        flow.wire_class = 5
        return pack(2, second=flow.state.request.deadline_s)


@register("static-exact")
class StaticExact(StaticStageAware):
    def network(self) -> SharedNetwork:
        return SharedNetwork(self.simulation.cluster.topology)
