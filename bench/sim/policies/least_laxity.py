"""llf: clairvoyant least laxity. A strong reference, not a bound: it leaves whole units idle for single requests."""

from __future__ import annotations

from bench.sim.policies import Policy, pack, register
from bench.sim.states import QUEUED, Batch, Flow

SHIFT_S = 4096.0  # laxities can be negative


@register("llf")
class LeastLaxityFirst(Policy):
    at_layers = True
    reuse_by_layer = True
    tick_s = 1e-3

    def batch_laxity_s(self, batch: Batch) -> float:
        """Returns the smallest laxity of those of the batch's requests that can still be in time."""
        simulation = self.simulation
        if batch.step == QUEUED:
            request = batch.chunks[0].state.request
            laxity = request.deadline_s - simulation.now - simulation.until_layer_s(batch, batch.layers)
            return laxity if laxity >= 0 else SHIFT_S - 1
        laxities = (c.state.request.deadline_s - simulation.earliest_finish_s(c.state) for c in batch.chunks)
        return min((x for x in laxities if x >= 0), default=SHIFT_S - 1)

    def order(self, flow: Flow) -> int:
        simulation = self.simulation
        if flow.stage == 3 and flow.state is not None:
            laxity = (
                flow.state.request.deadline_s
                - simulation.now
                - simulation.p2d_left(flow.state) / flow.path.isolated_rate
            )
            if simulation.earliest_finish_s(flow.state) > flow.state.request.deadline_s:
                flow.wire_class = 7
                return pack(2, second=flow.state.request.deadline_s)
        else:
            laxity = self.batch_laxity_s(flow.batch)
            if flow.stage == 1:
                laxity += (
                    simulation.until_layer_s(flow.batch, flow.layer) - flow.message_bytes / flow.path.isolated_rate
                )
        flow.wire_class = min(6, max(0, int(max(0.0, laxity) * 1e3).bit_length() - 2))
        return pack(1, second=SHIFT_S + laxity)
