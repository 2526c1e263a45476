"""varys: coflows by smallest effective bottleneck (SEBF), all flows of one at rates that end together
(MADD), work conserving.

A collective, and a request's KV of one layer, are coflows; the simulator's coupled flows have MADD rates by
construction."""

from bench.sim.policies import Policy, pack, register
from bench.sim.states import Flow


@register("varys")
class Varys(Policy):
    def order(self, flow: Flow) -> int:
        bottleneck_s = flow.message_bytes / flow.path.isolated_rate
        flow.wire_class = min(6, max(0, int(bottleneck_s * 1e4).bit_length()))
        return pack(0, second=bottleneck_s)
