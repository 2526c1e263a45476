"""What tests/e2e/scheduler_program.py does to a running MfsScheduler, and what it counts of it."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

CUT = 64
"""Tokens of a prompt in a step of mode `paused`, at most."""


def interfering(scheduler: Any, counted: Counter[str]) -> None:
    """Plans whose every third decode sits out, and whose prompts are cut to CUT tokens, the first of them left out.
    Counts what vLLM did with them: requests that sat out as planned (`paused`), those that ran though no plan had them
    (`ran`), prompts that were cut as planned (`cut`), and those that had more (`long`)."""
    import msgspec

    from mfsd.policy.serve import plan_step

    planned: dict[str, set[str]] = {}

    def plan(view: Any, state: Any, config: Any, now_s: float) -> Any:
        made, after = plan_step(view, state, config, now_s)
        decoding = {r.request_id for r in view.running if r.prefill_left <= 0}
        running = {r.request_id for r in view.running}
        kept, paused = [], list(made.paused)
        prompts = 0
        for at, one in enumerate(made.scheduled):
            prompts += one.request_id not in decoding
            out = (at + state.step) % 3 == 0 if one.request_id in decoding else prompts == 1 and state.step % 2
            if out and len(made.scheduled) > 1:
                if one.request_id in running:
                    paused.append(one.request_id)
                continue
            kept.append(msgspec.structs.replace(one, num_tokens=min(one.num_tokens, CUT)))
        names = scheduler.mfs.entries
        taken = {one.request_id for one in kept}
        numbers = {"paused": set(paused), "taken": taken, "prompts": taken - decoding}
        planned.update({kind: {n for n in names if names[n].number in numbers[kind]} for kind in numbers})
        return msgspec.structs.replace(made, scheduled=tuple(kept), paused=tuple(paused)), after

    schedule = scheduler.schedule

    def watched(*arguments: Any, **keywords: Any) -> Any:
        planned.clear()
        output = schedule(*arguments, **keywords)
        tokens = output.num_scheduled_tokens
        if planned and not scheduler.mfs.counts["failed_plans"]:
            cut = [tokens[name] for name in planned["prompts"] & tokens.keys()]
            counted["ran"] += len(tokens.keys() - planned["taken"])
            counted["paused"] += len(planned["paused"] - tokens.keys())
            counted["long"] += sum(one > CUT for one in cut)
            counted["cut"] += sum(one == CUT for one in cut)
        return output

    scheduler.mfs._plan = plan
    scheduler.schedule = watched


def failing(scheduler: Any, counted: Counter[str]) -> None:
    """Plans that raise. Counts the steps that looked for what waits (`asked`)."""
    facts_of = scheduler._facts.of

    def watched(requests: Any) -> Any:
        counted["asked"] += 1
        return facts_of(requests)

    scheduler._facts.of = watched

    def plan(*arguments: Any) -> Any:
        raise RuntimeError("a plan that cannot be")

    scheduler.mfs._plan = plan


def pressed(scheduler: Any, counted: Counter[str]) -> None:
    """Plans that do not mind KV memory, so that vLLM must preempt. Counts its victims (`victims`), and those of them
    that a plan wants more than another request, which stays (`wrong`): a decode where a prompt stays, or one that is
    more important than another."""
    scheduler._kv = lambda: (None, 0)
    entries, preempt = scheduler.mfs.entries, scheduler._preempt_request

    def wanted(request: Any) -> tuple[bool, int]:
        entry = entries[request.request_id]
        decodes = request.num_computed_tokens >= entry.to_compute
        return decodes, entry.wanted.importance if decodes else 0

    def watched(request: Any, *arguments: Any, **keywords: Any) -> None:
        if scheduler._caps is not None:
            counted["victims"] += 1
            counted["wrong"] += any(wanted(other) < wanted(request) for other in scheduler.running)
        preempt(request, *arguments, **keywords)

    scheduler._preempt_request = watched


def cached(scheduler: Any, counted: Counter[str]) -> None:
    """Counts the tokens that plans took as cached, and the waiting requests that a connector was not asked about."""
    planned = scheduler.mfs.plan

    def plan(waiting: Any, *arguments: Any) -> Any:
        counted["planned_cached"] += sum(fact.num_cached_tokens for fact in waiting)
        counted["may_load"] += sum(fact.may_load for fact in waiting)
        return planned(waiting, *arguments)

    scheduler.mfs.plan = plan


def stored(scheduler: Any, counted: Counter[str]) -> None:
    """As `cached`, with plans that do not mind KV memory: what vLLM has asked a connector about waits for it then."""
    scheduler._kv = lambda: (None, 0)
    cached(scheduler, counted)


def by_priority(scheduler: Any, counted: Counter[str]) -> None:
    """Counts requests that began in an order that is not that of vLLM's priorities (`wrong`), and steps in which the
    order of what runs, as vLLM would choose a victim from it without a plan, is not that either."""
    schedule, begun = scheduler.schedule, list[tuple[int, float]]()

    def watched(*arguments: Any, **keywords: Any) -> Any:
        output = schedule(*arguments, **keywords)
        new = [scheduler.requests[one.req_id] for one in output.scheduled_new_reqs]
        for request in new:
            begun.append((request.priority, request.arrival_time))
        counted["begun"] += len(new)
        counted["wrong"] += any(later < earlier for earlier, later in pairwise(begun))
        before = list(scheduler.running)
        scheduler._in_order_of_arrival()
        counted["wrong"] += scheduler.running != sorted(before)
        scheduler.running[:] = before
        return output

    scheduler.schedule = watched
