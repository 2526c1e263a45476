"""The interface of scheduling policies. The existing ones derive from `bench.sim.policies.Policy`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.sim.moves import Move
    from bench.sim.network import Network
    from bench.sim.states import Batch, Flow


class Hooks:
    """Events that a policy may react to; all are optional."""

    def p2d_created(self, flow: Flow) -> None:
        """A request's stage-3 stream exists; nothing is posted yet."""

    def batch_began(self, batch: Batch) -> None:
        """A unit is about to compute this batch."""

    def layer_began(self, batch: Batch) -> None:
        """The batch waits for, or computes, its next layer."""

    def batch_computed(self, batch: Batch) -> None:
        """The unit has computed the batch; its requests may still ship."""

    def batch_ended(self, batch: Batch) -> None:
        """The last request of the batch has finished."""

    def flow_ended(self, flow: Flow) -> None:
        """A collective or a request's stage 3 has ended."""


class SchedulingPolicy(Hooks, ABC):
    """What every policy is asked. The defaults suit a policy that never changes its mind."""

    isolated = False  # every flow at the rate it has alone
    at_layers = False  # ask again for a batch's KV flows when it begins a layer
    reuse_by_layer = False  # the order of stage 1 depends on the layer it fetches
    tick_s: float | None = None  # ask again for what still ships, this often

    @abstractmethod
    def order(self, flow: Flow) -> int:
        """Returns the flow's place now; may set flow.wire_class (0 highest) for fabrics with few classes."""

    @abstractmethod
    def order_move(self, move: Move) -> int:
        """Returns the place of weights that move; may set move.wire_class, too."""

    def network(self) -> Network | None:
        """Returns a network of the policy's own; None: the one that the configuration asks for."""
        return None

    def tick(self) -> None:
        """Called every tick_s while something ships."""
