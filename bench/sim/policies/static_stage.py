"""static: stage 2, then stage 1 by layer, then stage 3 by deadline. The strongest simple rule; MFS has to
beat it.

static-exact: the same with exact order on every link, whatever classes the fabric has."""

from bench.sim.network import SharedNetwork
from bench.sim.policies import Policy, pack, register
from bench.sim.states import Flow


@register("static")
class StaticStageAware(Policy):
    at_layers = True
    reuse_by_layer = True

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
