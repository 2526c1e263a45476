"""Host-wide traffic classes: settings that put one class on every queue pair, over what MFS gave it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mfsd.fabric.policy import class_dscps
from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host, names_in, read_line

TITLE = "Host-wide traffic class"

FORCED = Kind(
    "override.forced",
    "fail",
    "The driver writes this class into every queue pair, so all lanes become one.",
    "echo -1 > the file named, and remove it from boot scripts (set_irq_affinity, udev, openibd.conf)",
)
CM_DEFAULT = Kind(
    "override.rdma-cm",
    "fail",
    "Connections made by RDMA-CM get this class although the fabric policy gives unmarked RDMA another one.",
    "mfsctl host apply --dev IF, or: cma_roce_tos -d DEVICE -t 0",
)
UNREADABLE = Kind(
    "override.unreadable",
    "unknown",
    "It cannot be read whether a host-wide class is set.",
    "run the doctor as root on the host",
)
CLEAR = Kind("override.clear", "ok", "No host-wide traffic class overrides the lanes of this device.")


def run(host: Host) -> Iterator[Finding]:
    for device in host.devices:
        problems = [*_forced(host, device), *_cm_default(host, device)]
        yield from problems
        if not problems:
            yield CLEAR("no traffic_class file holds a class, RDMA-CM's default is the policy's or unset", device)


def _forced(host: Host, device: str) -> Iterator[Finding]:
    """The files `tc/PORT/traffic_class` that NVIDIA's driver package adds; they hold a class and rules."""
    for port in names_in(host.sys / "class/infiniband" / device / "tc"):
        file = host.sys / "class/infiniband" / device / "tc" / port / "traffic_class"
        try:
            text = file.read_text().strip()
        except FileNotFoundError:
            continue
        except OSError as error:
            yield UNREADABLE(f"{file}: {error.strerror}", f"{device} port {port}")
            continue
        forced = [int(n) for n in re.findall(r"(?:^|tclass\s*=\s*)(-?\d+)", text, re.MULTILINE)]
        for value in (n for n in forced if n > 0):
            yield FORCED(f"{file} holds {value} (DSCP {value >> 2})", f"{device} port {port}")


def _cm_default(host: Host, device: str) -> Iterator[Finding]:
    """configfs lists a device only after a folder was made for it."""
    wanted = class_dscps(host.profile)[-2] << 2
    for port in names_in(host.configfs / "rdma_cm" / device / "ports"):
        value = read_line(host.configfs / "rdma_cm" / device / "ports" / port / "default_roce_tos")
        if value.isdigit() and int(value) not in (0, wanted):
            yield CM_DEFAULT(
                f"default_roce_tos is {value} (DSCP {int(value) >> 2}); policy {host.policy_name} wants {wanted} or 0",
                f"{device} port {port}",
            )
