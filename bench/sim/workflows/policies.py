"""Policies by name: the order of the global queue, where stages are placed, and what a job may keep between stages."""

from __future__ import annotations

from enum import Enum

import msgspec
from msgspec.structs import replace


class Order(str, Enum):
    FCFS = "fcfs"
    """Jobs in the order of arrival."""
    EDF = "edf"
    """Interactive jobs first, then batch jobs by deadline: Maestro's baseline."""
    REMAINING = "remaining"
    """By expected remaining time, aged (Eq 7, 8)."""
    HINDSIGHT = "hindsight"
    """By the true remaining time: a bound."""


class Placement(str, Enum):
    BALANCE = "balance"
    """The node with the fewest stages."""
    PACK = "pack"
    """Fitness without the network."""
    FITNESS = "fitness"


class WorkflowPolicy(msgspec.Struct, frozen=True, kw_only=True):
    help: str
    order: Order
    placement: Placement = Placement.BALANCE
    keeps_turn: bool = False
    """Whether a job whose stage has ended continues before all that wait."""
    preempt: bool = False
    """Whether it then gives way to one that is far ahead of it."""
    restart: bool = False
    """One model a GPU at a time; each switch starts a process."""


_MAESTRO = WorkflowPolicy(
    help="expected remaining time, preemption between stages, placed by fitness",
    order=Order.REMAINING,
    placement=Placement.FITNESS,
    keeps_turn=True,
    preempt=True,
)
POLICIES: dict[str, WorkflowPolicy] = {
    "fcfs": WorkflowPolicy(help="jobs in the order of arrival, least loaded node", order=Order.FCFS),
    "edf": WorkflowPolicy(help="interactive jobs first, then by deadline, least loaded node", order=Order.EDF),
    "edf-fitness": WorkflowPolicy(help="edf, placed by fitness", order=Order.EDF, placement=Placement.FITNESS),
    "srtf": WorkflowPolicy(
        help="the least left to compute first, known beforehand: a bound",
        order=Order.HINDSIGHT,
        placement=Placement.FITNESS,
    ),
    "maestro": _MAESTRO,
    "maestro-no-preempt": replace(_MAESTRO, help="maestro, jobs go on until they end", preempt=False),
    "maestro-pack": replace(_MAESTRO, help="maestro, placed without the network", placement=Placement.PACK),
    "maestro-balance": replace(_MAESTRO, help="maestro, least loaded node", placement=Placement.BALANCE),
    "maestro-restart": replace(_MAESTRO, help="maestro, one model a GPU, started anew at each switch", restart=True),
}
