"""What the NIC does with classes: trust, queues, PFC, ECN and DCBX, against the fabric policy (`mfsctl host`)."""

from __future__ import annotations

from collections.abc import Iterator

from mfsd.fabric.host import Host as FabricHost
from mfsd.fabric.host import Result
from mfsd.fabric.plan import Plan, make_plan
from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host

TITLE = "NIC settings"
REMEDY = "mfsctl host apply --dev {interface}"

TRUST = Kind(
    "nic.trust",
    "fail",
    "The NIC does not sort by DSCP: every class of MFS leaves through one queue.",
    "mfsctl host apply --dev IF, or: mlnx_qos -i IF --trust dscp",
)
MAP = Kind(
    "nic.dscp-map",
    "fail",
    "The NIC puts a DSCP of the policy into another priority, so classes are mixed or reversed.",
    "mfsctl host apply --dev IF",
)
ORDER = Kind(
    "nic.order",
    "fail",
    "The NIC's queues are not served as the policy says: a lower class can go first.",
    "mfsctl host apply --dev IF",
)
NO_ORDER = Kind(
    "nic.no-order",
    "warn",
    "Neither hardware queues nor a shaper order what leaves here; only MFS's own queue does.",
    "a NIC with DCB, or for sockets and soft RoCE: mfsctl host apply --dev IF --qdisc on",
)
PFC = Kind(
    "nic.pfc",
    "fail",
    "The NIC pauses other priorities than the policy's lossless ones: bytes are lost, or other classes stop.",
    "mfsctl host apply --dev IF, and the same profile on the switch",
)
ECN = Kind(
    "nic.ecn",
    "warn",
    "The NIC does not answer or react to congestion marks on a priority that the switches mark.",
    "mfsctl host apply --dev IF",
)
DCBX = Kind(
    "nic.dcbx",
    "warn",
    "Firmware or switch may overrule the NIC's settings at any time (DCBX is not the host's).",
    "mfsctl host apply --dev IF; on ConnectX: mlxconfig set LLDP_NB_DCBX_P1=0, then reset the NIC",
)
UNKNOWN = Kind(
    "nic.unknown",
    "unknown",
    "The NIC's settings cannot be read.",
    "run the doctor as root on the host, not in a container",
)
NO_SETTING = Kind(
    "nic.not-supported",
    "info",
    "The driver shows no such setting; it may be elsewhere (mlxconfig, debugfs).",
)
NO_LINK = Kind(
    "nic.no-interface",
    "unknown",
    "No network interface belongs to the RDMA device, so trust, queues, PFC and MTU cannot be examined.",
    "name it: --dev IF",
)
AS_WANTED = Kind("nic.as-wanted", "ok", "All settings that this NIC has are as the policy wants them.")

KINDS_BY_SETTING = {"trust": TRUST, "dscp-to-priority": MAP, "ets": ORDER, "qdisc": NO_ORDER, "pfc": PFC, "dcbx": DCBX}


def plan_for(host: Host, interface: str) -> Plan:
    group = host.port_group or next(iter(host.profile.port_groups))
    return make_plan(host.policy_name, host.profile, {group: [interface]})


def run(host: Host) -> Iterator[Finding]:
    if lost := [device for device in host.devices if not host.interfaces and not host.netdevs(device)]:
        yield NO_LINK(f"no interface for {', '.join(lost)}")
    for interface in host.links:
        fabric = FabricHost(plan_for(host, interface), sysfs=host.sys, configfs=host.configfs, exchange=host.exchange)
        try:
            results = fabric.show()
        except OSError as error:
            yield UNKNOWN(str(error.strerror or error), interface)
            continue
        problems = [finding for result in results if (finding := _judge(result, interface))]
        problems += _absent(results, interface)
        if not any(r.setting in ("ets", "qdisc") and r.have is not None for r in results):
            problems.append(NO_ORDER("the device has no ETS and no shaper", interface))
        yield from problems
        if all(p.severity == "info" for p in problems):
            yield AS_WANTED(", ".join(r.setting for r in results if r.outcome == "ok"), interface)


def _judge(result: Result, interface: str) -> Finding | None:
    kind = KINDS_BY_SETTING.get(result.setting, ECN if " ecn " in result.setting else None)
    if kind is None or result.outcome == "ok":
        return None
    remedy = REMEDY.format(interface=interface)
    if result.outcome == "differs":
        return kind(f"{result.setting} is {_short(result.have)}, policy: {_short(result.want)}", interface, remedy)
    if "(" in result.reason and ("permit" in result.reason or result.outcome == "cannot set"):
        return UNKNOWN(f"{result.setting}: {result.reason}", interface)
    if result.setting == "dcbx" and result.reason and "firmware" in result.reason:
        return kind(f"{result.setting}: {result.reason}", interface)
    return None


def _absent(results: list[Result], interface: str) -> Iterator[Finding]:
    """Settings that the driver does not have, together for each reason."""
    by_reason: dict[str, list[str]] = {}
    for r in results:
        if r.outcome == "not supported" and r.setting in KINDS_BY_SETTING and "firmware" not in r.reason:
            by_reason.setdefault(r.reason, []).append(r.setting)
    for reason, settings in by_reason.items():
        yield NO_SETTING(f"{', '.join(settings)}: {reason}", interface)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
