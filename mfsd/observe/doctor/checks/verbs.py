"""libibverbs, as programs use it: it opens every device that the kernel has and agrees with sysfs. Devices, ports,
addresses, speed and MTU are read by pyverbs, in a short program of the distribution's Python; from sysfs where that is
missing. With --verbs a message is moved over each port: a queue pair is made, connected to itself, and writes once with
the DSCP of the highest class."""

from __future__ import annotations

from collections.abc import Iterator

from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host, port_in_sysfs
from mfsd.verbs.ask import PACKAGE, Device, Port, VerbsFailed, VerbsMissing

TITLE = "libibverbs"
ROCE_V2 = "RoCE v2"

SYSFS = Kind(
    "verbs.sysfs",
    "info",
    "pyverbs cannot be used, so devices are read from sysfs: whether libibverbs opens them is not known.",
    PACKAGE,
)
UNTRIED = Kind("verbs.untried", "unknown", "No message could be moved over the ports: that needs pyverbs.", PACKAGE)
FAILED = Kind(
    "verbs.failed",
    "unknown",
    "libibverbs did not answer, so devices are read from sysfs.",
    "read the reason; try ibv_devinfo -v, which asks the same",
)
NO_PROVIDER = Kind(
    "verbs.no-provider",
    "fail",
    "The kernel has the device but libibverbs does not find it: no program can use it.",
    "apt-get install ibverbs-providers; in a container its rdma-core must know this NIC",
)
NOT_OPENED = Kind(
    "verbs.not-opened",
    "fail",
    "libibverbs finds the device but cannot open it.",
    "read the reason; see devices.nodes-missing and devices.nodes-denied",
)
DIFFERS = Kind(
    "verbs.differs",
    "warn",
    "libibverbs and sysfs disagree about the port; programs go by libibverbs.",
    "use kernel driver and rdma-core of one release; mfsd plans with nic.NAME.rate if it is set",
)
AGREES = Kind("verbs.agrees", "ok", "pyverbs was used: libibverbs opens the device and says what sysfs says.")
NOT_MOVED = Kind(
    "verbs.not-moved",
    "fail",
    "A queue pair of the port cannot write to itself, so programs cannot use the port.",
    "read the reason; limits.memlock and the port's state are the usual causes",
)
MOVED = Kind("verbs.moved", "ok", "A queue pair of the port was made, connected to itself, and its write arrived.")
DSCP_SEEN = Kind("verbs.dscp-seen", "ok", "Packets of that message were seen with the DSCP of the highest class.")
DSCP_OTHER = Kind(
    "verbs.dscp-other",
    "fail",
    "Packets of that message were seen, but none with the DSCP that the queue pair was given.",
    "see override.*: a setting of the NIC replaces the traffic class",
)
DSCP_UNSEEN = Kind(
    "verbs.dscp-unseen",
    "info",
    "It was not seen whether the DSCP is on the wire: NICs turn such a message around inside.",
    "run mfsctl doctor --peer ADDR, with mfsctl fabric serve at the other end",
)


def run(host: Host) -> Iterator[Finding]:
    if not host.devices:
        return
    try:
        found = host.verbs_devices
    except VerbsMissing as error:
        yield SYSFS(str(error))
        if host.try_verbs:
            yield UNTRIED(str(error))
        return
    except VerbsFailed as error:
        yield FAILED(str(error))
        return
    for name in host.devices:
        device = found.devices.get(name)
        if device is None:
            yield NO_PROVIDER(f"libibverbs of {found.python} names {', '.join(found.devices) or 'no device'}", name)
        elif device.error:
            yield NOT_OPENED(device.error, name)
        else:
            yield from _compared(host, name, device, found.python)
            if host.try_verbs:
                yield from _moved(host, name, device)


def _compared(host: Host, name: str, device: Device, python: str) -> Iterator[Finding]:
    differences = False
    for number, port in device.ports.items():
        in_sysfs = port_in_sysfs(host.sys, name, number)
        pairs = [("state", port.state, in_sysfs.state), ("link layer", port.link, in_sysfs.link)]
        pairs.append(("rate in bytes/s", str(port.rate_bytes_per_s), str(in_sysfs.rate_bytes_per_s)))
        for what, here, there in pairs:
            if there not in ("", "0", here):
                differences = True
                yield DIFFERS(f"{what}: {here} by libibverbs, {there} in sysfs", f"{name} port {number}")
    if not differences:
        yield AGREES(f"{python}; firmware {device.firmware or 'unknown'}, {_ports(device)}", name)


def _ports(device: Device) -> str:
    return ", ".join(
        f"port {number}: {port.link}, {port.rate_bytes_per_s * 8 / 1e9:g} Gbit/s, MTU {port.mtu_bytes}, "
        f"GID indices {' '.join(map(str, port.gids)) or 'none'}"
        for number, port in device.ports.items()
    )


def _moved(host: Host, name: str, device: Device) -> Iterator[Finding]:
    dscp = host.profile.classes[0].dscp
    for number, port in device.ports.items():
        subject = f"{name} port {number}"
        index = _address(port)
        if port.state != "ACTIVE" or index is None:
            continue  # devices.* reports it
        try:
            message = host.verbs_message(name, number, index, dscp)
        except (VerbsMissing, VerbsFailed) as error:
            yield NOT_MOVED(str(error), subject)
            continue
        yield MOVED(f"{message.bytes} bytes, GID index {index} ({port.gids[index].gid})", subject)
        if port.link != "Ethernet":
            continue
        if message.dscps is None:
            yield DSCP_UNSEEN("this user may not capture packets (CAP_NET_RAW)", subject)
        elif not message.dscps:
            yield DSCP_UNSEEN("no packet of it passed an interface of this host", subject)
        elif dscp in message.dscps:
            yield DSCP_SEEN(f"DSCP {dscp}", subject)
        else:
            yield DSCP_OTHER(f"DSCP {dscp} was given, seen: {', '.join(map(str, message.dscps))}", subject)


def _address(port: Port) -> int | None:
    """The GID index to use: on Ethernet one of RoCE v2, the last if a port has several."""
    fitting = [index for index, gid in port.gids.items() if port.link != "Ethernet" or gid.type == ROCE_V2]
    return max(fitting, default=None)
