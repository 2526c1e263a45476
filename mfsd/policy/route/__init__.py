"""Routers: choose the replica of an engine that gets a request.

Pure, as the rest of mfsd.policy: the gateway and the simulated cluster call the same `choose`. Times are nanoseconds
from now, sizes bytes. Read in this order: view, config, cost, choose, queue. What each router is for: docs/gateway.md.
"""

from mfsd.policy.route.choose import choose, eligible
from mfsd.policy.route.config import Load, RouteConfig, Router
from mfsd.policy.route.queue import QueueOrder, queue_key
from mfsd.policy.route.view import Call, Choice, Homes, Refusal, Replica, Role

__all__ = [
    "Call",
    "Choice",
    "Homes",
    "Load",
    "QueueOrder",
    "Refusal",
    "Replica",
    "Role",
    "RouteConfig",
    "Router",
    "choose",
    "eligible",
    "queue_key",
]
