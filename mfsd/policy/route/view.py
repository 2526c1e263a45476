"""What a router sees and what it returns."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import msgspec


class Role(str, Enum):
    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """One engine at one moment, for one call: what it has cached of that, and what it would have to fetch."""

    name: str
    """Unique. Equal replicas are chosen in the order of their names."""
    role: Role = Role.BOTH
    models: tuple[str, ...] = ()
    """The models that it serves. Empty: any."""
    tiers: tuple[str, ...] = ()
    """The tiers that it is reserved for. Empty: all."""
    healthy: bool = True
    waiting: int = 0
    """Requests that wait there."""
    running: int = 0
    expected: int = 0
    """Requests that will decode there once they are prefilled. They hold no place there yet."""
    waiting_tokens: int = 0
    """Prompt tokens that are still to compute there."""
    wait_ns: int = 0
    """Time until it could begin another prompt, as far as is known."""
    token_ns: int = 0
    """Time to compute a prompt token. 0: unknown, or not to be counted."""
    kv_free_share: float = 1.0
    kv_tokens: int | None = None
    """Capacity of its KV memory in tokens. None: unknown."""
    requests_max: int | None = None
    """Most requests that it may have at a time. None: no limit."""
    cached_tokens: int = 0
    """Tokens of the call's prompt in its own cache."""
    fetch_tokens: int = 0
    """Tokens of the call's prompt that it would fetch from elsewhere."""
    fetch_bytes: int = 0
    """Size of their KV."""
    port_rate_bytes_per_s: int = 0
    """Rate of the port that its fetches (or a decode worker's KV) come in by. 0: unknown."""
    owed_bytes: int | None = None
    """What that port has yet to receive. None: unknown."""

    @property
    def requests(self) -> int:
        return self.waiting + self.running


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request, as it arrives."""

    prompt_tokens: int = 0
    model: str = ""
    """Empty: any."""
    program: str = ""
    """The session that it belongs to, or the one that began it. Empty: none."""
    tier: str = ""
    importance: int = 0
    """Greater is more important."""
    arrival_ns: int = 0
    deadline_ns: int | None = None
    """When its first token is due, on the clock of its arrival."""
    kv_bytes: int = 0
    """KV of its prompt that a decode worker will receive."""


class Refusal(str, Enum):
    """Why there is no replica. The first reason that applies."""

    MODEL = "model"
    """None serves the model in this role."""
    TIER = "tier"
    """All that serve it are reserved for other tiers."""
    TOO_LONG = "too-long"
    """The prompt exceeds the KV memory of each."""
    UNHEALTHY = "unhealthy"
    """None of them is healthy."""
    SATURATED = "saturated"
    """Each has as many requests as it may have."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    replica: str | None
    """Its name."""
    reason: str
    """A short clause, for explanations."""
    refused: Refusal | None = None
    """Set where there is no replica."""
    limit: int | None = None
    """If the prompt is too long: the most tokens that a replica takes."""


class Homes(Protocol):
    """The part of the program table that routers read (mfsd.policy.serve.ProgramTable)."""

    def engines(self, program: str, prompt_tokens: int = 0) -> frozenset[str]:
        """Names of the replicas that ran its calls with prompts of at least so many tokens."""
