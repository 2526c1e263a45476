"""Answers mfsctl trace: gathers the arbiter's tasks in small bounded reads, and has them explained."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mfsd._native import Arbiter, NicFacts, TaskSnapshot
from mfsd.node.batches import Batches
from mfsd.node.control import ExplainReply, ExplainRequest, TraceReply, TraceRequest
from mfsd.node.explain import Seen, Surroundings, explain, key_of, status_of
from mfsd.policy.config import PolicyConfig
from mfsd.text import whole_number

TASKS_MAX = 10_000
"""Tasks in one reply, which must fit a line."""


class Client(Protocol):
    """The part of a session that is shown."""

    @property
    def process(self) -> str: ...


class Tracer:
    """Lists and explains tasks. Reads; changes nothing."""

    def __init__(
        self,
        arbiter: Arbiter,
        policy: PolicyConfig,
        clients: Callable[[], Mapping[int, Client]],
        nic_names: Callable[[], Mapping[int, str]],
        batches: Batches,
        why_pruned: Callable[[int], str | None],
    ) -> None:
        self._arbiter, self._policy, self._batches = arbiter, policy, batches
        self._clients, self._nic_names, self._why_pruned = clients, nic_names, why_pruned

    def trace(self, request: TraceRequest) -> TraceReply:
        now_ns = time.monotonic_ns()
        seen = self.everything()
        facts = {direction: self._arbiter.facts(*direction) for direction in {s.direction for s in seen}}
        seen.sort(
            key=lambda s: (
                s.direction,
                not s.state.in_flight,
                key_of(self._policy, s, facts[s.direction], now_ns) if not s.state.in_flight else (s.state.submit_ns,),
            )
        )
        return TraceReply([status_of(s, now_ns) for s in seen[: min(max(0, request.limit), TASKS_MAX)]], len(seen))

    def explain(self, request: ExplainRequest) -> ExplainReply:
        """Raises LookupError if there is no such task."""
        subject = self._find(request.task)
        return self.explain_one(subject, self.everything())

    def explain_one(self, subject: Seen, tasks: Sequence[Seen]) -> ExplainReply:
        """Explains one task. `tasks`: all that were seen."""
        now_ns = time.monotonic_ns()
        state = subject.state
        nic = self._arbiter.nic_stats(state.nic)
        around = Surroundings(
            facts=self._arbiter.facts(*subject.direction),
            window_bytes=nic["window_bytes"],
            in_flight_bytes=nic["in_flight_bytes"][state.direction],
            unscheduled_bytes=nic["unscheduled_in_flight_bytes"],
            order=self._order(),
            red_ns=self._batches.red_ns(state.batch_id) if state.batch_id else None,
            why_pruned=self._why_pruned(state.request_id) if state.request_id else None,
        )
        others = [s for s in tasks if s.direction == subject.direction and s.id != subject.id]
        return explain(self._policy, subject, others, around, now_ns)

    def _order(self) -> str:
        source = self._batches.source
        if source.by == "coordinator":
            return f"the coordinator (term {source.term}, epoch {source.epoch})"
        return "this node's own RED order"

    def facts(self, direction: tuple[int, int]) -> NicFacts:
        return self._arbiter.facts(*direction)

    def waiting(self) -> int:
        """Number of tasks that wait, over all NICs. Asks the arbiter once; `nic_stats` asks three times for each
        NIC."""
        return self._arbiter.stats()["waiting_tasks"]

    def rates(self) -> list[int]:
        """Rate of every NIC, in bytes/s."""
        return [self._arbiter.nic_stats(nic)["rate_bytes_per_s"] for nic in self._nic_names()]

    def everything(self) -> list[Seen]:
        """All tasks of all programs."""
        return [s for client_id in list(self._clients()) for s in self._of(client_id)]

    def _of(self, client_id: int) -> list[Seen]:
        found: list[TaskSnapshot] = []
        with contextlib.suppress(OSError):  # the client has ended meanwhile
            found = self._arbiter.tasks(client_id)
        process, names = self._clients()[client_id].process, self._nic_names()
        return [Seen(task, client_id, process, names.get(task.nic, str(task.nic))) for task in found]

    def _find(self, task: str) -> Seen:
        numbers = [number for n in task.split(":") if (number := whole_number(n, 0xFFFFFFFF)) is not None]
        if len(numbers) not in (2, 3) or len(numbers) != task.count(":") + 1:
            raise LookupError(f"{task!r} names no task: write CLIENT:SLOT as mfsctl trace lists it")
        client_id, slot = numbers[:2]
        if client_id not in self._clients():
            raise LookupError(f"task {task}: no client {client_id} is attached; see mfsctl trace")
        for seen in self._of(client_id):
            if seen.state.task & 0xFFFFFFFF == slot:
                if len(numbers) == 2 or seen.state.task >> 32 == numbers[2]:
                    return seen
                break
        raise LookupError(
            f"task {task} neither waits nor is in flight: it has ended, or never was; see mfsctl trace, or let mfsctl "
            "explain --slowest choose one"
        )
