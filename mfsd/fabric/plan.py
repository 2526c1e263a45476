"""From a policy profile to what one box must do: eight queues, all 64 DSCPs, and the ports.

Templates, host settings and the checks read a `Plan`, never the policy, so that every box gets the same
numbers.
"""

from __future__ import annotations

import re
from collections import Counter

from msgspec import Struct

from mfsd.fabric.policy import EcnThresholds, PfcWatchdog, PolicyError, Profile, class_dscps

PFC_FRAME_BYTES = 64
LIGHT_NS_PER_M = 5.0
PORTS_MAX = 4096
"""More than any switch has."""
_RANGE = re.compile(r"\[([0-9]{1,9})-([0-9]{1,9})(?::([0-9]{1,9}))?\]")


class Queue(Struct, frozen=True):
    """One egress queue; `priority` is also its 802.1p and PFC priority. Strict queues: the highest goes
    first."""

    priority: int
    name: str
    dscps: tuple[int, ...]
    lossless: bool
    strict: bool
    floor_percent: int
    ceiling_percent: int
    weight_percent: int
    ecn: bool


class Port(Struct, frozen=True):
    name: str
    group: str
    speed_gbps: float
    cable_m: int
    mtu_bytes: int
    ecn: EcnThresholds | None
    headroom_bytes: int
    """Buffer one lossless priority needs on this port for what is still in flight after it sent a pause."""


class Plan(Struct, frozen=True):
    """What a policy profile means for a set of ports. Queues are listed from the first served to the last."""

    profile: str
    digest: str
    queues: tuple[Queue, ...]
    ports: tuple[Port, ...]
    dscp_to_priority: tuple[int, ...]
    """Priority of each of the 64 DSCPs."""
    default_priority: int
    control_priority: int
    lossless: tuple[int, ...]
    lossless_percent: int
    watchdog: PfcWatchdog
    cnp_dscp: int
    rdma_default_dscp: int
    """For unmarked RDMA traffic: the class of MFS's last class before the scavenger."""

    @property
    def groups(self) -> dict[str, Port]:
        """One port of each port group in use, as the group's example."""
        return {p.group: p for p in reversed(self.ports)}

    def queue(self, priority: int) -> Queue:
        return next(q for q in self.queues if q.priority == priority)


def headroom_bytes(speed_gbps: float, cable_m: int, mtu_bytes: int) -> int:
    """Bytes that still arrive after a pause was sent (IEEE 802.1Q annex on PFC delay: cable, frames,
    reaction).

    A frame may just have started at each end, the pause frame must be sent, travel, and be acted on within
    118 quanta of 512 bit times (60 up to 10 Gbit/s), and what is on the cable still arrives.
    """
    bytes_per_ns = speed_gbps / 8
    cable = 2 * cable_m * LIGHT_NS_PER_M * bytes_per_ns
    reaction = (118 if speed_gbps > 10 else 60) * 512 / 8
    return int(cable + reaction + 2 * mtu_bytes + PFC_FRAME_BYTES)


def expand_ports(text: str) -> list[str]:
    """Port names from `swp1,swp2` or `Ethernet[0-124:4]`, in the order given. Raises ValueError."""
    names: list[str] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        match = _RANGE.search(part)
        if match is None:
            names.append(part)
            continue
        first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
        if last < first or step < 1:
            raise ValueError(f"--ports: {part!r} is an empty range; write [FIRST-LAST] or [FIRST-LAST:STEP]")
        if _RANGE.search(part, match.end()):
            raise ValueError(f"--ports: {part!r} has two ranges; write one range a part, and parts with commas between")
        if len(range(first, last + 1, step)) > PORTS_MAX:
            raise ValueError(f"--ports: {part!r} is more than {PORTS_MAX} ports; write a shorter range")
        names += [part[: match.start()] + str(n) + part[match.end() :] for n in range(first, last + 1, step)]
    check_once(names, "list every port once")
    return names


def check_once(names: list[str], remedy: str) -> None:
    """Raises ValueError for the first name that is there twice."""
    doubled = sorted(name for name, times in Counter(names).items() if times > 1)
    if doubled:
        raise ValueError(f"--ports: {doubled[0]} is listed twice; {remedy}")
    if len(names) > PORTS_MAX:
        raise ValueError(f"--ports: {len(names)} names are more than {PORTS_MAX} ports; list fewer")


def parse_ports(profile: Profile, values: tuple[str, ...]) -> dict[str, list[str]]:
    """`GROUP=NAME,...` (or `NAME,...` for the first group) to names by port group. Raises ValueError."""
    ports: dict[str, list[str]] = {}
    for value in values:
        group, equals, names = value.partition("=")
        if not equals:
            group, names = next(iter(profile.port_groups)), value
        if group not in profile.port_groups:
            known = ", ".join(profile.port_groups)
            raise ValueError(f"--ports: {group!r} is no port group of this profile; there are {known}")
        ports.setdefault(group, []).extend(expand_ports(names))
    flat = [n for names_ in ports.values() for n in names_]
    if not flat:
        raise ValueError("--ports: no port named; write for example --ports hosts=Ethernet0,Ethernet4")
    check_once(flat, "a port belongs to one group")
    for name in flat:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9./:_-]{0,31}|[0-9]+(/[0-9]+)+", name):
            raise ValueError(f"--ports: {name!r} is no port name; use letters, digits and ./:_-")
    return ports


def check_port_names(ports: dict[str, list[str]], pattern: str, title: str, example: str) -> None:
    """Raises ValueError for the first name that the network operating system does not have."""
    for name in (n for names in ports.values() for n in names):
        if not re.fullmatch(pattern, name):
            raise ValueError(f"--ports: {name!r} is no port of {title}; its ports are written like {example}")


def make_plan(name: str, profile: Profile, ports: dict[str, list[str]]) -> Plan:
    """The plan of `profile` (called `name`) for `ports`, given by port group."""
    merged: dict[int, Queue] = {}
    for c in profile.classes:
        merged[c.priority] = Queue(
            c.priority,
            c.name,
            (c.dscp, *c.also_dscp),
            c.lossless,
            c.scheduling == "strict",
            c.floor_percent,
            c.ceiling_percent,
            c.weight_percent,
            c.ecn,
        )
    control = profile.control
    if control.priority not in merged:
        merged[control.priority] = Queue(control.priority, "control", (), False, True, 0, 100, 0, False)
    merged[control.priority] = _with_dscps(merged[control.priority], control.dscp)
    best = profile.best_effort
    if best.priority not in merged:
        shares = any(c.scheduling == "dwrr" for c in profile.classes)
        merged[best.priority] = Queue(
            best.priority,
            "best-effort",
            (),
            False,
            not shares,
            best.floor_percent,
            100,
            best.weight_percent,
            False,
        )
    dscp_to_priority = [best.priority] * 64
    for q in merged.values():
        for d in q.dscps:
            dscp_to_priority[d] = q.priority
    rest = tuple(d for d in range(64) if dscp_to_priority[d] == best.priority)
    merged[best.priority] = _with_dscps(merged[best.priority], rest)
    return Plan(
        profile=name,
        digest=profile.digest,
        queues=tuple(sorted(merged.values(), key=lambda q: -q.priority)),
        ports=tuple(_port(profile, group, port) for group, names in ports.items() for port in names),
        dscp_to_priority=tuple(dscp_to_priority),
        default_priority=best.priority,
        control_priority=control.priority,
        lossless=profile.lossless_priorities,
        lossless_percent=profile.buffers.lossless_percent,
        watchdog=profile.pfc_watchdog,
        cnp_dscp=control.dscp[0],
        rdma_default_dscp=class_dscps(profile)[-2],
    )


def _with_dscps(queue: Queue, dscps: tuple[int, ...]) -> Queue:
    return Queue(
        queue.priority,
        queue.name,
        tuple(sorted({*queue.dscps, *dscps})),
        queue.lossless,
        queue.strict,
        queue.floor_percent,
        queue.ceiling_percent,
        queue.weight_percent,
        queue.ecn,
    )


def _port(profile: Profile, group: str, name: str) -> Port:
    if group not in profile.port_groups:
        raise PolicyError(f"port_groups.{group}: no such port group; there are {', '.join(profile.port_groups)}")
    g = profile.port_groups[group]
    ecn = next((e for e in profile.ecn if e.speed_gbps == g.speed_gbps), None)
    return Port(
        name,
        group,
        g.speed_gbps,
        g.cable_m,
        g.mtu_bytes,
        ecn,
        headroom_bytes(g.speed_gbps, g.cable_m, g.mtu_bytes),
    )
