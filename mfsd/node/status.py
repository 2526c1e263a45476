"""Turns the arbiter's counters into the structs that mfsctl shows."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mfsd._native import Direction, Role, Stage
from mfsd.node.config import RuleConfig
from mfsd.node.control import ClassStatus, ClientStatus, CommunicatorStatus, NicStatus, PortStatus, RuleStatus
from mfsd.node.rules import BUILT_IN, dscp_of
from mfsd.node.session import Session

if TYPE_CHECKING:
    from mfsd._native import Arbiter, ClientStats, CommunicatorSnapshot, NicStats

ROLES = tuple(role.name.lower().replace("_", "-") for role in Role)
OPERATIONS = ("other", "all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce", "all-to-all", "send")
"""enum mfs_operation."""
STAGES = tuple(stage.name.lower() for stage in Stage)


def client_status(
    session: Session, stats: ClientStats, communicators: Sequence[CommunicatorSnapshot], now_s: float, unit: str = ""
) -> ClientStatus:
    detached = stats["detach_reason"] != 0
    return ClientStatus(
        client_id=session.client_id,
        pid=session.peer.pid,
        uid=session.peer.uid,
        process=session.process,
        state="detached" if detached else "active",
        detach_reason=errno.errorcode.get(-stats["detach_reason"], str(stats["detach_reason"])) if detached else None,
        attached_s=now_s - session.attached_s,
        nics=[session.nics[index] for index in sorted(session.nics)],
        queue_pairs=_named(ROLES, stats["queue_pairs"]),
        held_bytes=stats["held_bytes"],
        in_flight_bytes=stats["in_flight_bytes"],
        submits=stats["submits"],
        permits=stats["grants"],
        on_credit=stats["taken"],
        completes=stats["completes"],
        cancels=stats["cancels"],
        posted_bytes=_named(STAGES, stats["posted_bytes"]),
        completed_bytes=_named(STAGES, stats["completed_bytes"]),
        bypassed_overflow=stats["bypassed_overflow"],
        bypassed_hold=stats["bypassed_hold"],
        bypassed_stale=stats["bypassed_stale"],
        hold_s=stats["hold_ns"] / 1e9,
        torn_slots=stats["torn_slots"],
        bad_messages=stats["bad_messages"],
        communicators=[_communicator_status(communicator) for communicator in communicators],
        unit=unit,
        abi=session.abi,
    )


def _communicator_status(communicator: CommunicatorSnapshot) -> CommunicatorStatus:
    return CommunicatorStatus(
        id=f"{communicator.id:016x}",
        name=communicator.name,
        rank=communicator.rank,
        ranks=communicator.ranks,
        operations=communicator.operations,
        called_bytes=communicator.operation_bytes,
        sent_bytes=sum(communicator.sent_bytes),
        operation_bytes=_named(OPERATIONS, communicator.sent_bytes),
        work_requests=communicator.work_requests,
        batch_bytes=communicator.batch_bytes,
        batch=communicator.batch,
        layer=None if communicator.batch is None else communicator.layer,
    )


def nic_status(index: int, stats: NicStats, port: PortStatus | None = None) -> NicStatus:
    return NicStatus(
        index=index,
        name=stats["name"],
        guid=f"{stats['guid']:016x}",
        rate_bytes_per_s=stats["rate_bytes_per_s"],
        window_bytes=stats["window_bytes"],
        in_flight_bytes=stats["in_flight_bytes"][Direction.OUT],
        incoming_in_flight_bytes=stats["in_flight_bytes"][Direction.IN],
        unscheduled_in_flight_bytes=stats["unscheduled_in_flight_bytes"],
        load=None if stats["load"] is None else stats["load"][Direction.OUT],
        incoming_load=None if stats["load"] is None else stats["load"][Direction.IN],
        promotions=stats["promotions"],
        wait_s=stats["wait_ns"] / 1e9,
        classes=[
            ClassStatus(*values)
            for values in zip(
                stats["held_bytes"],
                stats["held_tasks"],
                stats["in_flight_class_bytes"],
                stats["granted_bytes"],
                stats["grants"],
                *(stats["carried_bytes"][direction] for direction in (Direction.OUT, Direction.IN)),
                strict=True,
            )
        ],
        utilization=stats["used"][Direction.OUT],
        incoming_utilization=stats["used"][Direction.IN],
        unscheduled_bytes=stats["unscheduled_carried_bytes"],
        passed_bytes=stats["passed_bytes"],
        port=port,
    )


def nic_statuses(arbiter: Arbiter, count: int, port: Callable[[str], PortStatus | None]) -> list[NicStatus]:
    """`port` returns what the counters of a device's port tell."""
    return [
        nic_status(index, stats, port(stats["name"])) for index in range(count) if (stats := arbiter.nic_stats(index))
    ]


def rule_statuses(rules: Sequence[RuleConfig], dscp: Sequence[int]) -> list[RuleStatus]:
    configured = [("configuration", rule) for rule in rules]
    return [
        RuleStatus(
            source="configuration" if source == "configuration" else "built-in",
            library=rule.library,
            process=rule.process,
            peer=str(rule.peer or ""),
            role=rule.role,
            action=rule.action,
            stage=rule.stage,
            dscp=dscp_of(rule, dscp),
            set_role=rule.set_role,
            communicator=rule.communicator,
        )
        for source, rule in [*configured, *(("built-in", rule) for rule in BUILT_IN)]
    ]


def _named(names: Sequence[str], values: Sequence[int]) -> dict[str, int]:
    """Nonzero values by name; by number if they have none (from a newer client)."""
    return {names[at] if at < len(names) else str(at): value for at, value in enumerate(values) if value}
