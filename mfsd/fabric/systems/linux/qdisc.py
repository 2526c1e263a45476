"""The queueing discipline of a Linux port: what the plan wants, what the kernel has, and how to get there.

Reads with pyroute2. Writes the rendered text that the operator saw, through `tc -batch`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec import Struct
from pyroute2 import IPRoute, NetlinkError, NetNS

from mfsd.fabric.diff import Change
from mfsd.fabric.plan import Plan, Port
from mfsd.fabric.systems.linux import htb

ROOT = 1 << 16
PROTOCOLS = {0x0800: "ip", 0x86DD: "ipv6", 0x0806: "arp"}
REPLACEABLE = {"noqueue", "pfifo_fast", "fq_codel", "fq", "mq", "pfifo", "bfifo", "none"}
"""Root disciplines that systems install by themselves; anything else is an operator's choice."""


class HtbClass(Struct, frozen=True):
    rate_kbit: int
    ceil_kbit: int
    prio: int


class PortQueues(Struct, frozen=True):
    """The shaper of one port. Classes by minor number, filters by `(protocol, DSCP)`; ARP has DSCP 0."""

    root: str
    default_minor: int
    classes: dict[int, HtbClass]
    filters: dict[tuple[str, int], int]

    @property
    def ours(self) -> bool:
        """True for a shaper that MFS built: its root, its parent class and its queues' numbers."""
        return self.root == "htb" and 1 in self.classes and all(m == 1 or 16 <= m <= 23 for m in self.classes)


class QdiscError(OSError):
    """The kernel refused a queueing discipline, or it is not MFS's."""


@contextmanager
def open_netlink(netns: str | None = None) -> Iterator[Any]:
    """An rtnetlink socket in this network namespace or a named one."""
    with NetNS(netns, flags=0) if netns else IPRoute() as ipr:
        yield ipr


def interface_index(ipr: Any, name: str) -> int:
    """The index of interface `name`. Raises QdiscError, listing those there are."""
    found = ipr.link_lookup(ifname=name)
    if not found:
        names = ", ".join(sorted(str(link.get_attr("IFLA_IFNAME")) for link in ipr.get_links()))
        raise QdiscError(f"{name}: no such interface; there are {names}")
    return int(found[0])


def wanted_queues(plan: Plan, port: Port) -> PortQueues:
    line = htb.rate_kbit(port, 100)
    classes = {1: HtbClass(line, line, 0)}
    filters: dict[tuple[str, int], int] = {("arp", 0): 16 + plan.control_priority}
    for q in plan.queues:
        ceil = htb.rate_kbit(port, q.ceiling_percent)
        classes[16 + q.priority] = HtbClass(htb.floor_kbit(port, q), ceil, htb.prio(q))
        if q.priority != plan.default_priority:
            filters |= {(protocol, d): 16 + q.priority for protocol in ("ip", "ipv6") for d in q.dscps}
    return PortQueues("htb", 16 + plan.default_priority, classes, filters)


def read_queues(ipr: Any, index: int) -> PortQueues:
    """What the kernel has on interface `index`."""
    root, default = "none", 0
    for q in ipr.get_qdiscs(index=index):
        if q["parent"] == 0xFFFFFFFF:
            root = str(q.get_attr("TCA_KIND"))
            if root == "htb":
                default = int(q.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_INIT")["defcls"])
    if root != "htb":
        return PortQueues(root, 0, {}, {})
    classes = {c["handle"] & 0xFFFF: _htb_class(c.get_attr("TCA_OPTIONS")) for c in ipr.get_classes(index=index)}
    filters: dict[tuple[str, int], int] = {}
    for f in ipr.get_filters(index=index, parent=ROOT):
        options = f.get_attr("TCA_OPTIONS")
        classid = options.get_attr("TCA_U32_CLASSID") if options else None
        if classid is None:
            continue
        protocol = PROTOCOLS.get(int.from_bytes((f["info"] & 0xFFFF).to_bytes(2, "little"), "big"), "other")
        filters[protocol, (f["handle"] & 0xFFF) - 256] = classid & 0xFFFF
    return PortQueues(root, default, classes, filters)


def _htb_class(options: Any) -> HtbClass:
    parms = options.get_attr("TCA_HTB_PARMS")
    rate = options.get_attr("TCA_HTB_RATE64") or parms["rate"]
    ceil = options.get_attr("TCA_HTB_CEIL64") or parms["ceil"]
    return HtbClass(rate * 8 // 1000, ceil * 8 // 1000, parms["prio"] if parms["level"] == 0 else 0)


def diff_queues(want: PortQueues, have: PortQueues) -> list[Change]:
    """What differs between two shapers, setting by setting."""
    if have.root != want.root:
        return [Change("change", "root qdisc", have.root, want.root)]
    changes = []
    if have.default_minor != want.default_minor:
        changes.append(Change("change", "default class", f"1:{have.default_minor:x}", f"1:{want.default_minor:x}"))
    w = {f"class 1:{m:x}": _show(c) for m, c in want.classes.items()}
    h = {f"class 1:{m:x}": _show(c) for m, c in have.classes.items()}
    w |= {f"filter {p} dscp {d}": f"1:{m:x}" for (p, d), m in want.filters.items()}
    h |= {f"filter {p} dscp {d}": f"1:{m:x}" for (p, d), m in have.filters.items()}
    for key in sorted(w.keys() | h.keys()):
        if key not in h:
            changes.append(Change("add", key, want=w[key]))
        elif key not in w:
            changes.append(Change("remove", key, have=h[key]))
        elif w[key] != h[key]:
            changes.append(Change("change", key, h[key], w[key]))
    return changes


def diff_ports(plan: Plan, netns: str | None = None) -> list[Change]:
    """What differs between the plan and the shapers that its ports have now."""
    changes = []
    with open_netlink(netns) as ipr:
        for port in plan.ports:
            found = diff_queues(wanted_queues(plan, port), read_queues(ipr, interface_index(ipr, port.name)))
            changes += [msgspec.structs.replace(c, path=f"{port.name}: {c.path}") for c in found]
    return changes


def _show(c: HtbClass) -> str:
    return f"rate {c.rate_kbit}kbit ceil {c.ceil_kbit}kbit prio {c.prio}"


def apply_queues(plan: Plan, commands: str, netns: str | None = None) -> None:
    """Loads the shaper of every port of `plan`, rendered as commands of tc. Raises QdiscError, leaving foreign
    disciplines alone."""
    with open_netlink(netns) as ipr:
        for port in plan.ports:
            have = read_queues(ipr, interface_index(ipr, port.name))
            if not have.ours and have.root not in REPLACEABLE:
                raise QdiscError(
                    f"{port.name}: its root qdisc {have.root!r} is not MFS's; remove it first: "
                    f"tc qdisc del dev {port.name} root"
                )
    run_tc(commands, netns)


def remove_queues(ports: list[str], netns: str | None = None) -> None:
    """Gives ports their default discipline back; a port without MFS's shaper is left alone."""
    with open_netlink(netns) as ipr:
        for name in ports:
            index = interface_index(ipr, name)
            if read_queues(ipr, index).ours:
                try:
                    ipr.tc("del", index=index, root=True)
                except NetlinkError as error:
                    raise QdiscError(f"{name}: the kernel did not delete the root qdisc: {error}") from error


def run_tc(batch: str, netns: str | None = None) -> None:
    """Feeds `batch` to tc. Raises QdiscError with tc's own message."""
    command = ["tc", *(["-n", netns] if netns else []), "-batch", "-"]
    try:
        result = subprocess.run(command, input=batch, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError as error:
        raise QdiscError("tc is not installed: apt-get install iproute2") from error
    if result.returncode:
        raise QdiscError(" ".join(result.stderr.split()) or f"tc exited with status {result.returncode}")
