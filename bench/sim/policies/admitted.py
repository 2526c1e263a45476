"""mfs-sent, mfs-admitted: `mfs` on a fabric of few classes, in exact order at each sender, and with admission at the
receiver after a round trip (bench/sim/admission.py). mfs-admitted-due: the same, and lost last stages keep their
deadline. For comparison with `mfs`, whose senders have one production queue each."""

from __future__ import annotations

from bench.sim.admission import AdmittedNetwork
from bench.sim.network import Network
from bench.sim.policies import register
from bench.sim.policies.mfs import CONFIGS, DEFAULT, Mfs
from bench.sim.policies.moore_hodgson import PARTS, MooreHodgson

ROUND_TRIP_S: dict[str, float | None] = {"mfs-sent": None, "mfs-admitted": 100e-6, "mfs-admitted-due": 100e-6}
CONFIGS |= dict.fromkeys(ROUND_TRIP_S, DEFAULT)
PARTS["mfs-admitted-due"] = PARTS["mfs-renewal"]


@register("mfs-sent", "mfs-admitted")
class Admitted(Mfs):
    variant = "mfs-admitted"

    def network(self) -> Network | None:
        if not self.simulation.cluster.config.fabric_classes:
            return None
        return AdmittedNetwork(self.simulation.cluster.topology, ROUND_TRIP_S[self.variant])


@register("mfs-admitted-due")
class AdmittedDue(MooreHodgson):
    variant = "mfs-admitted-due"
    network = Admitted.network
