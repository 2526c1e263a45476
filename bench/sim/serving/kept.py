"""A planner that gives plan_step's plans to the bit without looking at the whole queue each step.

It keeps what plan_step works out anew: the order of those that wait, sums over them, the earliest deadline of a decode.
Everything that decides (`fill`, `chunk_tokens`, `learn`, keys, deadlines) is plan_step's own code. Orders whose keys
stay the same while a call waits can be kept; `can_keep` says which, and all others are asked. Tests hold both against
each other.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush, heapreplace, merge
from typing import Any, cast

from bench.sim.serving.config import ReplicaConfig
from bench.sim.serving.live import PROMPT, WAITING, Live, Serving
from bench.sim.serving.planner import Asking, Decision, Piece
from mfsd.policy.serve import Observed, Policy, Preemption, Relegation, Request, ServeConfig, ServeState, learn
from mfsd.policy.serve.chunk import chunk_tokens
from mfsd.policy.serve.deadlines import next_token_due_s, overdue_s
from mfsd.policy.serve.fit import Step, fill
from mfsd.policy.serve.keys import alpha_s
from mfsd.policy.serve.pace import alone, prefill_s_per_token
from mfsd.policy.serve.plan import by_deadline
from mfsd.policy.serve.pool import Book

KEPT = frozenset({Policy.FCFS, Policy.EDF, Policy.FIT, Policy.SRPF, Policy.HYBRID})

Row = tuple[float, int, Live]
"""Key, number: equal keys go by number."""


def can_keep(config: ReplicaConfig, serve: ServeConfig) -> bool:
    relegation = serve.relegation
    return (
        serve.policy in KEPT
        and (relegation is Relegation.NONE or (relegation is Relegation.LOST and serve.policy is not Policy.FCFS))
        and not (serve.regulate or config.bound_outputs or config.lanes)
        and serve.ranks == 1
    )


class Order:
    """Those that wait by a key that stays, and apart those of them whose deadline has passed: they come last."""

    def __init__(self, policy: Policy, alpha: float) -> None:
        self._policy, self.alpha = policy, alpha
        self.rows: list[Row] = []
        self.expired: list[Row] = []

    def ranked(self, rows: list[Row]) -> Iterator[Row]:
        """`rows`, which are in order for an alpha that is not greater, in this one's, found as far as asked: a key only
        grows with alpha, so none of the rows from one on can come before that one's old key."""
        ready: list[Row] = []
        for old in rows:
            while ready and ready[0][0] < old[0]:
                yield heappop(ready)
            heappush(ready, self.row(old[2]))
        while ready:
            yield heappop(ready)

    def row(self, live: Live) -> Row:
        match self._policy:
            case Policy.FCFS:
                key = live.arrival_s
            case Policy.SRPF:
                key = float(live.prefill_left)
            case Policy.HYBRID:
                key = live.due_s + self.alpha * live.prefill_left
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


class Kept:
    def __init__(self, replica: Serving, config: ServeConfig, asking: Asking) -> None:
        self._replica, self._config, self._asking = replica, config, asking
        self._hybrid, self._minds = config.policy is Policy.HYBRID, config.policy is Policy.FIT
        alphas = (config.alpha_low_s, config.alpha_high_s) if self._hybrid else (0.0,)
        self._orders = {alpha: Order(config.policy, alpha) for alpha in alphas}
        """Where the key depends on load, those of both ends: it is mostly at one of them."""
        self._sets_aside = config.relegation is Relegation.LOST
        self._expired: set[int] = set()
        self._by_due: list[Row] = []
        self._by_overdue: list[Row] = []
        self._overdue: list[Row] = []
        self._by_budget: list[Row] = []
        self._by_cached: list[Row] = []
        self._by_left: list[Row] = []
        self._limits: list[Row] = []
        """Decodes by when their next token was due when this was last read; it only grows."""
        self._each = self._fixed = self._alone_each = 0.0
        self._known: Any = None

    @property
    def state(self) -> ServeState:
        return self._asking.state

    def joined(self, live: Live) -> None:
        for order in self._orders.values():
            order.add(live)
        number = live.request_id
        if self._sets_aside:
            heappush(self._by_due, (live.due_s, number, live))
        if self._config.policy is not Policy.FCFS:
            heappush(self._by_overdue, (overdue_s(self._config, _as_request(live)), number, live))
        if self._hybrid:
            heappush(self._by_budget, (live.due_s - live.arrival_s, number, live))
        if self._minds:
            heappush(self._by_left, (float(live.prefill_left), number, live))
        if live.num_computed_tokens:
            heappush(self._by_cached, (float(-live.num_computed_tokens), number, live))

    def left(self, live: Live) -> None:
        expired = live.request_id in self._expired
        for order in self._orders.values():
            order.take(live, expired)
        self._expired.discard(live.request_id)

    def decoding(self, live: Live) -> None:
        live.num_output_tokens = live.produced(self._replica.round)
        due = next_token_due_s(self._config, _as_request(live))
        if due is not None:
            heappush(self._limits, (due, live.request_id, live))

    def resume(self) -> None:
        """It takes over from another planner."""
        replica = self._replica
        for live in replica.waiting.values():
            self.joined(live)
        for live in replica.prompts.values():
            heappush(self._by_overdue, (overdue_s(self._config, _as_request(live)), live.request_id, live))
        for live in replica.decodes.values():
            self.decoding(live)

    def plan(self, observed: tuple[Observed, ...], now_s: float) -> Decision:
        config, replica, before = self._config, self._replica, self._asking.state
        decodes = len(replica.decodes)
        if decodes > min(config.step_tokens, config.requests_max):
            return self._asking.plan(observed, now_s)  # some must pause
        pace = learn(before.pace, observed, config.pace_forget) if observed else before.pace
        self._measure(pace)
        begun = list(replica.prompts.values())
        begun.sort(key=_number)
        limit_s = self._limit_s(now_s) if decodes else None
        if self._sets_aside:
            self._expire(now_s)
        rows, expired, extra = self._ordered(begun)

        step = Step(pace, 1, config.pace_margin, decodes, replica.context)
        room = max(0, config.step_tokens - decodes)
        first = self._first(before.step, begun, step, room, now_s)
        minds = self._minds
        free = None if replica.kv_room is None else replica.kv_room - replica.kv_used
        slack_s = None if minds or limit_s is None else limit_s - now_s
        context = self._longest(begun) if slack_s is not None else 0
        chunk = chunk_tokens(config, room, slack_s, free, lambda tokens: step.seconds_with(tokens, context, 0))
        walk = cast("Iterator[Request]", self._walk(step, first, rows, expired, extra, now_s))
        admit = self._fence(begun)
        shortest = self._shortest(begun) if minds else 1
        chosen = fill(config, walk, step, chunk, now_s, admit, limit_s, minds, shortest)
        if not chosen and begun:
            chosen = fill(config, by_deadline(map(_as_request, begun)), step, chunk, now_s, admit, limit_s, minds)

        self._asking.state = ServeState(step=before.step + 1, pace=pace, book=self._book(before))
        pieces = [Piece(cast("Live", c.request), c.tokens) for c in chosen]
        aside = [live.request_id for live, _ in pieces if live.state == WAITING and self._is_lost(live, now_s)]
        return Decision(pieces, (), aside, step.load(), step.seconds())

    def _measure(self, pace: Any) -> None:
        if pace is not self._known:
            self._known = pace
            self._each = prefill_s_per_token(pace, self._config.step_tokens, 1)
            if self._sets_aside:
                self._fixed, self._alone_each = alone(pace)

    def _book(self, before: ServeState) -> Book:
        policy = self._config.policy
        return before.book if before.book.policy is policy else Book(policy, before.book.epoch + 1)

    def _is_lost(self, live: Live, now_s: float) -> bool:
        return self._sets_aside and now_s + self._fixed + live.prefill_left * self._alone_each > live.due_s

    def _limit_s(self, now_s: float) -> float | None:
        """The least of all decodes' deadlines: entries are brought up to date only when they are the least."""
        limits, decodes, round_ = self._limits, self._replica.decodes, self._replica.round
        while limits:
            was, number, live = limits[0]
            if decodes.get(number) is not live:
                heappop(limits)
                continue
            live.num_output_tokens = round_ - live.offset
            due = next_token_due_s(self._config, _as_request(live), now_s)
            if due is None:
                heappop(limits)
            elif due <= was:
                return due
            else:
                heapreplace(limits, (due, number, live))
        return None

    def _expire(self, now_s: float) -> None:
        heap = self._by_due
        while heap and heap[0][0] < now_s:
            _, number, live = heappop(heap)
            if self._waits(live) and number not in self._expired:
                for order in self._orders.values():
                    order.expire(live)
                self._expired.add(number)

    def _waits(self, live: Live) -> bool:
        return live.state == WAITING and live.request_id in self._replica.waiting

    def _ordered(self, begun: list[Live]) -> tuple[Iterable[Row], Iterable[Row], list[Row]]:
        """Rows in order: of those that wait, of those that are expired, of those begun."""
        alpha = 0.0
        if self._hybrid:
            alpha = alpha_s(self._config, self._each * self._replica.left_tokens, self._tightest_s(begun))
        order = self._orders.get(alpha)
        if order is not None:
            return order.rows, order.expired, sorted([order.row(live) for live in begun])
        order, base = Order(Policy.HYBRID, alpha), self._orders[self._config.alpha_low_s]
        rows, expired = order.ranked(base.rows), order.ranked(base.expired)
        return rows, expired, sorted([order.row(live) for live in begun])

    def _tightest_s(self, begun: list[Live]) -> float:
        heap = self._by_budget
        while heap and not self._waits(heap[0][2]):
            heappop(heap)
        budgets = [live.due_s - live.arrival_s for live in begun]
        if heap:
            budgets.append(heap[0][0])
        return min(budgets, default=0.0)

    def _longest(self, begun: list[Live]) -> int:
        heap = self._by_cached
        while heap and not (self._waits(heap[0][2]) and -heap[0][0] == heap[0][2].num_computed_tokens):
            heappop(heap)
        longest = max([live.num_computed_tokens for live in begun], default=0)
        return max(longest, int(-heap[0][0])) if heap else longest

    def _shortest(self, begun: list[Live]) -> int:
        """Tokens left of the prompt that has the fewest."""
        heap = self._by_left
        while heap and not (self._waits(heap[0][2]) and heap[0][0] == heap[0][2].prefill_left):
            heappop(heap)
        left = [live.prefill_left for live in begun]
        if heap:
            left.append(int(heap[0][0]))
        return min(left, default=1)

    def _first(self, number: int, begun: list[Live], step: Step, room: int, now_s: float) -> list[Live]:
        config = self._config
        first: list[Live] = []
        if number % config.overdue_every == 0 and config.policy is not Policy.FCFS:
            first = self._late(now_s)
        if config.preemption is Preemption.ALWAYS or not begun:
            return first
        before = {live.request_id for live in first}
        if config.preemption is Preemption.OFF:
            return first + [live for live in begun if live.request_id not in before]
        whole_s = step.seconds() + config.pace_margin * room * self._each
        for live in sorted(begun, key=lambda live: (live.due_s, live.request_id)):
            slack_s = live.due_s - now_s - live.prefill_left * self._each
            if 0 <= slack_s < whole_s and live.request_id not in before:
                first.append(live)
        return first

    def _late(self, now_s: float) -> list[Live]:
        """Overdue prompts by deadline; those whose prompt is done are forgotten here."""
        heap, overdue = self._by_overdue, self._overdue
        while heap and heap[0][0] < now_s:
            _, number, live = heappop(heap)
            if live.state in (WAITING, PROMPT):
                row = (live.due_s, number, live)
                at = bisect_left(overdue, row)
                if at == len(overdue) or overdue[at] != row:
                    overdue.insert(at, row)
        if overdue:
            self._overdue = overdue = [row for row in overdue if row[2].state in (WAITING, PROMPT)]
        return [row[2] for row in overdue if self._is_here(row[2])]

    def _is_here(self, live: Live) -> bool:
        return live.request_id in self._replica.waiting or live.request_id in self._replica.prompts

    def _walk(
        self,
        step: Step,
        first: list[Live],
        rows: Iterable[Row],
        expired: Iterable[Row],
        begun: list[Row],
        now_s: float,
    ) -> Iterator[Live]:
        """As plan_step walks: those first, then the order, at last those set aside in the order. Ends where the step is
        full: who is passed over for want of memory is not asked here."""
        done = {live.request_id for live in first}
        yield from first
        later: list[Row] = []
        if begun:
            rows = merge(rows, begun)
        from_s, each, sets_aside = now_s + self._fixed, self._alone_each, self._sets_aside
        for row in rows:
            live = row[2]
            if step.full:
                return
            if row[1] in done:
                continue
            if sets_aside and live.state == WAITING and from_s + live.prefill_left * each > live.due_s:
                later.append(row)
            else:
                yield live
        for row in merge(later, expired) if later else expired:
            if step.full:
                return
            if row[1] not in done:
                yield row[2]

    def _fence(self, begun: list[Live]) -> Any:
        """`Fence.admit` with what it sums up kept: no call has a bound on its output here."""
        replica, config = self._replica, self._config
        running = len(begun) + len(replica.decodes)
        room, slots = replica.kv_room, config.requests_max - running
        held = replica.wanted + sum([live.num_output_tokens for live in begun])
        inside: set[int] = set()
        most = None if room is None else room * (1.0 - config.kv_margin)

        def admit(live: Live) -> bool:
            nonlocal held, slots
            if live.state == PROMPT or live.request_id in inside:
                return True
            wanted = live.num_prompt_tokens + live.num_output_tokens
            fits = most is None or held + wanted <= most
            if not fits and not running and not inside:
                fits = live.num_prompt_tokens <= (room or 0)
            if not fits or slots <= 0:
                return False
            inside.add(live.request_id)
            held += wanted
            slots -= 1
            return True

        return admit


def _number(live: Live) -> int:
    return live.request_id


def _as_request(live: Live) -> Request:
    """It has the fields that the rules read, under the same names."""
    return cast("Request", live)
