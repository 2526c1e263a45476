"""The settings of one host interface. Each has its own way to read and write it, and the value that the policy wants.

Values are plain JSON, so that a saved value can be written back. `read` raises OSError for a setting that the driver
does not have; `host.py` turns that into a reason.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from mfsd.fabric.dcb import (
    DCBX_HOST,
    DCBX_IEEE,
    DCBX_LLD_MANAGED,
    SELECTOR_DSCP,
    SELECTOR_PCP,
    TSA_ETS,
    TSA_STRICT,
    DcbLink,
    Ets,
)
from mfsd.fabric.plan import Plan, Port
from mfsd.fabric.systems import linux
from mfsd.fabric.systems.linux.qdisc import (
    REPLACEABLE,
    diff_queues,
    interface_index,
    open_netlink,
    read_queues,
    remove_queues,
    wanted_queues,
)

Value = Any
TRUST_NAMES = {SELECTOR_DSCP: "dscp", SELECTOR_PCP: "pcp"}


class Setting(Protocol):
    """One setting. `want` is the value that the policy asks for; `loss` says what happens without it."""

    name: str
    want: Value
    loss: str

    def read(self) -> Value: ...

    def write(self, value: Value) -> None: ...


class Dcbx:
    """Which side configures the port. MFS can only if the host does, with the IEEE version of DCBX."""

    name = "dcbx"
    want = DCBX_HOST | DCBX_IEEE
    loss = "firmware or switch may overrule these settings"

    def __init__(self, link: DcbLink) -> None:
        self._link = link

    def read(self) -> Value:
        mode = self._link.read_dcbx()
        if mode & DCBX_LLD_MANAGED:
            raise OSError(errno.EBUSY, "the NIC's firmware runs DCBX and owns these settings")
        return mode

    def write(self, value: Value) -> None:
        self._link.write_dcbx(value)


class DscpMap:
    """Priority of each DSCP, from the APP table. Drivers such as mlx5 trust DSCP as soon as this table has entries."""

    name = "dscp-to-priority"
    loss = "the NIC ignores the DSCP when it picks a queue"

    def __init__(self, link: DcbLink, plan: Plan) -> None:
        self._link = link
        self.want = {str(d): p for d, p in enumerate(plan.dscp_to_priority)}

    def read(self) -> Value:
        return {str(d): p for d, p in sorted(self._link.read().dscp_to_priority.items())}

    def write(self, value: Value) -> None:
        have = self._link.read().dscp_to_priority
        want = {int(d): p for d, p in value.items()}
        self._link.remove_dscps({d: p for d, p in have.items() if want.get(d) != p})
        self._link.add_dscps({d: p for d, p in want.items() if have.get(d) != p})


class Trust:
    """Whether the DSCP or the VLAN tag decides the priority, as set by the trust table or MLNX_OFED's file or implied
    by the APP table."""

    name = "trust"
    want = "dscp"
    loss = "routed, untagged packets lose their class"

    def __init__(self, link: DcbLink, sysfs: Path) -> None:
        self._link = link
        self._file = sysfs / "class/net" / link.interface / "qos/trust"

    def read(self) -> Value:
        if self._file.is_file():
            return self._file.read_text().strip()
        state = self._link.read()
        if state.trust is not None:
            return ",".join(TRUST_NAMES.get(s, str(s)) for s in state.trust) or "none"
        return "dscp" if state.dscp_to_priority else "pcp"

    def write(self, value: Value) -> None:
        if self._file.is_file():
            self._file.write_text(f"{value}\n")
        elif self._link.read().trust is not None:
            numbers = {name: s for s, name in TRUST_NAMES.items()}
            self._link.write_trust(numbers[n] for n in value.split(",") if n in numbers)
        elif self.read() != value:
            raise OSError(errno.EOPNOTSUPP, "this driver's trust follows its DSCP table, which could not be set")


class EtsSetting:
    """Traffic classes of the NIC: priority p is in class p, strict or weighted as in the policy."""

    name = "ets"
    loss = "the NIC sends its classes in no order"

    def __init__(self, link: DcbLink, plan: Plan) -> None:
        self._link = link
        weights = {q.priority: q.weight_percent for q in plan.queues if not q.strict}
        self.want = {
            "prio_tc": list(range(8)),
            "tsa": ["ets" if p in weights else "strict" for p in range(8)],
            "bandwidth_percent": [weights.get(p, 0) for p in range(8)],
        }

    def read(self) -> Value:
        ets = self._link.read().ets
        if ets is None:
            raise OSError(errno.EOPNOTSUPP, "the driver has no ETS")
        names = {TSA_STRICT: "strict", TSA_ETS: "ets"}
        return {
            "prio_tc": list(ets.prio_tc),
            "tsa": [names.get(t, str(t)) for t in ets.tc_tsa],
            "bandwidth_percent": list(ets.tc_bw_percent),
        }

    def write(self, value: Value) -> None:
        numbers = {"strict": TSA_STRICT, "ets": TSA_ETS}
        tsa = tuple(numbers.get(t, TSA_STRICT) for t in value["tsa"])
        self._link.write_ets(Ets(tuple(value["prio_tc"]), tsa, tuple(value["bandwidth_percent"])))


class PfcSetting:
    """Priorities that may be paused; they must be the same as on the switch."""

    name = "pfc"
    loss = "lossless classes are dropped, not paused"

    def __init__(self, link: DcbLink, plan: Plan) -> None:
        self._link = link
        self.want = list(plan.lossless)

    def read(self) -> Value:
        pfc = self._link.read().pfc
        if pfc is None:
            raise OSError(errno.EOPNOTSUPP, "the driver has no PFC")
        return list(pfc)

    def write(self, value: Value) -> None:
        state = self._link.read()
        if value and state.pfc_classes and len(value) > state.pfc_classes:
            raise OSError(errno.EINVAL, f"{len(value)} lossless priorities, the NIC supports {state.pfc_classes}")
        self._link.write_pfc(value)


class SocketQueues:
    """The shaper for sockets (and for soft RoCE) on devices without hardware queues."""

    name = "qdisc"
    loss = "sockets are sent in no order"

    def __init__(self, plan: Plan, port: Port, netns: str | None) -> None:
        self._plan, self._port, self._netns = plan, port, netns
        self.want = "mfs"

    def read(self) -> Value:
        with open_netlink(self._netns) as ipr:
            have = read_queues(ipr, interface_index(ipr, self._port.name))
        differences = diff_queues(wanted_queues(self._plan, self._port), have)
        if not differences:
            return "mfs"
        return f"mfs, but {differences[0]}" if have.ours else have.root

    def write(self, value: Value) -> None:
        if value == "mfs":
            linux.SYSTEM.apply_live(self._plan, self._netns)
        elif value in REPLACEABLE or value.startswith("mfs"):
            remove_queues([self._port.name], self._netns)
        else:
            raise OSError(errno.EINVAL, f"MFS cannot restore the queueing discipline {value!r}")


class File:
    """A one-line file of sysfs or configfs."""

    def __init__(self, name: str, path: Path, want: str, loss: str) -> None:
        self.name, self.want, self.loss = name, want, loss
        self._path = path

    def read(self) -> Value:
        return self._path.read_text().strip()

    def write(self, value: Value) -> None:
        self._path.write_text(f"{value}\n")


class HostWideClass:
    """MLNX_OFED's host-wide traffic class. It must not be set, because it overrides that of every queue pair."""

    want = "unset"
    loss = "lanes lose the DSCP that MFS gave them"

    def __init__(self, device: str, path: Path) -> None:
        self.name = f"{device} host-wide traffic class"
        self._path = path

    def read(self) -> Value:
        text = self._path.read_text().strip()
        return "unset" if text in ("", "0", "-1", "Global tclass=-1", "Global tclass=0") else text

    def write(self, value: Value) -> None:
        number = re.search(r"\d+", value)
        self._path.write_text(f"{number[0] if number else -1}\n")


def ecn_settings(interface: str, priorities: Iterable[int], sysfs: Path) -> list[Setting]:
    """Returns the switches of congestion control, one for each priority and side."""
    files = sysfs / "class/net" / interface / "ecn"
    loss = "senders slow down only after loss or pause"
    return [
        File(f"{side} ecn priority {priority}", file, "1", loss)
        for priority in priorities
        for side in ("roce_np", "roce_rp")
        if (file := files / side / "enable" / str(priority)).is_file()
    ]


def rdma_settings(interface: str, plan: Plan, sysfs: Path, configfs: Path) -> list[Setting]:
    """Returns the settings of the RDMA device behind `interface` for which this system has files."""
    net = sysfs / "class/net" / interface
    settings = ecn_settings(interface, [q.priority for q in plan.queues if q.ecn], sysfs)
    if (net / "ecn/roce_np/cnp_dscp").is_file():
        settings.append(File("cnp dscp", net / "ecn/roce_np/cnp_dscp", str(plan.cnp_dscp), "CNPs wait among the data"))
    devices = net / "device/infiniband"
    for device in sorted(p.name for p in devices.iterdir()) if devices.is_dir() else []:
        override = sysfs / "class/infiniband" / device / "tc/1/traffic_class"
        if override.is_file():
            settings.append(HostWideClass(device, override))
        ports = configfs / "rdma_cm" / device / "ports/1"
        if (ports / "default_roce_tos").is_file():
            tos = str(plan.rdma_default_dscp * 4)
            settings.append(
                File(
                    f"{device} rdma_cm default tos",
                    ports / "default_roce_tos",
                    tos,
                    "unmarked RDMA travels as best effort",
                )
            )
    return settings
