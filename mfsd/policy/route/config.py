"""The routers by name, and their numbers."""

from __future__ import annotations

from enum import Enum

import msgspec

TOKENS_MAX = 1 << 30


class Router(str, Enum):
    LEAST_LOADED = "least-loaded"
    STICKY = "sticky"
    """A program stays where it has run."""
    PREFIX = "prefix"
    """The fewest prompt tokens until this one is computed, its own included: what is cached costs nothing."""
    LOCALITY = "locality"
    """Agentix algorithm 2: short prompts to the least loaded, long ones where their program has run."""
    TRANSFER = "transfer"
    """The earliest begin: wait, what the port owes, and the fetch of what is cached elsewhere."""
    OWED = "owed"
    """The port that owes least, with this call's KV: for decode workers."""


class Load(str, Enum):
    """What counts as load."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    """Prompt tokens that are still to compute."""
    KV = "kv"
    """Share of the KV memory that is in use."""
    WAIT = "wait"
    """The estimated wait."""


class RouteConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    load: Load = Load.REQUESTS
    """What the least loaded replica has least of: requests (waiting and running), tokens (of prompts that are still to
    compute), kv (share of KV memory in use) or wait (the estimated time)."""
    locality_tokens: int = 2048
    """Router locality: prompts of at least so many tokens stay with their program."""

    def __post_init__(self) -> None:
        if not 0 <= self.locality_tokens <= TOKENS_MAX:
            raise ValueError(f"locality_tokens is {self.locality_tokens}: use 0 to {TOKENS_MAX}")
