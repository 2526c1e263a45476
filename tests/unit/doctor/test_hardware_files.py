"""Checks that read sysfs, configfs and DCB: devices, overriding classes, NIC settings, PFC, MTU."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mfsd.fabric.host import Host as FabricHost
from mfsd.fabric.policy import load_profile
from mfsd.observe.doctor.checks import Check
from mfsd.observe.doctor.checks.mtu import roce_mtu
from mfsd.observe.doctor.checks.nic import plan_for
from mfsd.observe.doctor.lldp import parse_neighbours
from tests.support.forked import Forked
from tests.unit.doctor.conftest import FakeHost

LLDP = Path(__file__).with_name("lldpctl.json").read_text()  # written by lldpd 1.0.16 of two namespaces
Checks = Callable[[str], Check]


def test_a_device_with_a_roce_v2_address_is_usable(doctor: Any, checks: Checks) -> None:
    doctor.device()
    assert set(doctor(checks("devices"))) == {"devices.usable"}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"state": "1: DOWN"}, "devices.port-down"),
        ({"link_layer": "InfiniBand"}, "devices.infiniband"),
        ({"gid_attrs__types__3": "IB/RoCE v1"}, "devices.no-roce-v2"),
        ({"gids__3": "0000:0000:0000:0000:0000:0000:0000:0000"}, "devices.no-roce-v2"),
    ],
)
def test_a_port_without_dscp(doctor: Any, checks: Checks, changes: dict[str, str], found: str) -> None:
    doctor.device(**changes)
    assert set(doctor(checks("devices"))) == {found}


def test_a_variable_that_picks_an_address_without_dscp(doctor: Any, checks: Checks) -> None:
    doctor.device()
    doctor.host.environ = {"NCCL_IB_GID_INDEX": "0", "MC_GID_INDEX": "3"}
    finding = doctor(checks("devices"))["devices.gid-index"]
    assert "NCCL_IB_GID_INDEX=0" in finding.reason and "RoCE v1" in finding.reason
    doctor.host.environ = {"NCCL_IB_GID_INDEX": "3"}
    assert set(doctor(checks("devices"))) == {"devices.usable"}


def test_devices_that_cannot_be_opened(doctor: Any, checks: Checks) -> None:
    assert set(doctor(checks("devices"))) == {"devices.none"}
    doctor.device()
    (doctor.folder / "dev/infiniband/uverbs0").unlink()
    doctor.write(".dockerenv", "")
    assert {"devices.container", "devices.nodes-missing"} <= set(doctor(checks("devices")))


def test_a_device_that_this_user_may_not_open(folder: Path, checks: Checks) -> None:
    doctor = FakeHost(folder)
    doctor.device()
    (doctor.folder / "dev/infiniband/uverbs0").chmod(0o600 if os.geteuid() == 0 else 0)
    with Forked(lambda: sorted(doctor(checks("devices"))), uid=65_534 if os.geteuid() == 0 else None) as user:
        assert user.result == ["devices.nodes-denied"]


def test_infiniband_has_levels_where_the_environment_names_them(doctor: Any, checks: Checks) -> None:
    doctor.device(link_layer="InfiniBand")
    found = doctor(checks("devices"))["devices.infiniband"]
    assert "MFS_SERVICE_LEVELS is not set (this shell)" in found.reason and "--infiniband" in found.remedy
    doctor.host.environ = {"MFS_SERVICE_LEVELS": "46:5"}
    assert set(doctor(checks("devices"))) == {"devices.infiniband-levels"}


TRAFFIC_CLASS = "sys/class/infiniband/mlx5_0/tc/1/traffic_class"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Global tclass=106", "override.forced"),
        ("106", "override.forced"),
        ("Global tclass=-1", "override.clear"),
        ("0", "override.clear"),
        ("", "override.clear"),
        ("Global tclass=0\ntclass=96 src_ip=10.0.0.1", "override.forced"),
    ],
)
def test_a_host_wide_class_is_refused(doctor: Any, checks: Checks, text: str, found: str) -> None:
    doctor.device()
    doctor.write(TRAFFIC_CLASS, text)
    findings = doctor(checks("override"))
    assert set(findings) == {found}
    assert found == "override.clear" or "DSCP 2" in findings[found].reason


@pytest.mark.parametrize(("tos", "found"), [("0", "clear"), ("104", "clear"), ("184", "rdma-cm")])
def test_rdma_cms_default_must_be_the_policys(doctor: Any, checks: Checks, tos: str, found: str) -> None:
    doctor.device()
    doctor.write("config/rdma_cm/mlx5_0/ports/1/default_roce_tos", tos)
    assert set(doctor(checks("override"))) == {f"override.{found}"}


def applied(doctor: Any) -> None:
    """What `mfsctl host apply` makes of the NIC."""
    plan = plan_for(doctor.host, "eth0")
    state = doctor.folder / "state"
    FabricHost(
        plan, sysfs=doctor.host.sys, exchange=doctor.dcb.exchange, configfs=doctor.host.configfs, state_dir=state
    ).apply()


def test_a_nic_out_of_the_box_and_after_apply(doctor: Any, checks: Checks) -> None:
    doctor.device()
    found = doctor(checks("nic"))
    assert {"nic.trust", "nic.dscp-map", "nic.order", "nic.pfc"} <= set(found)
    assert found["nic.trust"].remedy == "mfsctl host apply --dev eth0"
    assert "[3, 4]" in found["nic.pfc"].reason
    applied(doctor)
    assert set(doctor(checks("nic"))) == {"nic.as-wanted"}


def test_what_a_nic_does_not_have_or_does_not_tell(doctor: Any, checks: Checks) -> None:
    doctor.device()
    applied(doctor)
    doctor.dcb.dcbx = 0x0A  # firmware runs DCBX
    assert set(doctor(checks("nic"))) == {"nic.dcbx"}
    doctor.device(link="eth7")
    assert "nic.unknown" in doctor(checks("nic")), "an interface that the driver does not know"
    doctor.device(gid_attrs__ndevs__3="gone")
    assert set(doctor(checks("nic"))) == {"nic.no-interface"}


def test_ecn_of_a_priority_that_switches_mark(doctor: Any, checks: Checks) -> None:
    doctor.device()
    applied(doctor)
    for side in ("roce_np", "roce_rp"):
        for priority in range(8):
            doctor.write(f"sys/class/net/eth0/ecn/{side}/enable/{priority}", "0" if priority == 3 else "1")
    finding = doctor(checks("nic"))["nic.ecn"]
    assert "priority 3" in finding.reason


def test_pfc_of_both_ends(doctor: Any, checks: Checks) -> None:
    doctor.device()
    applied(doctor)
    assert set(doctor(checks("pfc"))) == {"pfc.peer-unseen"}
    doctor.lldp = LLDP
    finding = doctor(checks("pfc"))["pfc.agrees"]
    assert "leaf-3" in finding.reason and "3, 4" in finding.reason
    doctor.lldp = LLDP.replace("08,18", "08,08")
    assert "this end pauses 3, 4" in doctor(checks("pfc"))["pfc.ends-differ"].reason
    doctor.dcb.pfc = 0b1000
    assert "policy rocev2-2-lossless: 3, 4" in doctor(checks("pfc"))["pfc.switch-differs"].reason
    doctor.lldp = LLDP.replace('"11"', '"9"')
    assert "announces no PFC" in doctor(checks("pfc"))["pfc.peer-unseen"].reason
    doctor.lldp = "lldpd is not running"
    assert set(doctor(checks("pfc"))) == {"pfc.peer-unseen"}


def test_neighbours_are_read_as_lldpd_writes_them() -> None:
    (neighbour,) = parse_neighbours(LLDP)
    assert (neighbour.interface, neighbour.name, neighbour.port, neighbour.pfc) == ("eth0", "leaf-3", "p0", (3, 4))
    for bad in ("", "[]", '{"lldp": 3}', '{"lldp": [{"interface": [{}]}]}'):
        with pytest.raises(ValueError, match="lldpctl"):
            parse_neighbours(bad)
    assert parse_neighbours('{"lldp": [{}]}') == []


@pytest.mark.parametrize(
    ("link", "payload"), [(1500, 1024), (2144, 2048), (4191, 2048), (4192, 4096), (9000, 4096), (300, 0)]
)
def test_roce_packets_that_fit_a_link(link: int, payload: int) -> None:
    assert roce_mtu(link) == payload


@pytest.mark.parametrize(
    ("mtu", "found"),
    [(1500, {"mtu.roce-small", "mtu.below-policy"}), (9216, {"mtu.fits"}), (9300, {"mtu.above-policy"})],
)
def test_mtu(doctor: Any, checks: Checks, mtu: int, found: set[str]) -> None:
    doctor.device(mtu=mtu)
    assert set(doctor(checks("mtu"))) == found


DEVINFO = """hca_id:\tmlx5_0
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t1024 (3)
"""


def test_a_device_that_does_not_use_what_its_link_carries(doctor: Any, checks: Checks) -> None:
    doctor.devinfo = DEVINFO
    doctor.device(mtu=4200)
    assert "active_mtu is 1024, the link of 4200 carries 4096" in doctor(checks("mtu"))["mtu.active-smaller"].reason
    doctor.device(mtu=1500)
    assert "mtu.active-smaller" not in doctor(checks("mtu"))


def test_an_mtu_that_cannot_be_read(doctor: Any, checks: Checks) -> None:
    doctor.host.interfaces = ("eth5",)
    assert set(doctor(checks("mtu"))) == {"mtu.unreadable"}


def test_addresses_of_coordinators(doctor: Any, checks: Checks) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    doctor.host.coordinators = (address,)
    assert set(doctor(checks("coordinator"))) == {"coordinator.unreachable"}
    doctor.host.coordinators = ("nowhere",)
    assert set(doctor(checks("coordinator"))) == {"coordinator.bad-address"}


def test_the_policy_decides_what_is_wanted(doctor: Any, checks: Checks) -> None:
    doctor.device()
    applied(doctor)
    doctor.host.policy_name, doctor.host.profile = "rocev2-lossy-ecn", load_profile("rocev2-lossy-ecn")
    assert "nic.pfc" in doctor(checks("nic"))
