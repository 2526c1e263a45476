"""Hosts: each setting read, written, read back, explained and taken back, on a device that speaks DCB."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mfsd.fabric.host import Host, Result, verified
from mfsd.fabric.plan import Plan, make_plan
from mfsd.fabric.policy import load_profile


def plan(name: str = "rocev2-2-lossless") -> Plan:
    return make_plan(name, load_profile(name), {"hosts": ["eth0"]})


@pytest.fixture
def host(dcb_device: Any, tmp_path: Path) -> Host:
    return open_host(dcb_device, tmp_path)


def open_host(device: Any, folder: Path, name: str = "rocev2-2-lossless") -> Host:
    return Host(
        plan(name),
        sysfs=folder / "sys",
        configfs=folder / "config",
        exchange=device.exchange,
        state_dir=folder / "state",
    )


def outcomes(results: list[Result]) -> dict[str, str]:
    return {r.setting: r.outcome for r in results}


def test_show_changes_nothing(host: Host, dcb_device: Any) -> None:
    before = msgspec.structs.replace(Result("", "ok", dict(dcb_device.apps), dcb_device.ets))
    assert outcomes(host.show()) == {
        "dcbx": "ok",
        "dscp-to-priority": "differs",
        "trust": "differs",
        "ets": "differs",
        "pfc": "differs",
    }
    assert (before.have, before.want) == (dcb_device.apps, dcb_device.ets)
    assert not verified(host.show())


def test_apply_sets_what_the_policy_says(host: Host, dcb_device: Any) -> None:
    results = host.apply()
    assert all(r.outcome in ("ok", "changed") for r in results), results
    assert dcb_device.pfc == 0b11000
    assert {d: p for (s, d), p in dcb_device.apps.items() if s == 5} == dict(enumerate(host.plan.dscp_to_priority))
    assert list(dcb_device.ets[27:35]) == list(range(8)), "prio_tc"
    assert verified(host.show())


def test_apply_twice_writes_once(host: Host, dcb_device: Any) -> None:
    host.apply()
    dcb_device.requests.clear()
    assert set(outcomes(host.apply()).values()) == {"ok"}
    assert {request[4] for request in dcb_device.requests} == {78}, "RTM_GETDCB only"


def test_weighted_classes_become_ets_shares(dcb_device: Any, tmp_path: Path) -> None:
    lossy = open_host(dcb_device, tmp_path, "rocev2-lossy-ecn")
    lossy.apply()
    (ets,) = [r.have for r in lossy.show() if r.setting == "ets"]
    assert ets["bandwidth_percent"] == [20, 10, 0, 70, 0, 0, 0, 0]
    assert ets["tsa"][3:6] == ["ets", "strict", "strict"]


def test_dry_run_writes_nothing(host: Host, dcb_device: Any, tmp_path: Path) -> None:
    results = outcomes(host.apply(dry_run=True))
    assert results["pfc"] == "would change"
    assert {request[4] for request in dcb_device.requests} == {78}
    assert not (tmp_path / "state").exists()


def test_rollback_restores_what_was_there(host: Host, dcb_device: Any) -> None:
    dcb_device.apps = {(5, 26): 5, (1, 0x8914): 3}
    dcb_device.pfc = 0b100000
    before = (dict(dcb_device.apps), dcb_device.pfc, dcb_device.ets)
    host.apply()
    assert (dcb_device.apps, dcb_device.pfc, dcb_device.ets) != before
    host.apply()
    assert all(r.good for r in host.rollback())
    assert (dcb_device.apps, dcb_device.pfc, dcb_device.ets) == before
    with pytest.raises(FileNotFoundError, match="nothing to roll back"):
        host.rollback()


def test_rollback_of_trust_that_follows_the_dscp_table(host: Host, dcb_device: Any) -> None:
    """As with mlx5: the table goes first."""
    assert outcomes(host.show())["trust"] == "differs" and not dcb_device.apps
    host.apply()
    assert set(outcomes(host.rollback()).values()) == {"changed", "ok"}
    assert not dcb_device.apps and outcomes(host.show())["trust"] == "differs"
    with pytest.raises(FileNotFoundError, match="nothing to roll back"):
        host.rollback()


def test_rollback_that_fails_keeps_what_it_knows(host: Host, dcb_device: Any) -> None:
    dcb_device.pfc = 0b100000
    host.apply()
    dcb_device.refuse = {2: errno.EBUSY}
    assert outcomes(host.rollback())["pfc"] == "cannot set"
    dcb_device.refuse = {}
    assert all(r.good for r in host.rollback())
    assert dcb_device.pfc == 0b100000


def test_one_refusal_does_not_stop_the_rest(host: Host, dcb_device: Any) -> None:
    dcb_device.refuse = {1: errno.EINVAL}
    results = host.apply()
    assert outcomes(results) == {
        "dcbx": "ok",
        "dscp-to-priority": "changed",
        "trust": "ok",
        "ets": "cannot set",
        "pfc": "changed",
    }
    (ets,) = [r for r in results if r.setting == "ets"]
    assert ets.reason == "Invalid argument"
    assert "refuses these values" in ets.remedy
    assert not verified(host.show())


def test_firmware_that_keeps_dcbx_is_explained(host: Host, dcb_device: Any) -> None:
    dcb_device.dcbx = 0x0A
    (dcbx,) = [r for r in host.apply() if r.setting == "dcbx"]
    assert dcbx.outcome == "cannot set"
    assert "firmware runs DCBX" in dcbx.reason
    assert "mlxconfig" in dcbx.remedy


def test_device_that_keeps_its_dcbx_mode(host: Host, dcb_device: Any) -> None:
    dcb_device.dcbx, dcb_device.dcbx_fixed = 0x05, True
    (dcbx,) = [r for r in host.apply() if r.setting == "dcbx"]
    assert dcbx.outcome == "cannot set"
    assert "not permitted" in dcbx.reason


def test_too_few_lossless_priorities(host: Host, dcb_device: Any) -> None:
    dcb_device.pfc_cap = 1
    (pfc,) = [r for r in host.apply() if r.setting == "pfc"]
    assert pfc.outcome == "cannot set"
    assert "2 lossless priorities, the NIC supports 1" in pfc.reason


def test_trust_table_of_newer_kernels(host: Host, dcb_device: Any) -> None:
    dcb_device.has_trust, dcb_device.trust = True, [24]
    assert outcomes(host.apply())["trust"] == "changed"
    assert dcb_device.trust == [5]
    host.rollback()
    assert dcb_device.trust == [24]


def test_missing_interface_is_named(dcb_device: Any, tmp_path: Path) -> None:
    dcb_device.name = "other"
    with pytest.raises(OSError, match="eth0: no such interface"):
        open_host(dcb_device, tmp_path).show()


def rdma_files(folder: Path) -> dict[str, Path]:
    """The files MLNX_OFED and rdma_cm give a NIC, as a tree under `folder`."""
    net = folder / "sys/class/net/eth0"
    files = {
        "trust": net / "qos/trust",
        "np": net / "ecn/roce_np/enable/3",
        "rp": net / "ecn/roce_rp/enable/3",
        "cnp": net / "ecn/roce_np/cnp_dscp",
        "tc": folder / "sys/class/infiniband/mlx5_0/tc/1/traffic_class",
        "tos": folder / "config/rdma_cm/mlx5_0/ports/1/default_roce_tos",
    }
    for file in files.values():
        file.parent.mkdir(parents=True, exist_ok=True)
    (net / "device/infiniband/mlx5_0").mkdir(parents=True)
    for name, text in {
        "trust": "pcp",
        "np": "0",
        "rp": "1",
        "cnp": "0",
        "tc": "Global tclass=96",
        "tos": "0",
    }.items():
        files[name].write_text(text + "\n")
    return files


def test_rdma_defaults_and_the_host_wide_class(host: Host, tmp_path: Path) -> None:
    files = rdma_files(tmp_path)
    results = outcomes(host.apply())
    assert results["roce_np ecn priority 3"] == "changed"
    assert results["roce_rp ecn priority 3"] == "ok"
    assert files["trust"].read_text() == "dscp\n"
    assert files["cnp"].read_text() == "48\n"
    assert files["tos"].read_text() == "104\n", "DSCP 26, the last class before the scavenger"
    assert files["tc"].read_text() == "-1\n", "a host-wide class would override every lane"
    assert verified(host.show())


def test_rollback_of_what_another_policy_had_set(dcb_device: Any, tmp_path: Path) -> None:
    file = rdma_files(tmp_path)["np"].with_name("7")
    file.write_text("0\n")
    open_host(dcb_device, tmp_path, "paper-k8").apply()
    assert file.read_text() == "1\n"
    rolled_back = outcomes(open_host(dcb_device, tmp_path, "rocev2-2-lossless").rollback())
    assert rolled_back["roce_np ecn priority 7"] == "changed" and file.read_text() == "0\n"


def test_rollback_of_files(host: Host, tmp_path: Path) -> None:
    files = rdma_files(tmp_path)
    host.apply()
    host.rollback()
    assert {n: f.read_text().strip() for n, f in files.items()} == {
        "trust": "pcp",
        "np": "0",
        "rp": "1",
        "cnp": "0",
        "tc": "96",
        "tos": "0",
    }
