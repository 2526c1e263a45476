"""Reports, for vLLM's own NIXL connectors, which request each of their transfers is for.

Each transfer is for one request, so none of its thousands of blocks has to be looked up. A read by the decode instance
and a write by the prefill instance are the same hand-over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from mooncake_adapter.metadata import MetadataSources
from mooncake_adapter.session import STAGE_P2D
from mooncake_adapter.vllm.guard import Guard
from mooncake_adapter.vllm.worker import Steps
from mooncake_adapter.warn_once import WarnOnce

WORKER, LEASE = "connector_worker", "kv_lease_duration"
TRANSFERS = ("_read_blocks", "_xfer_blocks")
"""Methods that make and start one request's transfer, in the pulling and in the pushing connector."""


def report_requests(connector: Any, steps: Steps, sources: MetadataSources, lease_s: object, once: WarnOnce) -> bool:
    """Makes the connector's worker report the request of each transfer; returns False if that is not possible."""
    worker = getattr(connector, WORKER, None)
    names = [name for name in TRANSFERS if hasattr(worker, name)]
    if not names:
        once.warn(
            "nixl-requests",
            "%s has none of %s; requests are known by their blocks",
            *(type(connector).__name__, ", ".join(TRANSFERS)),
        )
        return False
    if isinstance(lease_s, (int, float)) and lease_s > 0:
        sources.lease_s = float(lease_s)
    guard = Guard(once)
    for name in names:
        setattr(worker, name, reporting(getattr(worker, name), steps, sources, guard))
    return True


def reporting(method: Callable[..., Any], steps: Steps, sources: MetadataSources, guard: Guard) -> Callable[..., Any]:
    """Wraps a method that has its request's name in the argument `request_id`."""

    @wraps(method)
    def reported(*arguments: Any, **keywords: Any) -> Any:
        request = keywords.get("request_id")
        known = guard.asked(None, steps.awaited, request) if isinstance(request, str) else None
        if known is None:
            return method(*arguments, **keywords)
        token = sources.call.set(known._replace(stage=STAGE_P2D))
        try:
            return method(*arguments, **keywords)
        finally:
            sources.call.reset(token)

    return reported
