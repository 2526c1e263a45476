"""edf: stage 3 strictly by deadline. Flows with an implicit deadline share fairly below it."""

from bench.sim.policies import Policy, pack, register
from bench.sim.states import Flow


@register("edf")
class EarliestDeadlineFirst(Policy):
    def order(self, flow: Flow) -> int:
        if flow.state is not None and flow.stage == 3:
            flow.wire_class = 0
            return pack(0, second=flow.state.request.deadline_s)
        flow.wire_class = 1
        return pack(1)
