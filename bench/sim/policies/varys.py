"""varys: coflows by smallest effective bottleneck of what is left of them (SEBF), all flows of one at rates that end
together (MADD), work conserving.

Coflows are: a collective; what a request loads, of all its layers; and what it ships. The simulator's coupled flows
have MADD rates by construction.
"""

from __future__ import annotations

from bench.sim.policies import Policy, pack, register
from bench.sim.states import Flow


@register("varys")
class Varys(Policy):
    at_layers = True
    reuse_by_layer = True
    tick_s = 1e-3

    def order(self, flow: Flow) -> int:
        simulation = self.simulation
        left = flow.message_bytes
        if flow.state is not None:
            left = simulation.reuse_left(flow.state) if flow.stage == 1 else simulation.p2d_left(flow.state)
        bottleneck_s = left / flow.path.isolated_rate
        flow.wire_class = min(6, max(0, int(bottleneck_s * 1e4).bit_length()))
        return pack(0, second=bottleneck_s)

    def tick(self) -> None:
        super().tick()
        for unit in range(len(self.simulation.queues)):
            for flow in self.simulation.queued_reuse(unit):
                self.simulation.reorder(flow)
