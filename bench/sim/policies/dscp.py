"""dscp, dscp-size: what the classes of a fabric achieve without a daemon. The sender of a transfer marks it once and
posts it at once; nothing waits at the sender, and the fabric is fair inside a class.

dscp marks by stage: collectives, loads (stage 1), last stages (stage 3). dscp-size has classes by size among loads and
among last stages, the smallest highest: of eight classes one for collectives, four for loads, three for last stages.
Their limits are quantiles of the run's own sizes. An operator would take those of another day, so this favours the
policy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from bench.sim.network import SharedNetwork
from bench.sim.policies import Policy, pack, register
from mfsd.policy.marks import Marks, divided
from mfsd.policy.types import Stage

if TYPE_CHECKING:
    from bench.sim.cluster import Cluster, Request
    from bench.sim.engine import Simulation
    from bench.sim.moves import Move
    from bench.sim.states import Flow

CLASSES = 8  # if the configuration names none


def load_bytes(cluster: Cluster, request: Request) -> float:
    return request.remote_tokens * cluster.kv_bytes * cluster.model.layers


def last_stage_bytes(cluster: Cluster, request: Request) -> float:
    return (request.new_tokens + request.context_tokens) * cluster.kv_bytes * cluster.model.layers


def edges(sizes: Iterable[float], classes: int) -> list[float]:
    """Returns the largest size of each class but the last: about as many transfers in each."""
    ordered = sorted(size for size in sizes if size > 0)
    if not ordered:
        return []
    return [ordered[min(len(ordered) - 1, len(ordered) * (i + 1) // classes)] for i in range(classes - 1)]


class Marked(Policy, ABC):
    """Strict classes set by the sender; the class is the place."""

    def network(self) -> SharedNetwork:
        return SharedNetwork(self.simulation.cluster.topology)

    @abstractmethod
    def mark(self, flow: Flow) -> int:
        """Returns the flow's class on the wire."""

    @abstractmethod
    def mark_move(self, move: Move) -> int:
        """Returns the class of weights that move."""

    def order(self, flow: Flow) -> int:
        flow.wire_class = self.mark(flow)
        return pack(flow.wire_class)

    def order_move(self, move: Move) -> int:
        move.wire_class = self.mark_move(move)
        return pack(move.wire_class)


@register("dscp")
class Dscp(Marked):
    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.last = (simulation.cluster.config.fabric_classes or CLASSES) - 1

    def mark(self, flow: Flow) -> int:
        return min({2: 0, 1: 1, 3: 2}[flow.stage], self.last)

    def mark_move(self, move: Move) -> int:
        return min({Stage.REUSE: 1, Stage.BACKGROUND: 3}[move.mark], self.last)


def by_size(classes: int, known: Iterable[tuple[Cluster, Request]], *, background: bool = False) -> Marks:
    """Returns classes by stage and size as programs set them themselves, with limits at quantiles of the sizes of these
    requests. `background`: one class is reserved for such traffic."""
    stages, of = divided(classes, background=background).by_stage(), list(known)
    sizes = {
        stage: tuple(round(edge) for edge in edges((size(*one) for one in of), len(stages[stage])))
        for stage, size in ((Stage.REUSE, load_bytes), (Stage.P2D, last_stage_bytes))
    }
    return Marks((None,) * classes, stages, sizes)


@register("dscp-size")
class DscpBySize(Marked):
    def __init__(self, simulation: Simulation, marks: Marks | None = None) -> None:
        super().__init__(simulation)
        classes = simulation.cluster.config.fabric_classes or CLASSES
        known = ((state.cluster, state.request) for state in simulation.states)
        config = simulation.cluster.config
        moved = config.moves_share > 0 or config.unit_models is not None
        background = config.moves_as == "background" and moved
        self.marks = marks or by_size(classes, known, background=background)

    def mark(self, flow: Flow) -> int:
        if flow.stage == 2 or flow.state is None:
            return self.marks.wire_class(Stage.COLLECTIVE)
        size = load_bytes if flow.stage == 1 else last_stage_bytes
        return self.marks.wire_class(flow.stage, round(size(flow.state.cluster, flow.state.request)))

    def mark_move(self, move: Move) -> int:
        return self.marks.wire_class(move.mark, round(move.message_bytes))
