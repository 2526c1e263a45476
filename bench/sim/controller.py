"""The meta controller over the units of the layer-level simulator: production's `decide`, asked once a second for each
unit, which order of bench.sim.serve its batches follow from then on.

What it perceives is what a prefill unit's requests experienced: arrivals and what is to be computed, first tokens and
whether they were in time, and what is queued. A first token is there once the prompt's KV has been shipped, so the
network counts. There is no decoding here: outputs are unknown, no later token is late, and there is one tenant. So
orders by expected outputs (two-lane, srtf) and by tenants (wfq) are not in the pool, and the rules that lead to them
choose what is next in it.
"""

from __future__ import annotations

import msgspec

from bench.sim.engine import Simulation
from bench.sim.serve import SCHEDULERS, Planner
from bench.sim.states import State
from mfsd.policy.serve import Policy
from mfsd.policy.serve.meta import MetaConfig, MetaState, Qos, Strategy, decide
from mfsd.policy.serve.meta.config import POOL

TICK_S = 1.0
META, WITH_FIT = "meta-", "-fit"
NAMES = tuple(
    f"{META}{strategy.value}{fit}" for strategy in Strategy if strategy is not Strategy.LLM for fit in ("", WITH_FIT)
)
"""With the suffix, the pool begins with `fit`, which production's has not."""
ORDERS = tuple(policy for policy in POOL if policy.value in SCHEDULERS)
"""Production's pool without what needs decoding or tenants."""
TIMES = MetaConfig(
    pool=ORDERS, every_s=5.0, long_s=45.0, bypass_after_s=3.0, bypass_max_s=10.0, rollback_within_s=5.0, barred_s=20.0
)
"""Shorter than production's, as the phases of a run are here (about 50 s, H-MAS's 200 s)."""


def config_of(name: str) -> MetaConfig:
    """Returns the configuration of one of NAMES."""
    strategy = Strategy(name.removeprefix(META).removesuffix(WITH_FIT))
    pool = (Policy.FIT, *ORDERS) if name.endswith(WITH_FIT) else ORDERS
    return msgspec.structs.replace(TIMES, strategy=strategy, pool=pool)


class Controllers:
    """One controller for each unit. Begins to tick on construction."""

    def __init__(self, simulation: Simulation, planner: Planner, config: MetaConfig) -> None:
        self.simulation, self.planner = simulation, planner
        self.units = [_Controller(unit, planner, config) for unit in range(simulation.cluster.all_units)]
        self.seen = 0  # requests that have arrived, in the order of arrival
        simulation.at(0.0, self._tick, None)

    @property
    def switches(self) -> int:
        return sum(unit.switches for unit in self.units)

    def _tick(self, _: object) -> None:
        simulation = self.simulation
        if not simulation.unfinished:
            return
        self.perceive(simulation.now)
        simulation.at(simulation.now + TICK_S, self._tick, None)

    def perceive(self, now_s: float) -> None:
        """Gives every unit's controller the requests that have arrived, and its turn."""
        states = self.simulation.states
        while self.seen < len(states) and states[self.seen].request.arrival_s <= now_s:
            state = states[self.seen]
            self.units[state.request.unit].arrived(state)
            self.seen += 1
        for unit in self.units:
            unit.tick(now_s)

    def orders(self) -> dict[str, float]:
        """Returns the share of all ticks at which a unit followed each order."""
        ticks = sum(sum(unit.ticks.values()) for unit in self.units)
        return {
            order.value: round(sum(unit.ticks.get(order, 0) for unit in self.units) / ticks, 6)
            for order in self.units[0].config.pool
            if ticks
        }


class _Controller:
    def __init__(self, unit: int, planner: Planner, config: MetaConfig) -> None:
        self.unit, self.planner, self.config = unit, planner, config
        self.qos, self.state = Qos(config), MetaState()
        self.new: list[State] = []
        self.undecided: dict[int, tuple[State, float]] = {}
        """Requests that are neither in time nor late yet, with what they take to compute."""
        self.waiting: dict[int, State] = {}
        """Requests without a first token."""
        self.order: Policy | None = None
        self.switches = 0
        self.ticks: dict[Policy, int] = {}

    def arrived(self, state: State) -> None:
        self.new.append(state)

    def tick(self, now_s: float) -> None:
        each = self.planner.prefill_s_per_token(self.unit)
        for state in self.new:
            request = state.request
            service_s = each * (request.context_tokens + request.new_tokens)
            self.qos.arrived(now_s, service_s, known=False)
            self.undecided[request.number] = (state, service_s)
            self.waiting[request.number] = state
        self.new = []
        self._experienced(now_s)
        queue = [state for state in self.waiting.values() if now_s <= state.request.deadline_s]
        queued_s = each * sum(state.request.new_tokens - state.done_tokens for state in queue)
        tightest_s = min((state.request.budget_s for state in queue), default=0.0)
        views = self.qos.views(now_s, queued_s, tightest_s)
        decision, self.state = decide(self.config, self.state, views, now_s)
        if decision.decided:
            self.qos.decided()
        if decision.policy is not self.order:
            self.switches += self.order is not None
            self.order = decision.policy
            self.planner.use(self.unit, SCHEDULERS[decision.policy.value][1])
        self.ticks[decision.policy] = self.ticks.get(decision.policy, 0) + 1

    def _experienced(self, now_s: float) -> None:
        for number, (state, service_s) in list(self.undecided.items()):
            there = state.finish_s >= 0
            late = (state.finish_s if there else now_s) > state.request.deadline_s
            if late or there:
                self.qos.evaluated(now_s, "", service_s, late)
                del self.undecided[number]
        for number, state in list(self.waiting.items()):
            if state.finish_s >= 0:
                self.qos.first_token(now_s, state.finish_s - state.request.arrival_s)
                self.qos.ended(now_s, state.finish_s <= state.request.deadline_s, False)
                del self.waiting[number]
