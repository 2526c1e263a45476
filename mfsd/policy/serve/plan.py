"""The entry point: what an engine computes in its next step, from what it sees, remembers, is given, and the time.

`plan_step` runs in this order: pace, regulate, deadlines and decodes, pool, relegate, preemption and overdue requests,
fence, chunk, fit. Equal arguments give an equal plan on any machine, so a recorded view can be replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from mfsd.policy.serve import pool
from mfsd.policy.serve.chunk import chunk_tokens
from mfsd.policy.serve.config import Policy, Preemption, Relegation, ServeConfig
from mfsd.policy.serve.deadlines import next_token_due_s, overdue_s
from mfsd.policy.serve.fence import REST_STEPS, Fence
from mfsd.policy.serve.fit import Step, fill
from mfsd.policy.serve.pace import Pace, alone, learn, prefill_s_per_token
from mfsd.policy.serve.regulate import Regulation, initial, regulated
from mfsd.policy.serve.relegate import SetAside, set_aside
from mfsd.policy.serve.view import Request, Scheduled, StepLoad, StepPlan, StepView

_number = attrgetter("request_id")


class ServeState(msgspec.Struct, frozen=True, kw_only=True):
    """What changes from step to step. A fresh one suits an engine that just started; `pace` may be a profile's."""

    step: int = 0
    pace: Pace = Pace()
    book: pool.Book = pool.Book()
    regulation: Regulation | None = None
    relegated: tuple[int, ...] = ()
    reserved: int | None = None
    """The request that memory is kept for: it has waited too long and did not fit."""
    rest_steps: int = 0
    """Steps left, after the reserved request is in, in which no memory is kept for another."""


class _Decodes(NamedTuple):
    kept: list[Request]
    paused: list[Request]
    limit_s: float | None
    """When the first token of the kept ones is due."""


def plan_step(view: StepView, state: ServeState, config: ServeConfig, now_s: float) -> tuple[StepPlan, ServeState]:
    """Returns the plan of the next step, and the state to pass with the view after it."""
    pace = learn(state.pace, view.observed, config.pace_forget)
    regulation = _regulation(view, state, config)
    running = sorted(view.running, key=_number)
    decodes = _decodes(config, [r for r in running if r.prefill_left <= 0], regulation, now_s, state.step)
    begun = [r for r in running if r.prefill_left > 0]
    queue = sorted([*begun, *view.waiting], key=_number)
    now = pool.Now(
        state.step,
        prefill_s_per_token(pace, config.step_tokens, config.ranks),
        _decode_step_s(config, pace),
        view.lane_cut_s,
    )
    book = pool.rebuilt(state.book, config.policy)
    order = pool.order(config, book, queue, now)
    active = len(queue) + len(running) - len(begun)
    by_due = order if isinstance(order, list) and config.policy in (Policy.EDF, Policy.FIT) else None
    aside = _aside(config, queue, by_due, active, now, pace, now_s, state, view)

    context = sum(r.num_computed_tokens for r in decodes.kept)
    step = Step(pace, config.ranks, config.pace_margin, len(decodes.kept), context)
    room = max(0, config.step_tokens - len(decodes.kept))
    reserved = next((r for r in view.waiting if r.request_id == state.reserved), None)
    overdue = _overdue(config, state.step, queue, aside, now_s, reserved)
    first = _first(config, overdue, begun, step, room, now, now_s)
    minds = config.policy is Policy.FIT
    chunk = _chunk(config, view, decodes, step, queue, room, minds, now_s)
    slots = int(regulation.requests) if regulation else config.requests_max
    fence = Fence(config, running, view.kv_tokens, slots, reserved, view.kv_promised_tokens)
    chosen = fill(config, _arranged(first, order, aside), step, chunk, now_s, fence.admit, decodes.limit_s, minds)
    if not chosen and begun:  # refused requests must not stop prompts that have their memory already
        chosen = fill(config, by_deadline(begun), step, chunk, now_s, fence.admit, decodes.limit_s, minds)

    computing = {c.request.request_id for c in chosen}
    plan = StepPlan(
        scheduled=(
            *(Scheduled(r.request_id, 1, r.rank) for r in decodes.kept),
            *(Scheduled(c.request.request_id, c.tokens, c.rank) for c in chosen),
        ),
        paused=tuple(sorted([*map(_number, decodes.paused), *(set(map(_number, begun)) - computing)])),
        held=tuple(fence.refused),
        lost=tuple(sorted(aside.lost)),
        relegated=tuple(sorted(aside.relegated)),
        drop_budget=aside.drop_budget,
        chunk_tokens=chunk,
        load=step.load(),
        step_s=step.seconds(),
        decode_tokens=int(regulation.decode_tokens) if regulation else config.requests_max,
        requests_max=slots,
    )
    rest_steps = max(0, state.rest_steps - 1) if reserved is None else state.rest_steps + REST_STEPS
    after = ServeState(
        step=state.step + 1,
        pace=pace,
        book=pool.charged(config, book, queue, chosen, now),
        regulation=regulation,
        relegated=plan.relegated,
        reserved=fence.kept_for(overdue, rest_steps),
        rest_steps=rest_steps,
    )
    return plan, after


def queue_order(view: StepView, plan: StepPlan, after: ServeState, config: ServeConfig) -> list[int]:
    """All requests that wait in this view, by number, in the order in which the policy would take them after this plan.

    Those that were set aside come last. The plan does not name all of them; this does, for reports on the queue.
    """
    queue = sorted(view.waiting, key=_number)
    each = prefill_s_per_token(after.pace, config.step_tokens, config.ranks)
    now = pool.Now(after.step, each, _decode_step_s(config, after.pace), view.lane_cut_s)
    last = {*plan.lost, *plan.relegated}
    order = [r.request_id for r in pool.order(config, pool.rebuilt(after.book, config.policy), queue, now)]
    return [number for number in order if number not in last] + [number for number in order if number in last]


def by_deadline(requests: Iterable[Request]) -> list[Request]:
    return sorted(requests, key=lambda r: (r.due_s, r.request_id))


def _regulation(view: StepView, state: ServeState, config: ServeConfig) -> Regulation | None:
    if not config.regulate:
        return None
    step_s = view.observed[-1].seconds if view.observed else 0.0
    kv_share = view.kv_used_tokens / view.kv_tokens if view.kv_tokens else 0.0
    return regulated(config, state.regulation or initial(config), kv_share, step_s)


def _decodes(
    config: ServeConfig, decodes: list[Request], regulation: Regulation | None, now_s: float, number: int
) -> _Decodes:
    """Runs all decodes. Under a cap those with the most slack pause and keep their KV.

    Of those without a deadline, the ones with the most tokens pause. In steps for overdue requests they come first.
    """
    if not decodes:
        return _Decodes([], [], None)
    due = {r.request_id: next_token_due_s(config, r, now_s) for r in decodes}
    cap = min(config.step_tokens, int(regulation.decode_tokens) if regulation else config.requests_max)
    paused: list[Request] = []
    if len(decodes) > cap:
        last = number % config.overdue_every != 0
        hasty = sorted(decodes, key=lambda r: (*_hasty(due[r.request_id], r, last), r.request_id))
        decodes, paused = hasty[:cap], hasty[cap:]
    limits = [at for r in decodes if (at := due[r.request_id]) is not None]
    return _Decodes(decodes, paused, min(limits, default=None))


def _hasty(due_s: float | None, request: Request, last: bool) -> tuple[bool, float]:
    return (not last, due_s) if due_s is not None else (last, float(request.num_output_tokens))


def _decode_step_s(config: ServeConfig, pace: Pace) -> float:
    return pace.step_s(StepLoad(decodes=1)) if pace.small.steps else config.decode_step_s


def _aside(
    config: ServeConfig,
    queue: list[Request],
    by_due: list[Request] | None,
    active: int,
    now: pool.Now,
    pace: Pace,
    now_s: float,
    state: ServeState,
    view: StepView,
) -> SetAside:
    if by_due is None and config.relegation is Relegation.PROJECTION:
        by_due = pool.by_key(queue, [r.due_s for r in queue])
    each = now.prefill_s_per_token
    return set_aside(config, by_due or queue, active, each, alone(pace), now_s, state.relegated, view.pruned)


def _overdue(
    config: ServeConfig,
    number: int,
    queue: Sequence[Request],
    aside: SetAside,
    now_s: float,
    reserved: Request | None,
) -> list[Request]:
    """Requests that go before all others because they have waited too long.

    At some steps these are all that are overdue, by deadline. At every step the one that memory is kept for comes
    before them. First come first served alone starves none.
    """
    late: list[Request] = []
    if number % config.overdue_every == 0 and (config.policy is not Policy.FCFS or aside.lost or aside.relegated):
        late = by_deadline(r for r in queue if r.due_s < now_s and overdue_s(config, r) < now_s)
    return late if reserved is None else [reserved, *(r for r in late if r.request_id != reserved.request_id)]


def _first(
    config: ServeConfig,
    overdue: Sequence[Request],
    begun: Sequence[Request],
    step: Step,
    room: int,
    now: pool.Now,
    now_s: float,
) -> list[Request]:
    """Requests that go before the order: overdue ones, and prompts that may not be passed over."""
    first = list(overdue)
    if config.preemption is Preemption.ALWAYS or not begun:
        return first
    if config.preemption is Preemption.OFF:
        return first + [r for r in begun if r not in first]
    whole_s = step.seconds() + config.pace_margin * room * now.prefill_s_per_token  # spread over the ranks
    for r in by_deadline(begun):
        slack_s = r.due_s - now_s - r.prefill_left * now.prefill_s_per_token
        if 0 <= slack_s < whole_s and r not in first:
            first.append(r)
    return first


def _chunk(
    config: ServeConfig,
    view: StepView,
    decodes: _Decodes,
    step: Step,
    queue: Sequence[Request],
    room: int,
    minds: bool,
    now_s: float,
) -> int:
    """The chunk that all requests share. `fit` itself checks each request, with its own context, against the decodes'
    deadlines, so its chunk has no such limit."""
    free = None if view.kv_tokens is None else view.kv_tokens - view.kv_used_tokens
    slack_s = None if minds or decodes.limit_s is None else decodes.limit_s - now_s
    context = max((r.num_computed_tokens for r in queue), default=0) if slack_s is not None else 0
    return chunk_tokens(config, room, slack_s, free, lambda tokens: step.seconds_with(tokens, context, 0))


def _arranged(first: list[Request], order: Iterable[Request], aside: SetAside) -> Iterator[Request]:
    """The order of the walk: `first`, then the others, then those set aside."""
    done = {r.request_id for r in first}
    last = aside.lost | aside.relegated
    later: list[Request] = []
    yield from first
    for request in order:
        if request.request_id in done:
            continue
        if request.request_id in last:
            later.append(request)
        else:
            yield request
    yield from later
