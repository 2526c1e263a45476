"""Explains in sentences what a request or a program waits for, or waited for in the last minute.

:mod:`mfsd.node.explain` explains what waits now. For what has ended, the arbiter's accounts tell when each stage was
asked for and complete. Behind whom it waited is known from samples, taken a few times a second while something waits. A
shorter wait may not have been seen.
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from mfsd._native import Account, Stage, Verdict
from mfsd.node.batches import Batches
from mfsd.node.control import ExplainReply, RequestsRequest, RequestStatus, WaitSeen, WhyReply, WhyRequest
from mfsd.node.explain import Seen, key_of, shown_rate, shown_size, shown_time, why_before
from mfsd.node.requests import Requests
from mfsd.node.trace import Tracer
from mfsd.policy.config import PolicyConfig
from mfsd.policy.estimate import transfer_ns
from mfsd.policy.types import known_stage

SAMPLE_S = 0.25
SAMPLED_TASKS_MAX = 500
"""If more tasks wait, sampling all of them would cost more than it tells."""
REMEMBERED_S = 60.0
WAITS_MAX = 4_096
PROGRAMS_MAX = 256
WAITS_SHOWN = 5


class Client(Protocol):
    """The part of a session that this module needs."""

    @property
    def process(self) -> str: ...
    @property
    def pid(self) -> int: ...


class Gone(NamedTuple):
    """A program that has ended."""

    at_ns: int
    process: str
    client_id: int
    permits: int


class _Wait(NamedTuple):
    at_ns: int
    client_id: int
    request_id: int
    task: str
    stage: str
    size_bytes: int
    waited_ns: int
    ahead_tasks: int
    ahead_bytes: int
    first: str
    rule: str


def _longer(before: _Wait, now: _Wait) -> _Wait:
    """The longer of two waits. Keeps what was ahead when most was, if both are of one task: at its end nothing is."""
    if now.waited_ns < before.waited_ns:
        return before
    if now.task != before.task or now.ahead_tasks >= before.ahead_tasks:
        return now
    return before._replace(at_ns=now.at_ns, waited_ns=now.waited_ns)


class Why:
    """Explains waits. Owned by the daemon's loop. Reads; changes nothing."""

    def __init__(
        self,
        tracer: Tracer,
        policy: PolicyConfig,
        requests: Requests,
        batches: Batches,
        clients: Callable[[], Mapping[int, Client]],
        verdict: Callable[[int], str | None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`verdict`: why the coordinator gives up or gave up a request (pruned or infeasible); None if it does
        neither."""
        self._tracer, self._policy, self._requests, self._batches = tracer, policy, requests, batches
        self._clients, self._verdict, self._clock_ns = clients, verdict, clock_ns
        self._waits: OrderedDict[tuple[int, int], _Wait] = OrderedDict()
        """The longest wait of each client and request (0: none)."""
        self._gone: OrderedDict[int, Gone] = OrderedDict()
        """By process id."""

    # ---- what is remembered ----------------------------------------------------------------------

    def client_gone(self, pid: int, client_id: int, process: str, permits: int) -> None:
        self._gone[pid] = Gone(self._clock_ns(), process, client_id, permits)
        self._gone.move_to_end(pid)
        while len(self._gone) > PROGRAMS_MAX:
            self._gone.popitem(last=False)

    def sample(self) -> None:
        """Remembers for each request the longest of its waits, and behind whom it was."""
        now_ns = self._clock_ns()
        if 0 < self._tracer.waiting() <= SAMPLED_TASKS_MAX:
            for wait in self._longest_waits(now_ns):
                place = (wait.client_id, wait.request_id)
                before = self._waits.pop(place, None)
                self._waits[place] = wait if before is None else _longer(before, wait)
        while self._waits and (len(self._waits) > WAITS_MAX or self._old(next(iter(self._waits.values())).at_ns)):
            self._waits.popitem(last=False)

    def _old(self, at_ns: int) -> bool:
        return self._clock_ns() - at_ns > REMEMBERED_S * 1e9

    def _longest_waits(self, now_ns: int) -> list[_Wait]:
        directions: defaultdict[tuple[int, int], list[Seen]] = defaultdict(list)
        for seen in self._tracer.everything():
            if seen.state.queued and not seen.state.in_flight:
                directions[seen.direction].append(seen)
        found: dict[tuple[int, int], _Wait] = {}
        for direction, waiting in directions.items():
            facts = self._tracer.facts(direction)
            keyed = sorted(((key_of(self._policy, s, facts, now_ns), s) for s in waiting), key=lambda pair: pair[0])
            ahead = itertools.accumulate((s.state.bytes for _, s in keyed), initial=0)
            for at, ((key, seen), bytes_ahead) in enumerate(zip(keyed, ahead, strict=False)):
                state, first = seen.state, keyed[0]
                wait = _Wait(
                    now_ns,
                    seen.client_id,
                    state.request_id,
                    seen.id,
                    known_stage(state.stage).name.lower(),
                    state.bytes,
                    max(0, now_ns - state.submit_ns),
                    at,
                    bytes_ahead,
                    _named(first[1]) if at else "",
                    why_before(self._policy, first[0], key) if at else "",
                )
                place = (wait.client_id, wait.request_id)
                if place not in found or found[place].waited_ns < wait.waited_ns:
                    found[place] = wait
        return list(found.values())

    # ---- what is asked ---------------------------------------------------------------------------

    def answer(self, asked: WhyRequest) -> WhyReply:
        """Raises LookupError if nothing is known about it."""
        if asked.slowest:
            return self._slowest()
        if asked.kind != "pid":
            reply = self._of_request(asked.number, asked.layers)
            if reply is not None:
                return reply
        if asked.kind != "request":
            reply = self._of_program(asked.number)
            if reply is not None:
                return reply
        what = {"request": "request", "pid": "program with this process id", "any": "request or program"}[asked.kind]
        raise LookupError(
            f"{asked.number}: no {what} is known that waits, is in flight or ended in the last minute; see mfsctl "
            "status --requests"
        )

    def _slowest(self) -> WhyReply:
        tasks = self._tracer.everything()
        waiting = [s for s in tasks if not s.state.in_flight]
        subject = min(waiting or tasks, key=lambda s: s.state.submit_ns, default=None)
        waits = sorted(self._recent(lambda wait: True), key=lambda wait: -wait.waited_ns)
        if subject is None and not waits:
            return WhyReply(
                "the slowest", "idle", ["Nothing waits or is in flight, and nothing has in the last minute."]
            )
        if subject is None:
            reasons = ["Nothing waits or is in flight now."]
            return WhyReply("the slowest", "ended", reasons, seen=self._seen(waits))
        request_id = subject.state.request_id
        if request_id and (reply := self._of_request(request_id)) is not None:
            return reply
        return self._of_tasks(f"task {subject.id} of {subject.process}", [subject], tasks, waits, None)

    def _of_request(self, request_id: int, layers: bool = False) -> WhyReply | None:
        tasks = self._tracer.everything()
        own = [s for s in tasks if s.state.request_id == request_id]
        waits = self._recent(lambda wait: wait.request_id == request_id)
        status = next(iter(self._requests.reply(RequestsRequest(request_id, layers=layers)).requests), None)
        if own:
            return self._of_tasks(f"request {request_id}", own, tasks, waits, status)
        if status is None:
            return None
        accounts = self._requests.accounts(request_id)
        about = f"request {request_id}"
        reasons = self._history(status, accounts)
        return WhyReply(
            about,
            "ended" if status.state == "ended" else "idle",
            reasons,
            request=status,
            cluster=self._cluster(request_id, status.batch_id, status.pruned),
            seen=self._seen(waits),
        )

    def _of_program(self, pid: int) -> WhyReply | None:
        ids = {number for number, client in self._clients().items() if client.pid == pid}
        if not ids:
            return self._of_ended_program(pid)
        process = next(client.process for number, client in self._clients().items() if number in ids)
        tasks = self._tracer.everything()
        own = [s for s in tasks if s.client_id in ids]
        waits = self._recent(lambda wait: wait.client_id in ids)
        about = f"{process}, process {pid}"
        if own:
            return self._of_tasks(about, own, tasks, waits, None)
        return WhyReply(about, "idle", ["It is attached; nothing of it waits or is in flight."], seen=self._seen(waits))

    def _of_ended_program(self, pid: int) -> WhyReply | None:
        gone = self._gone.get(pid)
        if gone is None or self._old(gone.at_ns):
            return None
        ago = shown_time(self._clock_ns() - gone.at_ns)
        waits = self._recent(lambda wait: wait.client_id == gone.client_id)
        reasons = [f"It ended {ago} ago, after {gone.permits} permits."]
        return WhyReply(f"{gone.process}, process {pid}", "ended", reasons, seen=self._seen(waits))

    def _of_tasks(
        self,
        about: str,
        own: Sequence[Seen],
        tasks: Sequence[Seen],
        waits: Sequence[_Wait],
        status: RequestStatus | None,
    ) -> WhyReply:
        waiting = [s for s in own if not s.state.in_flight]
        subject = min(waiting or own, key=lambda s: s.state.submit_ns)
        explained: ExplainReply = self._tracer.explain_one(subject, tasks)
        waiting_bytes, flying = sum(s.state.bytes for s in waiting), len(own) - len(waiting)
        wait = f"{_tasks(len(waiting))} with {shown_size(waiting_bytes)} {'waits' if len(waiting) == 1 else 'wait'}"
        reasons = [f"{wait if waiting else 'Nothing of it waits'}, {_tasks(flying)} in flight."]
        reasons.append("The one that waits longest:" if waiting else "The one that is under way longest:")
        reasons += explained.reasons
        state = subject.state
        return WhyReply(
            about,
            "waiting" if waiting else "in-flight",
            reasons,
            task=explained,
            request=status,
            cluster=self._cluster(state.request_id, state.batch_id or None, state.pruned or state.batch_pruned),
            seen=self._seen(waits),
        )

    # ---- sentences -------------------------------------------------------------------------------

    def _cluster(self, request_id: int, batch_id: int | None, pruned: bool) -> list[str]:
        """The order in force, the batch's place in it, and why the request was given up."""
        source = self._batches.source
        found = []
        if source.by == "coordinator":
            order = f"the coordinator's order (term {source.term}, epoch {source.epoch})"
        else:
            order = "this node's own order, since no coordinator's is in force"
        if batch_id is None:
            found.append(f"It has no batch, so that {order} says nothing of it.")
        elif (rank := self._batches.rank(batch_id)) is not None:
            found.append(f"Its batch {batch_id} is number {rank + 1} of {self._batches.ranked} in {order}.")
        else:
            found.append(f"Its batch {batch_id} is not in {order}: it has ended, or is not known there yet.")
        why = self._verdict(request_id)
        if why is not None:
            found.append(f"The coordinator {'has given' if pruned else 'gave'} the request up: {why}.")
        elif pruned:
            found.append("It was pruned: served when nothing else waited.")
        return found

    def _history(self, status: RequestStatus, accounts: Sequence[Account]) -> list[str]:
        now_ns = self._clock_ns()
        begin_ns = min(a.begin_ns for a in accounts)
        done_ns = max(max(a.done_ns, *(c.last_ns for c in a.cells), 0) if a.cells else a.done_ns for a in accounts)
        end_ns = max(a.end_ns for a in accounts)
        deadline_ns = min((a.deadline_ns for a in accounts if a.deadline_ns), default=0)
        found = []
        if status.state == "ended":
            found.append(f"It ended {shown_time(now_ns - end_ns)} ago, {shown_time(end_ns - begin_ns)} after it began.")
        else:
            found.append("Nothing of it waits or is in flight now.")
        if deadline_ns:
            left = f"{shown_time(deadline_ns - begin_ns)} to its deadline"
            if any(a.verdict == Verdict.MISSED for a in accounts):
                late = max(done_ns, end_ns if not done_ns else 0) - deadline_ns
                found.append(f"It had {left} and was {shown_time(late)} late." if late > 0 else f"It had {left}: late.")
            elif status.outcome == "met":
                found.append(f"It had {left} and was in time, with {shown_time(deadline_ns - done_ns)} to spare.")
        for stage, cells in itertools.groupby(
            sorted((c for a in accounts for c in a.cells), key=lambda c: c.stage), key=lambda c: c.stage
        ):
            rows = list(cells)
            size, tasks = sum(c.submitted_bytes for c in rows), sum(c.tasks for c in rows)
            first_ns, last_ns = min(c.first_ns for c in rows), max(c.last_ns for c in rows)
            took = f"complete after {shown_time(last_ns - begin_ns)}" if last_ns else "not complete"
            alone = self._alone(size)
            name = Stage(stage).name.lower() if stage in set(Stage) else str(stage)
            found.append(
                f"{name}: {shown_size(size)} in {_tasks(tasks)}, first asked for after "
                f"{shown_time(max(0, first_ns - begin_ns))}, {took}{alone}."
            )
        return found

    def _alone(self, size_bytes: int) -> str:
        rates = self._tracer.rates()
        if len(rates) != 1 or not size_bytes:
            return ""
        return f"; alone at {shown_rate(rates[0])} it takes {shown_time(transfer_ns(size_bytes, rates[0]))}"

    def _recent(self, wanted: Callable[[_Wait], bool]) -> list[_Wait]:
        return [wait for wait in self._waits.values() if wanted(wait) and not self._old(wait.at_ns)]

    def _seen(self, waits: Sequence[_Wait]) -> list[WaitSeen]:
        now_ns = self._clock_ns()
        return [
            WaitSeen(
                (now_ns - w.at_ns) / 1e9,
                w.task,
                w.request_id or None,
                w.stage,
                w.size_bytes,
                w.waited_ns / 1e9,
                w.ahead_tasks,
                w.ahead_bytes,
                w.first,
                w.rule,
            )
            for w in sorted(waits, key=lambda w: -w.waited_ns)[:WAITS_SHOWN]
        ]


def _named(seen: Seen) -> str:
    request = f", request {seen.state.request_id}" if seen.state.request_id else ""
    return f"{known_stage(seen.state.stage).name.lower()} of {seen.process}{request}"


def _tasks(n: int) -> str:
    return "1 task" if n == 1 else f"{n} tasks"
