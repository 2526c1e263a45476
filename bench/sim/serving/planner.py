"""The planner that calls plan_step with all calls in every step."""

from __future__ import annotations

from typing import Protocol

from bench.sim.serving.live import Live, Serving
from mfsd import _native
from mfsd.policy.serve import (
    Observed,
    Policy,
    Request,
    ServeConfig,
    ServeState,
    StepPlan,
    StepView,
    plan_step,
)

Piece = _native.ServedPiece
Decision = _native.ServedDecision

AGING = frozenset({Policy.MLFQ, Policy.LAS})
"""Orders by what a call has received and waited for, which change while it waits."""


class Planner(Protocol):
    """Notified of every change, so that it may maintain an order; asked once a step."""

    @property
    def state(self) -> ServeState:
        """What the next plan starts from."""

    def joined(self, live: Live) -> None:
        """The call waits."""

    def left(self, live: Live) -> None:
        """The call waits no longer."""

    def decoding(self, live: Live) -> None:
        """The call's prompt is done."""

    def plan(self, observed: tuple[Observed, ...], now_s: float) -> Decision: ...


class Journal(Protocol):
    """Receives what a plan was made from, for replays."""

    def __call__(
        self, view: StepView, state: ServeState, config: ServeConfig, now_s: float, plan: StepPlan
    ) -> None: ...


class Asking:
    def __init__(self, replica: Serving, config: ServeConfig, state: ServeState, journal: Journal | None) -> None:
        self._replica, self._config, self.state, self._journal = replica, config, state, journal
        self._aging = config.policy in AGING

    def joined(self, live: Live) -> None:
        pass

    def left(self, live: Live) -> None:
        pass

    def decoding(self, live: Live) -> None:
        pass

    def view(self, observed: tuple[Observed, ...], now_s: float) -> StepView:
        replica = self._replica
        round_, busy_s = replica.round, replica.busy_s
        waiting = []
        for live in replica.waiting.values():
            request = live.request
            if request is None or self._aging:
                request = live.request = described(live, round_, busy_s, now_s)
            waiting.append(request)
        holders = (*replica.prompts.values(), *replica.decodes.values())
        running = [described(live, round_, busy_s, now_s) for live in holders]
        return StepView(
            waiting=tuple(waiting),
            running=tuple(running),
            observed=observed,
            kv_tokens=replica.kv_room,
            kv_used_tokens=replica.kv_used,
            lane_cut_s=replica.lane_cut_s,
        )

    def plan(self, observed: tuple[Observed, ...], now_s: float) -> Decision:
        replica = self._replica
        view, before = self.view(observed, now_s), self.state
        plan, self.state = plan_step(view, before, self._config, now_s)
        if self._journal is not None:
            self._journal(view, before, self._config, now_s, plan)
        pieces = []
        for s in plan.scheduled:
            live = replica.prompts.get(s.request_id) or replica.waiting.get(s.request_id)
            if live is not None:
                pieces.append(Piece(live, s.num_tokens))
        paused = [replica.decodes[n] for n in plan.paused if n in replica.decodes]
        return Decision(pieces, paused, {*plan.lost, *plan.relegated}, plan.step_s)


def described(live: Live, round_: int, busy_s: float, now_s: float) -> Request:
    service_s = live.service_s + (busy_s - live.since_busy_s if live.state == 2 else 0.0)
    return live.described(round_, max(0.0, now_s - live.arrival_s - service_s), service_s)
