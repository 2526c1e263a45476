"""nocont: every flow at its isolated rate. No policy can do better: the upper reference."""

from bench.sim.policies import Policy, register
from bench.sim.states import Flow


@register("nocont")
class NoContention(Policy):
    isolated = True

    def order(self, flow: Flow) -> int:
        return 0
