"""A call while it is being served."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bench.sim.serving.config import Eviction, ReplicaConfig
from bench.sim.serving.outcome import Record
from bench.sim.serving.work import Call
from mfsd import _native
from mfsd.policy.serve import Inherited, Request

WAITING, PROMPT, DECODE, ENDED = range(4)


class Live(_native.ServedCall):
    """Has the field names of `Request`, so that the rules of mfsd.policy.serve can be applied to it directly. What
    changes in each step is in its base, in C.

    A decode's tokens are not counted one by one: all decodes of a replica make one token a step, so the number produced
    is the replica's round less `offset`.
    """

    __slots__ = (
        "call",
        "importance",
        "inherited",
        "keys",
        "output_tokens_max",
        "pinned",
        "program",
        "program_service_s",
        "program_wait_s",
        "rank",
    )

    def __init__(self, number: int, call: Call, arrival_s: float, record: Record, program: str) -> None:
        self.request_id = number
        self.call = call
        self.arrival_s = self.due_s = self.first_due_s = arrival_s
        self.record = record
        self.program = program
        self.num_prompt_tokens = self.prefill_left = call.prompt_tokens
        self.ttft_s, self.tbt_s, self.ttlt_s = call.ttft_s, call.tbt_s, call.ttlt_s
        self.output_tokens_max = 0.0
        self.importance = call.importance
        self.program_service_s = self.program_wait_s = 0.0
        self.inherited = Inherited()
        self.rank = 0
        self.pinned = 0
        """Tokens of its program's prefix that stay in memory for it while it waits."""
        self.keys: tuple[tuple[str, int], ...] = ()
        """Keys of the prefix cache, and how many of its leading tokens each can hold."""

    def described(self, round_: int, wait_s: float = 0.0, service_s: float = 0.0) -> Request:
        return Request(
            request_id=self.request_id,
            arrival_s=self.arrival_s,
            num_prompt_tokens=self.num_prompt_tokens,
            due_s=self.due_s,
            first_due_s=None if self.first_due_s == self.due_s else self.first_due_s,
            num_computed_tokens=self.held(round_),
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=self.produced(round_),
            num_folded_tokens=self.folded,
            ttft_s=self.ttft_s,
            tbt_s=self.tbt_s,
            ttlt_s=self.ttlt_s,
            first_token_s=self.first_token_s,
            output_tokens=self.output_tokens,
            output_tokens_max=self.output_tokens_max,
            importance=self.importance,
            tenant=self.call.tenant,
            weight=self.call.weight,
            program_service_s=self.program_service_s,
            program_wait_s=self.program_wait_s,
            service_s=service_s,
            wait_s=wait_s,
            rank=self.rank,
        )


class Serving(Protocol):
    """What a replica's planner and memory read of it, and may ask it for. Its fields are described in _native.pyi and
    replica.py."""

    number: int
    config: ReplicaConfig
    context: int
    wanted: int
    busy_s: float
    left_tokens: int
    round: int
    later: Callable[[float, Live], None] | None

    @property
    def waiting(self) -> dict[int, Live]: ...
    @property
    def prompts(self) -> dict[int, Live]: ...
    @property
    def decodes(self) -> dict[int, Live]: ...
    @property
    def kv_room(self) -> int | None: ...
    @property
    def kv_used(self) -> int: ...
    @property
    def lane_cut_s(self) -> float | None: ...

    def queue(self, live: Live) -> None: ...
    def requeue(self, live: Live, found: int) -> None: ...
    def evict(self, live: Live, how: Eviction, now_s: float) -> None: ...
