"""The order in which calls leave the router's own queue, where every replica has as many as it may have."""

from __future__ import annotations

from enum import Enum

from mfsd.policy.route.view import Call


class QueueOrder(str, Enum):
    FCFS = "fcfs"
    """In the order of arrival."""
    EDF = "edf"
    """By deadline; those without one last."""
    PRIORITY = "priority"
    """By importance, then by deadline."""


def queue_key(order: QueueOrder, call: Call) -> tuple[int, int, int, int]:
    """The smallest key goes first. Of equals the call that came first goes first."""
    if order is QueueOrder.FCFS:
        return 0, 0, 0, call.arrival_ns
    importance = -call.importance if order is QueueOrder.PRIORITY else 0
    if call.deadline_ns is None:
        return importance, 1, 0, call.arrival_ns
    return importance, 0, call.deadline_ns, call.arrival_ns
