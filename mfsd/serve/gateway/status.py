"""The status of a gateway, shown at /status.json of the address for its own pages."""

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
    """Waiting requests, those of others included."""
    running: int
    requests_max: int
    waiting_tokens: int
    kv_used_share: float
    token_us: float
    """Learned time to compute a prompt token; 0: unknown."""
    owed_bytes: int | None
    sent: int
    failed: int
    stage: Stage = Stage.RUNS
    """Stage of an engine that the gateway starts and stops."""


class GatewayStatus(msgspec.Struct, frozen=True, kw_only=True):
    router: str
    decode: str
    queue: int
    queue_max: int
    programs: int
    coordinator: str
    """The coordinator from which the ports are known; empty: none."""
    replicas: list[ReplicaStatus]
    watched: bool = False
    """Whether the coordinator sends each change. Otherwise it is asked with every poll."""
