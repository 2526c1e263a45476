"""nocont: every flow at its isolated rate. No policy can do better: the upper reference."""

from bench.sim.engine import Flow
from bench.sim.policies import Policy, register


@register("nocont")
class NoContention(Policy):
    isolated = True

    def order(self, flow: Flow) -> int:
        return 0
