"""What routers compare. The least wins. Parts of a tuple are compared in order, then the replica's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from mfsd.policy.estimate import transfer_ns
from mfsd.policy.route.config import Load
from mfsd.policy.route.view import Call, Replica

OWED_STEP_NS: Final = 1_000_000
"""Ports that differ by less count as equal. A decode step takes several times as long, so load decides then."""

Cost = tuple[float, ...]


def load_cost(load: Load, replica: Replica) -> Cost:
    """Every measure prefers fewer requests where it is equal."""
    if load is Load.TOKENS:
        return replica.waiting_tokens, replica.requests
    if load is Load.KV:
        return 1.0 - replica.kv_free_share, replica.requests
    if load is Load.WAIT:
        return replica.wait_ns, replica.requests
    return (replica.requests,)


def prefix_cost(call: Call, replica: Replica) -> Cost:
    """Prompt tokens until this prompt is computed. Replicas of the same speed take the same time for as many."""
    return replica.waiting_tokens + max(0, call.prompt_tokens - replica.cached_tokens), replica.requests


def ports_ns(replicas: Sequence[Replica], size_bytes: Mapping[str, int]) -> dict[str, int]:
    """The time until each replica's port has received what it owes and so many bytes more.

    A port about which nothing is known counts as the median of the others, so that it is neither preferred nor avoided.
    If nothing is known about any, all are 0.
    """
    known = {
        replica.name: transfer_ns(
            max(0, replica.owed_bytes) + max(0, size_bytes[replica.name]), replica.port_rate_bytes_per_s
        )
        for replica in replicas
        if replica.port_rate_bytes_per_s > 0 and replica.owed_bytes is not None
    }
    median = sorted(known.values())[len(known) // 2] if known else 0
    return {replica.name: known.get(replica.name, median) for replica in replicas}


def transfer_cost(call: Call, replica: Replica, port_ns: int) -> Cost:
    """Adds wait, port and fetch, although a fetch goes on while the prompt waits: bytes that are not fetched also leave
    the port to others."""
    rest_tokens = max(0, call.prompt_tokens - replica.cached_tokens - replica.fetch_tokens)
    return replica.wait_ns + port_ns + rest_tokens * replica.token_ns, replica.requests


def owed_cost(replica: Replica, port_ns: int) -> Cost:
    return port_ns // OWED_STEP_NS, replica.requests + replica.expected, 1.0 - replica.kv_free_share
