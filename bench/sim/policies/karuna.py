"""karuna: a flow with a deadline gets exactly the rate that meets it, above everything else; other flows, and late
ones, go by size."""

from bench.sim.network import SharedNetwork
from bench.sim.policies import Policy, pack, register
from bench.sim.states import Flow

# Share of the budget: rates are set at events, and rounding would make a completion exactly at the deadline late.
MARGIN = 2e-3


@register("karuna")
class Karuna(Policy):
    at_layers = True
    tick_s = 1e-3

    def p2d_created(self, flow: Flow) -> None:
        flow.limited = True

    def order(self, flow: Flow) -> int:
        flow.wire_class = 1 + min(5, max(0, int(flow.port_bytes).bit_length() - 19))
        if flow.stage == 3 and flow.state is not None:
            request, simulation = flow.state.request, self.simulation
            left_s = request.deadline_s - MARGIN * request.budget_s - simulation.now
            rate = flow.path.isolated_rate
            on_time = left_s > 0
            if on_time:
                rate = min(rate, simulation.p2d_left(flow.state) / left_s)
            network = simulation.network
            if isinstance(network, SharedNetwork):
                network.limit(flow, rate)
            if on_time:
                flow.wire_class = 0
                return pack(0)
        return pack(1, second=flow.port_bytes * 1e-6)
