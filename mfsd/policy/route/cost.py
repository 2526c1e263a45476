"""What routers compare. The least is taken; parts of one tuple are compared in order, the replica's name last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from mfsd.policy.estimate import transfer_ns
from mfsd.policy.route.config import Load
from mfsd.policy.route.view import Call, Replica

OWED_STEP_NS: Final = 1_000_000
"""Ports that differ by less than that are equal: a decode step takes several times as long, so load decides."""

Cost = tuple[float, ...]


def load_cost(load: Load, replica: Replica) -> Cost:
    """All measures agree to prefer fewer requests where they say the same otherwise."""
    if load is Load.TOKENS:
        return replica.waiting_tokens, replica.requests
    if load is Load.KV:
        return 1.0 - replica.kv_free_share, replica.requests
    if load is Load.WAIT:
        return replica.wait_ns, replica.requests
    return (replica.requests,)


def prefix_cost(call: Call, replica: Replica) -> Cost:
    """Prompt tokens until this one is computed; the same number of replicas of the same speed is the same time."""
    return replica.waiting_tokens + max(0, call.prompt_tokens - replica.cached_tokens), replica.requests


def ports_ns(replicas: Sequence[Replica], size_bytes: Mapping[str, int]) -> dict[str, int]:
    """Until the port of each has received what it owes and so many bytes more.

    A port of which nothing is known counts as the median of the others, so that it is neither preferred nor avoided;
    where nothing is known of any, all are 0."""
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
    """Wait, port and fetch are added, although a fetch goes on while the prompt waits: bytes that are not fetched leave
    the port to others, too."""
    rest_tokens = max(0, call.prompt_tokens - replica.cached_tokens - replica.fetch_tokens)
    return replica.wait_ns + port_ns + rest_tokens * replica.token_ns, replica.requests


def owed_cost(replica: Replica, port_ns: int) -> Cost:
    return port_ns // OWED_STEP_NS, replica.requests + replica.expected, 1.0 - replica.kv_free_share
