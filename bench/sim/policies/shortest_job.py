"""sjf: strictly by size: that of one message on its busiest NIC (for a collective, the bytes that a NIC sends for
it)."""

from bench.sim.policies import Policy, pack, register
from bench.sim.states import Flow


@register("sjf")
class ShortestJobFirst(Policy):
    def order(self, flow: Flow) -> int:
        flow.wire_class = min(6, max(0, int(flow.port_bytes).bit_length() - 19))  # 0.5 MB per class and up
        return pack(0, second=flow.port_bytes * 1e-6)
