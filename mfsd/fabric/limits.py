"""Limits of switch silicon: rules that no schema states.

Sources: packet memory from the vendors' product briefs; lossless queues from SONiC's default buffer
templates, Dell's and Juniper's guides (QFX: at most six lossless forwarding classes) and the eight
priorities of IEEE 802.1Qbb.
"""

from __future__ import annotations

from msgspec import Struct

from mfsd.fabric.findings import Finding
from mfsd.fabric.plan import Plan, Port


class Asic(Struct, frozen=True):
    name: str
    title: str
    buffer_bytes: int


ASICS = {
    a.name: a
    for a in (
        Asic("spectrum", "NVIDIA Spectrum (SN2700)", 16 << 20),
        Asic("spectrum2", "NVIDIA Spectrum-2 (SN3700)", 42 << 20),
        Asic("spectrum3", "NVIDIA Spectrum-3 (SN4600)", 64 << 20),
        Asic("spectrum4", "NVIDIA Spectrum-4 (SN5600)", 160 << 20),
        Asic("tomahawk", "Broadcom Tomahawk", 16 << 20),
        Asic("tomahawk2", "Broadcom Tomahawk 2", 42 << 20),
        Asic("tomahawk3", "Broadcom Tomahawk 3", 64 << 20),
        Asic("tomahawk4", "Broadcom Tomahawk 4", 113 << 20),
        Asic("trident3", "Broadcom Trident 3", 32 << 20),
    )
}
"""Switch silicon and its packet memory, which the ports share."""


def check_limits(plan: Plan, asic: str | None = None) -> list[Finding]:
    """Checks `plan` against the rules about silicon; `asic` (a key of ASICS) adds the packet memory. A system adds its
    own rules."""
    found = [_control(plan), _queues(plan), _default_dscp(plan)]
    if plan.lossless:
        found.append(_headroom(plan, asic))
    found += _thresholds(plan, asic)
    return found


def _control(plan: Plan) -> Finding:
    queue, rule = plan.queue(plan.dscp_to_priority[plan.cnp_dscp]), "control"
    if queue.lossless:
        return Finding(
            rule, "fail", f"CNPs (DSCP {plan.cnp_dscp}) would wait in lossless {queue.name}", "change control"
        )
    higher = [q.name for q in plan.queues if q.priority > queue.priority]
    if higher:
        return Finding(rule, "warn", f"CNPs wait behind {', '.join(higher)}", "give control the highest priority")
    return Finding(rule, "pass", f"CNPs (DSCP {plan.cnp_dscp}) go first, on priority {queue.priority}")


def _queues(plan: Plan) -> Finding:
    return Finding("queues", "pass", f"{len(plan.queues)} of 8 queues used")


def _default_dscp(plan: Plan) -> Finding:
    """Checks the class of DSCP 0, with which NCCL and Mooncake send unless they are configured otherwise."""
    queue = plan.queue(plan.default_priority)
    if queue.lossless:
        return Finding(
            "unmarked traffic", "fail", f"unmarked traffic lands in lossless {queue.name}", "move best_effort"
        )
    return Finding("unmarked traffic", "pass", f"unmarked traffic lands in {queue.name}, lossy")


def _headroom(plan: Plan, asic: str | None) -> Finding:
    need = sum(p.headroom_bytes * len(plan.lossless) for p in plan.ports)
    text = f"{need:,} bytes for {len(plan.ports)} ports x {len(plan.lossless)} lossless classes"
    if asic is None:
        return Finding(
            "headroom",
            "not checked",
            text,
            f"give --asic ({', '.join(ASICS)}) to compare with its packet memory",
        )
    chip = ASICS[asic]
    room = chip.buffer_bytes * plan.lossless_percent // 100
    if need > room:
        return Finding(
            "headroom",
            "fail",
            f"{text}; {chip.title} has {room:,} in its lossless share",
            "fewer lossless classes, shorter cables in port_groups, or a larger buffers.lossless_percent",
        )
    return Finding("headroom", "pass", f"{text}; {chip.title} has {room:,} in its lossless share")


def _thresholds(plan: Plan, asic: str | None) -> list[Finding]:
    """Checks that marking begins before a lossless queue pauses; otherwise ECN never acts."""
    found = []
    for group, port in plan.groups.items():
        if port.ecn is None or asic is None:
            continue
        fair = _fair_share_bytes(plan, port, asic)
        if port.ecn.min_bytes > fair:
            found.append(
                Finding(
                    f"ecn {group}",
                    "warn",
                    f"marking starts at {port.ecn.min_bytes:,} bytes; with every port busy a queue gets about {fair:,}",
                    f"lower the row for {port.speed_gbps:g} Gbit/s in ecn",
                )
            )
        else:
            found.append(
                Finding(
                    f"ecn {group}",
                    "pass",
                    f"marking starts at {port.ecn.min_bytes:,} of about {fair:,} bytes",
                )
            )
    return found


def _fair_share_bytes(plan: Plan, port: Port, asic: str) -> int:
    memory = ASICS[asic].buffer_bytes
    headroom = sum(p.headroom_bytes * len(plan.lossless) for p in plan.ports)
    return max(0, memory - headroom) // max(1, len(plan.ports))
