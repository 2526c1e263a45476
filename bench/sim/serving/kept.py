"""A planner that makes plan_step's plans, to the bit, without examining the whole queue each step.

It maintains what plan_step computes anew: the order of waiting calls, sums over them, the earliest deadline of a
decode. The work of each step is in C (`_native.KeptQueue`), which repeats the rules of mfsd.policy.serve operation by
operation. This works for orders whose keys do not change while a call waits (see `can_keep`); for all others plan_step
is called. Tests compare the two.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush
from typing import cast

from bench.sim.serving.config import ReplicaConfig
from bench.sim.serving.live import PROMPT, WAITING, Live, Serving
from bench.sim.serving.planner import Asking, Decision
from mfsd import _native
from mfsd.policy.serve import Observed, Pace, Policy, Relegation, Request, ServeConfig, ServeState
from mfsd.policy.serve.deadlines import next_token_due_s, overdue_s
from mfsd.policy.serve.fence import REST_STEPS
from mfsd.policy.serve.pace import Piece as PacePiece
from mfsd.policy.serve.pool import Book

KEPT = frozenset({Policy.FCFS, Policy.EDF, Policy.FIT, Policy.SRPF, Policy.HYBRID})

Row = tuple[float, int, Live]
"""Key, number, call: equal keys are ordered by number."""


def can_keep(config: ReplicaConfig, serve: ServeConfig) -> bool:
    relegation = serve.relegation
    return (
        serve.policy in KEPT
        and (relegation is Relegation.NONE or (relegation is Relegation.LOST and serve.policy is not Policy.FCFS))
        and not (serve.regulate or config.bound_outputs or config.lanes)
        and serve.ranks == 1
    )


class Order:
    """Waiting calls by a fixed key. Those whose deadline has passed are kept apart, because they come last."""

    def __init__(self, policy: Policy, alpha: float) -> None:
        self._policy, self._alpha = policy, alpha
        self.rows: list[Row] = []
        self.expired: list[Row] = []

    def row(self, live: Live) -> Row:
        match self._policy:
            case Policy.FCFS:
                key = live.arrival_s
            case Policy.SRPF:
                key = float(live.prefill_left)
            case Policy.HYBRID:
                key = live.due_s + self._alpha * live.prefill_left
            case _:
                key = live.due_s
        return (key, live.request_id, live)

    def add(self, live: Live) -> None:
        insort(self.rows, self.row(live))

    def take(self, live: Live, expired: bool) -> None:
        rows, row = self.expired if expired else self.rows, self.row(live)
        at = bisect_left(rows, row)
        assert rows[at][2] is live
        del rows[at]

    def expire(self, live: Live) -> None:
        self.take(live, False)
        insort(self.expired, self.row(live))


class Kept(_native.KeptQueue):
    """What happens once for each call: it joins the orders and leaves them."""

    def __init__(self, replica: Serving, config: ServeConfig, asking: Asking) -> None:
        hybrid = config.policy is Policy.HYBRID
        alphas = (config.alpha_low_s, config.alpha_high_s) if hybrid else (0.0,)
        self._orders = {alpha: Order(config.policy, alpha) for alpha in alphas}
        """If the key depends on load, one order for each end of its range, as the load is mostly at one of them."""
        low, high = self._orders[alphas[0]], self._orders[alphas[-1]]
        super().__init__(config, REST_STEPS, [low.rows, low.expired], [high.rows, high.expired])
        self._replica, self._config, self._asking = replica, config, asking
        self._hybrid, self._minds = hybrid, config.policy is Policy.FIT
        self._sets_aside = config.relegation is Relegation.LOST
        self._expired: set[int] = set()
        self._by_overdue: list[Row] = []
        self._begin(asking.state)

    def _begin(self, state: ServeState) -> None:
        reserved = None if state.reserved is None else self._replica.waiting.get(state.reserved)
        self.start(state.step, state.pace.small, state.pace.large, reserved, state.rest_steps)

    @property
    def state(self) -> ServeState:
        pace, before = Pace(*[PacePiece(*piece) for piece in self.pieces()]), self._asking.state
        return (
            before
            if before.step == self.step
            else ServeState(
                step=self.step,
                pace=pace,
                book=self._book(before),
                reserved=self.reserved_number,
                rest_steps=self.rest_steps,
            )
        )

    def joined(self, live: Live) -> None:
        for order in self._orders.values():
            order.add(live)
        number = live.request_id
        if number in self.overdue_numbers:  # its deadline may have been renewed
            self.overdue_rows = [row for row in self.overdue_rows if row[1] != number]
            self.overdue_numbers.discard(number)
        if self._sets_aside:
            heappush(self.by_due, (live.due_s, number, live))
        if self._config.policy is not Policy.FCFS:
            heappush(self._by_overdue, (overdue_s(self._config, _as_request(live)), number, live))
        if self._hybrid:
            heappush(self.by_budget, (live.first_due_s - live.arrival_s, number, live))
        if self._minds:
            heappush(self.by_left, (float(live.prefill_left), number, live))
        if live.num_computed_tokens:
            heappush(self.by_cached, (float(-live.num_computed_tokens), number, live))

    def left(self, live: Live) -> None:
        expired = live.request_id in self._expired
        for order in self._orders.values():
            order.take(live, expired)
        self._expired.discard(live.request_id)

    def decoding(self, live: Live) -> None:
        live.num_output_tokens = live.produced(self._replica.round)
        due = next_token_due_s(self._config, _as_request(live))
        if due is not None:
            heappush(self.limits, (due, live.request_id, live))

    def resume(self) -> None:
        """Takes over from another planner."""
        replica = self._replica
        for live in replica.waiting.values():
            self.joined(live)
        for live in replica.prompts.values():
            heappush(self._by_overdue, (overdue_s(self._config, _as_request(live)), live.request_id, live))
        for live in replica.decodes.values():
            self.decoding(live)

    def plan(self, observed: tuple[Observed, ...], now_s: float) -> Decision:
        """Called if decodes must pause: plan_step then plans for all calls."""
        self._asking.state = self.state
        decision = self._asking.plan(observed, now_s)
        self._begin(self._asking.state)
        return decision

    def _book(self, before: ServeState) -> Book:
        policy = self._config.policy
        return before.book if before.book.policy is policy else Book(policy, before.book.epoch + 1)

    def expire(self, now_s: float) -> None:
        heap = self.by_due
        while heap and heap[0][0] < now_s:
            _, number, live = heappop(heap)
            waits = live.state == WAITING and number in self._replica.waiting and number not in self._expired
            if waits and live.due_s < now_s:  # otherwise it was renewed and has a later entry in the heap, too
                for order in self._orders.values():
                    order.expire(live)
                self._expired.add(number)

    def overdue(self, now_s: float) -> None:
        """Collects overdue calls. Rows whose prompt is done are removed at the front, and everywhere once they are the
        majority."""
        heap, rows, numbers = self._by_overdue, self.overdue_rows, self.overdue_numbers
        while heap and heap[0][0] < now_s:
            _, number, live = heappop(heap)
            late = live.state in (WAITING, PROMPT) and overdue_s(self._config, _as_request(live)) < now_s
            if late and number not in numbers:
                insort(rows, (live.due_s, number, live))
                numbers.add(number)
        done = next((at for at, row in enumerate(rows) if row[2].state in (WAITING, PROMPT)), len(rows))
        numbers.difference_update([number for _, number, _ in rows[:done]])
        del rows[:done]
        if len(rows) > 64 + 2 * (len(self._replica.waiting) + len(self._replica.prompts)):
            self.overdue_rows = [row for row in rows if row[2].state in (WAITING, PROMPT)]
            self.overdue_numbers = {number for _, number, _ in self.overdue_rows}


def _as_request(live: Live) -> Request:
    """Returns the call itself: it has the fields that the rules read, under the same names."""
    return cast("Request", live)
