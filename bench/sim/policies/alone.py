"""alone: every unit has the fabric to itself; only its own stages meet. No order between units can exceed it, so it is
a closer upper reference than `nocont`, which also ignores what a batch does to itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.network import SharedNetwork
from bench.sim.policies import register
from bench.sim.policies.static_stage import StaticStageAware
from mfsd._native import Fluid, FluidPath

if TYPE_CHECKING:
    from bench.sim.states import Flow
    from bench.sim.topology import Topology


class FabricForEach(SharedNetwork):
    """A copy of all links for every unit."""

    def __init__(self, topology: Topology, units: int) -> None:
        super().__init__(topology)
        self.links = len(topology.capacities)
        self.fluid = Fluid(list(topology.capacities) * units)

    def native_path(self, flow: Flow) -> FluidPath:
        first = self.links * flow.batch.unit
        shares = flow.path.shares
        return FluidPath([first + link for link in shares], list(shares.values()))


@register("alone")
class Alone(StaticStageAware):
    def network(self) -> FabricForEach:
        cluster = self.simulation.cluster
        return FabricForEach(cluster.topology, cluster.all_units)
