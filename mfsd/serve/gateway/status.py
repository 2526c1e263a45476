"""What a gateway shows of itself at /status.json of its own address for that."""

from __future__ import annotations

import msgspec

from mfsd.policy.route import Role
from mfsd.serve.gateway.replicas import Stage


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    url: str
    role: Role
    healthy: bool
    problem: str
    models: tuple[str, ...]
    tiers: list[str]
    waiting: int
    """Those of others included."""
    running: int
    requests_max: int
    waiting_tokens: int
    kv_used_share: float
    token_us: float
    """To compute a prompt token, as learned; 0: unknown."""
    owed_bytes: int | None
    sent: int
    failed: int
    stage: Stage = Stage.RUNS
    """Of an engine that the gateway starts and stops."""


class GatewayStatus(msgspec.Struct, frozen=True, kw_only=True):
    router: str
    decode: str
    queue: int
    queue_max: int
    programs: int
    coordinator: str
    """That ports are known from; empty: none."""
    replicas: list[ReplicaStatus]
    watched: bool = False
    """It tells of each change; else it is asked with every poll."""
