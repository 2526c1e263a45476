"""fs: max-min fairness in one class, a collective counting as its connections."""

from bench.sim.moves import Move
from bench.sim.policies import Policy, register
from bench.sim.states import Flow


@register("fs")
class FairSharing(Policy):
    def order(self, flow: Flow) -> int:
        return 0

    def order_move(self, move: Move) -> int:
        return 0
