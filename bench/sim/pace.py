"""When a load must be there for its request to be in time, as the unit's engine can estimate it from the tokens to
compute first and the time per token in recent batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.sim.engine import Simulation
    from bench.sim.states import Batch, State

KEPT = 0.8  # weight kept of earlier batches when another one is measured, as in mooncake_adapter.vllm.worker


class Pace:
    """Seconds and tokens of each unit's batches, the latest ones weighted most, and estimates from them."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.begun_s: dict[int, float] = {}  # of batches that run
        self.spent: dict[int, tuple[float, float]] = {}  # unit -> seconds, tokens

    def batch_began(self, batch: Batch) -> None:
        self.begun_s[batch.serial] = self.simulation.now

    def batch_computed(self, batch: Batch) -> None:
        seconds, tokens = self.spent.get(batch.unit, (0.0, 0.0))
        took_s = self.simulation.now - self.begun_s.pop(batch.serial)
        self.spent[batch.unit] = (KEPT * seconds + took_s, KEPT * tokens + batch.tokens)

    def needed_s(self, state: State) -> float | None:
        """Returns when the reuse of a queued request must be there; None before its unit has computed anything.
        Requests that wait for loads of their own are not expected to go first."""
        simulation, unit = self.simulation, state.request.unit
        if unit not in self.spent:
            return None
        seconds, of_tokens = self.spent[unit]
        tokens = float(state.request.new_tokens)
        for other in simulation.queues[unit]:
            if other is state:
                break
            if other.reuse is None:
                tokens += other.request.new_tokens - other.done_tokens
        running = simulation.running[unit]
        if running is not None:
            tokens += running.tokens * (1 - running.layer / running.layers)
        return state.request.deadline_s - tokens * seconds / of_tokens
