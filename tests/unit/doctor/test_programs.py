"""Checks of programs: environment, mapped files, limits, paths past the shim; with real programs where possible."""

from __future__ import annotations

import os
import resource
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from mfsd.node.control import ClientStatus, DaemonStatus, NicStatus, PortStatus, StatusReply
from mfsd.observe.doctor.checks import Check, bypass
from mfsd.observe.doctor.checks.daemon import one_cpu
from mfsd.observe.doctor.checks.limits import read_limits
from mfsd.observe.doctor.elf import read_elf
from mfsd.observe.doctor.launching import INTERPOSED
from nccl_shim.run import LIBRARY

Checks = Callable[[str], Check]
PID = 4711
VERBS = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1"


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("NCCL_IB_TC", "106", "environment.class"),
        ("NCCL_IB_TC", "138", "environment.clear"),
        ("MC_IB_TC", "0x8a", "environment.class"),
        ("MC_IB_TC", "0x6a", "environment.clear"),
        ("NCCL_IB_FIFO_TC", "32", "environment.class"),
        ("NCCL_IB_FIFO_TC", "0", "environment.clear"),
        ("UCX_IB_TRAFFIC_CLASS", "auto", "environment.clear"),
        ("UCX_IB_TRAFFIC_CLASS", "106", "environment.clear"),
        ("UCX_IB_TRAFFIC_CLASS", "32", "environment.class-unseen"),
        ("NVSHMEM_IB_TRAFFIC_CLASS", "136", "environment.clear"),
        ("NVSHMEM_IB_TRAFFIC_CLASS", "106", "environment.class-unseen"),
        ("NCCL_GIN_IB_TC", "104", "environment.class-unseen"),
        ("NCCL_GIN_TYPE", "3", "environment.class-missing"),
        ("NVSHMEM_IB_ENABLE_IBGDA", "1", "environment.class-missing"),
        ("MFS_MODE", "off", "environment.shim-off"),
        ("MFS_MODE", "observe", "environment.shim-observes"),
        ("MFS_SOCKET", "/elsewhere", "environment.other-socket"),
        ("NCCL_IB_DISABLE", "1", "environment.no-rdma"),
        ("NCCL_NET", "Socket", "environment.no-rdma"),
        ("NCCL_NET", "IB", "environment.clear"),
        ("MC_FORCE_TCP", "true", "environment.no-rdma"),
        ("NCCL_IBVERBS_LIB", "/opt/libibverbs.so", "environment.other-verbs"),
        ("NCCL_NET_PLUGIN", "ofi", "environment.net-plugin"),
        ("NCCL_NET_PLUGIN", "none", "environment.clear"),
    ],
)
def test_a_variable(doctor: Any, checks: Checks, name: str, value: str, found: str) -> None:
    doctor.host.environ = {name: value}
    doctor.packages = {}
    findings = doctor(checks("environment"))
    assert set(findings) == {found}
    assert found in ("environment.clear", "environment.class-missing") or f"{name}={value}" in findings[found].reason


def test_an_all_to_all_that_posts_from_the_gpu_must_have_the_class_of_collectives(doctor: Any, checks: Checks) -> None:
    doctor.host.pid = PID
    doctor.write(f"proc/{PID}/environ", "")
    doctor.write(f"proc/{PID}/maps", "7f0 r-xp 0 0 1 /opt/deep_ep_cpp.so\n7f1 r-xp 0 0 2 /opt/libnvshmem_host.so.3")
    findings = doctor(checks("environment"))
    assert set(findings) == {"environment.class-missing"}
    assert findings["environment.class-missing"].reason == "NVSHMEM_IB_TRAFFIC_CLASS is not set; the policy's is 138"
    doctor.write(f"proc/{PID}/maps", "7f0 r-xp 0 0 1 /opt/deep_ep_cpp.so")
    assert "NCCL_GIN_IB_TC is not set" in doctor(checks("environment"))["environment.class-missing"].reason
    doctor.write(f"proc/{PID}/environ", "NCCL_IB_TC=138\0")
    assert set(doctor(checks("environment"))) == {"environment.clear"}, "GIN goes by NCCL's where its own is not set"
    doctor.write(f"proc/{PID}/environ", "")
    doctor.write(f"proc/{PID}/maps", "7f0 r-xp 0 0 1 /opt/mori/libmori_ops.so")
    assert "MORI_RDMA_TC is not set" in doctor(checks("environment"))["environment.class-missing"].reason
    assert "bypass.mori" in doctor(checks("bypass"))


@pytest.mark.parametrize(
    ("needs", "name"), [("libnvshmem_host.so.3", "NVSHMEM_IB_TRAFFIC_CLASS"), ("", "NCCL_GIN_IB_TC")]
)
def test_an_installed_all_to_all_must_have_it_too(
    doctor: Any, checks: Checks, monkeypatch: pytest.MonkeyPatch, needs: str, name: str
) -> None:
    doctor.packages = {"deep_ep": str(doctor.folder / "site/deep_ep")}
    doctor.write("site/deep_ep/__init__.py", "")
    doctor.write("site/deep_ep_cpp.cpython-311-x86_64-linux-gnu.so", "")
    monkeypatch.setattr(bypass, "read_elf", lambda _: SimpleNamespace(needed=[needs]))
    found = doctor(checks("environment"))
    assert set(found) == {"environment.class-missing"} and found["environment.class-missing"].subject == name
    doctor.host.environ = {name: "138"}
    assert set(doctor(checks("environment"))) == {"environment.clear"}
    process(doctor, "/usr/lib/libc.so.6")
    assert set(doctor(checks("environment"))) == {"environment.clear"}, "a process has packages of its own"


def test_which_of_two_variables_counts(doctor: Any, checks: Checks) -> None:
    doctor.host.environ = {"NCCL_IB_TC": "106", "NCCL_GIN_IB_TC": "138"}
    findings = doctor(checks("environment"))
    assert set(findings) == {"environment.class", "environment.class-overrides"}
    assert findings["environment.class-overrides"].reason == "NCCL_GIN_IB_TC=138 goes before NCCL_IB_TC=106"


def test_nvshmems_class_is_dangerous_on_infiniband(doctor: Any, checks: Checks) -> None:
    doctor.host.environ = {"NVSHMEM_IB_TRAFFIC_CLASS": "138"}
    doctor.device()
    assert set(doctor(checks("environment"))) == {"environment.clear"}
    doctor.device("mlx5_1", "eth1", link_layer="InfiniBand")
    findings = doctor(checks("environment"))
    assert set(findings) == {"environment.class-infiniband"}, "one port is enough"
    assert findings["environment.class-infiniband"].reason.endswith("=138, and mlx5_1 port 1 is InfiniBand")
    doctor.host.environ = {"NVSHMEM_IB_TRAFFIC_CLASS": "106"}
    assert set(doctor(checks("environment"))) == {"environment.class-infiniband"}, "another value is no remedy"


def test_on_infiniband_nvshmem_is_asked_for_a_level_and_never_for_a_class(doctor: Any, checks: Checks) -> None:
    doctor.host.environ = {"NVSHMEM_IB_ENABLE_IBGDA": "1"}
    doctor.device(link_layer="InfiniBand")
    findings = doctor(checks("environment"))
    assert set(findings) == {"environment.level-missing"}
    wanted = max(one.priority for one in doctor.host.profile.classes if one.dscp == 34)
    assert f"NVSHMEM_IB_SL is not set; the policy's is {wanted}" in findings["environment.level-missing"].reason
    doctor.host.environ = {**doctor.host.environ, "NVSHMEM_IB_SL": str(wanted)}
    assert set(doctor(checks("environment"))) == {"environment.clear"}


def test_on_infiniband_gin_is_asked_for_a_level(doctor: Any, checks: Checks) -> None:
    doctor.packages = {}
    doctor.host.environ = {"NCCL_GIN_TYPE": "3"}
    doctor.device(link_layer="InfiniBand")
    findings = doctor(checks("environment"))
    assert set(findings) == {"environment.level-missing"}
    assert findings["environment.level-missing"].subject == "NCCL_IB_SL", "GIN has no level of its own"
    doctor.device("mlx5_1", "eth1")
    assert set(doctor(checks("environment"))) == {"environment.level-missing", "environment.class-missing"}
    doctor.host.environ = {"NCCL_GIN_TYPE": "3", "NCCL_IB_SL": "4", "NCCL_IB_TC": "138"}
    assert set(doctor(checks("environment"))) == {"environment.clear"}


def test_a_class_for_the_whole_process_leaves_nixls_lanes_without_effect(doctor: Any, checks: Checks) -> None:
    doctor.host.environ = {"MFS_NIXL": "1", "UCX_IB_SL": "3"}
    assert set(doctor(checks("lanes"))) == {"lanes.clear"}, "a level is nothing to RoCE"
    doctor.host.environ = {"MFS_NIXL": "1", "UCX_IB_TRAFFIC_CLASS": "32"}
    findings = doctor(checks("lanes"))
    assert set(findings) == {"lanes.overridden"} and findings["lanes.overridden"].remedy.startswith("unset it")
    assert findings["lanes.overridden"].reason == "UCX_IB_TRAFFIC_CLASS=32 (this shell)"
    assert set(doctor(checks("environment"))) == {"environment.clear"}, "no second remedy against the first"
    doctor.host.environ = {"UCX_IB_TRAFFIC_CLASS": "106"}
    assert set(doctor(checks("lanes"))) == {"lanes.overridden-if-asked"}
    doctor.host.environ = {
        "MFS_NIXL": "1",
        "UCX_IB_TRAFFIC_CLASS": "106",
        "MFS_SET_CLASSES": "MC_IB_TC UCX_IB_TRAFFIC_CLASS",
    }
    assert set(doctor(checks("lanes"))) == {"lanes.clear"}, "mfs-run has set it"
    process(doctor, environ={"MFS_NIXL": "1", "MFS_MODE": "mark", "UCX_IB_TRAFFIC_CLASS": "auto"})
    assert doctor(checks("lanes"))["lanes.overridden"].reason == f"UCX_IB_TRAFFIC_CLASS=auto (pid {PID})"


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, "lanes.no-levels"),
        ({"MFS_SERVICE_LEVELS": "34:5,26:3"}, "lanes.clear"),
        ({"MFS_SERVICE_LEVELS": "34=5"}, "lanes.levels-wrong"),
        ({"MFS_SERVICE_LEVELS": "34:5", "UCX_IB_SL": "3"}, "lanes.overridden"),
        ({"MFS_SERVICE_LEVELS": "34:5", "UCX_IB_SL": "3", "MFS_SET_CLASSES": "UCX_IB_SL"}, "lanes.clear"),
        ({"MFS_NIXL": "0"}, "lanes.clear"),
    ],
)
def test_on_infiniband_lanes_need_service_levels(
    doctor: Any, checks: Checks, variables: dict[str, str], found: str
) -> None:
    doctor.device(link_layer="InfiniBand")
    doctor.host.environ = {"MFS_NIXL": "1"} | variables
    assert set(doctor(checks("lanes"))) == {found}


def test_a_program_that_marks_is_held_to_the_fabrics_classes(doctor: Any, checks: Checks) -> None:
    of_the_policy = {"MFS_MODE": "mark", "MFS_MARK": "dscp=34,26,8;stages=background:2", "NCCL_IB_TC": "138"}
    doctor.host.environ = of_the_policy
    assert set(doctor(checks("environment"))) == {"environment.shim-marks"}
    doctor.host.environ = of_the_policy | {"MFS_MARK": "dscp=34,26,9;stages=background:2"}
    findings = doctor(checks("environment"))
    assert set(findings) == {"environment.shim-marks", "environment.marks-other"}
    assert findings["environment.marks-other"].reason == "DSCP 9 of MFS_MARK"
    doctor.host.environ = of_the_policy | {"MFS_MARK": "dscp=99"}
    findings = doctor(checks("environment"))
    assert (
        set(findings) == {"environment.marks"} and "'99' is not a whole number" in findings["environment.marks"].reason
    )


def test_nccls_own_file_counts_and_the_environment_goes_before_it(doctor: Any, checks: Checks) -> None:
    doctor.write("nccl.conf", "# a comment\nNCCL_IB_TC = 106")
    doctor.host.environ = {"NCCL_CONF_FILE": str(doctor.folder / "nccl.conf")}
    assert set(doctor(checks("environment"))) == {"environment.class"}
    doctor.host.environ = {**doctor.host.environ, "NCCL_IB_TC": "0"}
    findings = doctor(checks("environment"))
    assert set(findings) == {"environment.class-overrides"}
    reason = findings["environment.class-overrides"].reason
    assert reason == f"NCCL_IB_TC=0 of the environment goes before 106 of {doctor.folder}/nccl.conf"


def test_the_files_are_those_that_the_process_finds(doctor: Any, checks: Checks) -> None:
    process(doctor, "/usr/lib/libc.so.6", environ={"HOME": str(doctor.folder / "home")})
    doctor.write("started/ucx.conf", "UCX_IB_TRAFFIC_CLASS=32")
    doctor.write("etc/nccl.conf", "NCCL_IB_TC=138")
    (doctor.folder / f"proc/{PID}/cwd").symlink_to(doctor.folder / "started")
    assert set(doctor(checks("environment"))) == {"environment.class-unseen"}
    doctor.write("home/.nccl.conf", "NCCL_IB_TC=32")
    assert set(doctor(checks("environment"))) == {"environment.class", "environment.class-unseen"}


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("NVSHMEM_IB_ENABLE_IBGDA", "1", "bypass.ibgda"),
        ("NVSHMEM_IB_ENABLE_IBGDA", "0", "bypass.none"),
        ("NCCL_GIN_TYPE", "3", "bypass.nccl-gin"),
        ("NCCL_GIN_TYPE", "2", "bypass.none"),
        ("UCX_TLS", "rc_mlx5,cuda", "bypass.ucx"),
        ("UCX_TLS", "rc", "bypass.ucx"),
        ("UCX_TLS", "^tcp", "bypass.ucx"),
        ("UCX_TLS", "all", "bypass.ucx"),
        ("UCX_TLS", "srd,tcp,cuda", "bypass.ucx-srd"),
        ("UCX_TLS", "tcp,cuda,sm,self", "bypass.ucx-tcp"),
        ("UCX_TLS", "rc_verbs,cuda,sm,self", "bypass.ucx-verbs bypass.none"),
        ("UCX_TLS", "rc_v,tcp", "bypass.ucx-verbs bypass.none"),
        ("UCX_TLS", "rc_v,rc_x,srd", "bypass.ucx-verbs bypass.ucx bypass.ucx-srd"),
        ("UCX_TLS", "cuda,sm", "bypass.none"),
        ("MFS_NIXL", "1", "bypass.nixl-adapted bypass.none"),
    ],
)
def test_a_path_past_the_shim(doctor: Any, checks: Checks, name: str, value: str, found: str) -> None:
    doctor.host.environ = {"PATH": os.environ["PATH"], name: value}
    doctor.packages = {}
    assert set(doctor(checks("bypass"))) == set(found.split())


def test_on_an_efa_ucx_takes_srd(doctor: Any, checks: Checks) -> None:
    process(doctor, "/opt/libuct_ib.so.0")
    doctor.device("rdmap0s6", "eth1")
    (doctor.folder / "sys/class/infiniband/rdmap0s6/device").mkdir()
    (doctor.folder / "sys/class/infiniband/rdmap0s6/device/driver").symlink_to("/sys/bus/pci/drivers/efa")
    assert set(doctor(checks("bypass"))) == {"bypass.ucx-srd"}
    doctor.device()
    assert set(doctor(checks("bypass"))) == {"bypass.ucx-srd", "bypass.ucx"}


def test_nixl_is_in_order_only_where_it_is_adapted(doctor: Any, checks: Checks) -> None:
    nixl = ("/opt/nixl.libs/libnixl.so", "/opt/ucx/libuct_ib.so.0")
    process(doctor, *nixl)
    findings = doctor(checks("bypass"))
    assert set(findings) == {"bypass.nixl-unscheduled", "bypass.ucx"}
    assert all("MFS_NIXL=1" in findings[one].remedy for one in findings)
    process(doctor, *nixl, environ={"MFS_NIXL": "1"})
    findings = doctor(checks("bypass"))
    assert set(findings) == {"bypass.nixl-unscheduled", "bypass.ucx"}
    assert findings["bypass.nixl-unscheduled"].reason.endswith("the adapter is not in it")
    process(doctor, *nixl, "/opt/site-packages/mfsd/_native.cpython-311-x86_64-linux-gnu.so", environ={"MFS_NIXL": "1"})
    assert set(doctor(checks("bypass"))) == {"bypass.nixl-adapted", "bypass.none"}
    process(doctor, nixl[1], environ={"MFS_NIXL": "1"})
    assert set(doctor(checks("bypass"))) == {"bypass.ucx"}, "UCX without NIXL"


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, {"bypass.nixl-possible", "bypass.none"}),
        ({"MFS_NIXL": "1"}, {"bypass.nixl-adapted", "bypass.none"}),
        ({"MFS_NIXL": "1", "MFS_MODE": "off"}, {"bypass.nixl-possible", "bypass.none"}),
        ({"MFS_NIXL": "1", "UCX_TLS": "rc_mlx5"}, {"bypass.nixl-adapted", "bypass.none"}),
    ],
)
def test_an_installed_nixl(doctor: Any, checks: Checks, environ: dict[str, str], found: set[str]) -> None:
    doctor.packages = {"nixl": "/opt/nixl"}
    doctor.host.environ = environ
    assert set(doctor(checks("bypass"))) == found


def master(doctor: Any, *arguments: str) -> None:
    doctor.write("proc/77/cmdline", "\0".join(["/opt/mooncake/mooncake_master", *arguments, ""]))


@pytest.mark.parametrize(
    ("told", "arguments", "max_hold_ms", "found"),
    [
        ("", None, 250, "store.fits"),
        ("1000", None, 250, "store.fits"),
        ("999", None, 250, "store.hold-cut"),
        ("", None, 5000, "store.hold-cut"),
        ("5s", None, 250, "store.lease-wrong"),
        ("0", None, 250, "store.lease-wrong"),
        ("", ["--rpc_port=1"], 250, "store.fits"),
        ("", ["--default_kv_lease_ttl=999"], 250, "store.lease-longer"),
        ("", ["-default_kv_lease_ttl", "999ms"], 250, "store.lease-longer"),
        ("", ["--default_kv_lease_ttl=1s"], 250, "store.fits"),
        ("", ["--default_kv_lease_ttl=1s"], 251, "store.lease-longer"),
        ("", ["--default_kv_lease_ttl=1s"], 0, "store.lease-longer"),
        ("1000", ["--default_kv_lease_ttl=1s"], 0, "store.fits"),
        ("", ["--default_kv_lease_ttl=soon"], 250, "store.unreadable"),
        ("", ["--config_path=/etc/master.yaml"], 250, "store.lease-longer"),
        ("", ["--config_path=/etc/none.yaml"], 250, "store.unreadable"),
        ("", ["--config_path=/etc/master.yaml", "--default_kv_lease_ttl=1h"], 250, "store.fits"),
    ],
)
def test_a_stores_lease(
    doctor: Any, checks: Checks, told: str, arguments: list[str] | None, max_hold_ms: float, found: str
) -> None:
    status = DaemonStatus("0", 1, 0, "enforce", 0.0, "", None, 0.0, 0, 0, 0, {}, 0, max_hold_ms=max_hold_ms)
    doctor.host.__dict__["status"] = StatusReply(status, [], [])
    doctor.host.environ = {"MFS_STORE_LEASE_MS": told} if told else {}
    if arguments is not None:
        master(doctor, *arguments)
        doctor.write("proc/77/root/etc/master.yaml", "rpc_port: 1\ndefault_kv_lease_ttl: 900")
    assert set(doctor(checks("store"))) == {found}


def test_a_stores_lease_without_a_daemon_and_of_a_process_that_cannot_be_read(doctor: Any, checks: Checks) -> None:
    assert set(doctor(checks("store"))) == {"store.fits"}
    doctor.host.pid = PID
    assert set(doctor(checks("store"))) == {"store.unreadable"}


def process(
    doctor: Any, *mapped: str, environ: dict[str, str] | None = None, secure: bool = False, device: bool = False
) -> None:
    """A process in the made-up /proc."""
    doctor.host.pid = PID
    lines = [f"7f0000000000-7f0000001000 r-xp 00000000 08:01 {i}   {name}" for i, name in enumerate(mapped)]
    doctor.write(f"proc/{PID}/maps", "\n".join(lines))
    doctor.write(f"proc/{PID}/comm", "vllm")
    text = "\0".join(f"{k}={v}" for k, v in (environ or {}).items())
    (doctor.folder / f"proc/{PID}/environ").write_text(text)
    (doctor.folder / f"proc/{PID}/auxv").write_bytes(struct.pack("=QQ", 23, secure) + struct.pack("=QQ", 0, 0))
    (doctor.folder / f"proc/{PID}/fd").mkdir(exist_ok=True)
    if device:
        (doctor.folder / f"proc/{PID}/fd/{len(mapped)}").symlink_to("/dev/infiniband/uverbs0")


def client(**changes: Any) -> ClientStatus:
    numbers = dict.fromkeys(ClientStatus.__struct_fields__, 0)
    words = {"process": "vllm", "state": "active", "detach_reason": None, "nics": ["mlx5_0"]}
    tables: dict[str, Any] = {"queue_pairs": {"kv": 4}, "posted_bytes": {"p2d": 10}, "completed_bytes": {}}
    return ClientStatus(**{**numbers, **words, **tables, "pid": PID, "permits": 3, **changes})


def daemon_with(doctor: Any, *clients: ClientStatus) -> None:
    status = DaemonStatus("0", 1, 0, "enforce", 0.0, "", None, 0.0, 0, 0, 0, {}, 0)
    doctor.host.__dict__["status"] = StatusReply(status, [], list(clients))


@pytest.mark.parametrize(("rate_bytes_per_s", "seen"), [(2_000_000_000, True), (900_000_000, False)])
def test_what_bypasses_is_measured_by_the_port(doctor: Any, checks: Checks, rate_bytes_per_s: int, seen: bool) -> None:
    daemon_with(doctor)
    numbers = dict.fromkeys(NicStatus.__struct_fields__, 0) | {"rate_bytes_per_s": 10**10, "name": "mlx5_0"}
    port = PortStatus(rate_bytes_per_s, 10**10)
    nic = NicStatus(**{**numbers, "guid": "", "classes": [], "port": port})  # type: ignore[arg-type]
    doctor.host.status.nics.append(nic)
    findings = doctor(checks("bypass"))
    assert ("bypass.measured" in findings) is seen
    assert not seen or findings["bypass.measured"].reason.startswith("2000 of 10000 MB/s")


def test_a_process_without_the_shim(doctor: Any, checks: Checks) -> None:
    doctor.host.pid = PID
    assert set(doctor(checks("process"))) == {"process.gone"}
    process(doctor, "/usr/lib/libc.so.6", environ={"A": "b"})
    assert "LD_PRELOAD=(unset)" in doctor(checks("process"))["process.not-preloaded"].reason
    process(doctor, "/usr/lib/libc.so.6", environ={"LD_PRELOAD": str(LIBRARY)})
    assert "although" in doctor(checks("process"))["process.not-preloaded"].reason
    process(doctor, "/usr/lib/libc.so.6", secure=True)
    assert set(doctor(checks("process"))) == {"process.secure"}


@pytest.mark.parametrize(
    ("clients", "device", "found"),
    [
        ((client(),), True, {"process.scheduled"}),
        ((client(bypassed_hold=2),), True, {"process.scheduled", "process.bypasses"}),
        ((client(state="detached", detach_reason="EPROTO"),), True, {"process.detached"}),
        ((client(nics=[]),), True, {"process.unseen-device"}),
        ((), True, {"process.not-attached"}),
        ((), False, {"process.no-device"}),
        ((client(pid=1),), True, {"process.not-attached"}),
    ],
)
def test_a_process_and_what_the_daemon_knows_of_it(
    doctor: Any, checks: Checks, clients: tuple[ClientStatus, ...], device: bool, found: set[str]
) -> None:
    process(doctor, str(LIBRARY), VERBS, device=device)
    daemon_with(doctor, *clients)
    assert set(doctor(checks("process"))) == found


UNKNOWN = {
    "environment": "environment.unreadable",
    "bypass": "bypass.unreadable",
    "limits": "limits.unreadable",
    "lanes": "lanes.unreadable",
}


@pytest.mark.parametrize(("check", "found"), [*UNKNOWN.items(), ("process", "process.gone")])
def test_what_cannot_be_read_is_unknown_and_never_in_order(doctor: Any, checks: Checks, check: str, found: str) -> None:
    doctor.host.pid = PID + 1
    findings = doctor(checks(check))
    assert set(findings) == {found} and findings[found].severity == "unknown"


def test_mapped_files_that_cannot_be_read(doctor: Any, checks: Checks) -> None:
    process(doctor, "/usr/lib/libc.so.6")
    (doctor.folder / f"proc/{PID}/maps").unlink()
    assert set(doctor(checks("process"))) == {"process.unreadable"}
    assert set(doctor(checks("bypass"))) == {"bypass.unreadable"}


def test_a_time_namespace_that_cannot_be_read(doctor: Any, checks: Checks) -> None:
    daemon_with(doctor)
    process(doctor, "/usr/lib/libc.so.6")
    for name in ("self", "1"):
        (doctor.folder / f"proc/{name}/ns").mkdir(parents=True)
        (doctor.folder / f"proc/{name}/ns/time").symlink_to("time:[1]")
    assert "clock.unreadable" in doctor(checks("clock"))


def test_old_shims_and_several_libraries(doctor: Any, checks: Checks) -> None:
    process(doctor, f"{LIBRARY} (deleted)", VERBS, "/opt/wheel.libs/libibverbs-9.so.1")
    daemon_with(doctor, client())
    assert {"process.old-shim", "process.several-verbs", "process.scheduled"} == set(doctor(checks("process")))


@pytest.mark.parametrize("name", ["libnvshmem_transport_ibgda", "nvshmem_transport_ibgda", "libdoca_gpunetio"])
def test_mapped_libraries_that_drive_the_nic(doctor: Any, checks: Checks, name: str) -> None:
    process(doctor, f"/opt/{name}.so.3")
    assert "bypass.direct-mapped" in doctor(checks("bypass"))
    process(doctor, "/opt/libuct_ib.so.0", "/opt/libnccl.so.2")
    assert {"bypass.ucx", "bypass.nccl-gin-possible"} == set(doctor(checks("bypass")))


def test_nixls_backend_that_asks_itself_is_said_and_ucx_is_no_matter(doctor: Any, checks: Checks) -> None:
    process(doctor, "/opt/libuct_ib_mlx5.so.0", "/opt/plugins/libplugin_MFS.so")
    assert {"bypass.nixl-plugin", "bypass.none"} == set(doctor(checks("bypass")))
    folder = doctor.folder / "plugins"
    process(doctor, "/opt/libuct_ib_mlx5.so.0", environ={"NIXL_PLUGIN_DIR": str(folder), "UCX_TLS": "rc_mlx5"})
    assert "bypass.ucx" in doctor(checks("bypass"))
    doctor.write("plugins/libplugin_MFS.so", "")
    assert {"bypass.nixl-plugin", "bypass.none"} == set(doctor(checks("bypass")))


def test_the_gpu_driver_lets_kernels_write_to_the_nic(doctor: Any, checks: Checks) -> None:
    doctor.write("proc/driver/nvidia/params", 'RegistryDwords: "PeerMappingOverride=1;"')
    assert "bypass.gpu-async" in doctor(checks("bypass"))


def test_other_programs(doctor: Any, checks: Checks) -> None:
    process(doctor, VERBS, device=True)
    doctor.host.pid = None
    finding = doctor(checks("others"))["others.unscheduled"]
    assert finding.subject == f"pid {PID}" and "vllm" in finding.reason
    process(doctor, VERBS, str(LIBRARY), device=True)
    doctor.host.pid = None
    assert set(doctor(checks("others"))) == {"others.none"}


LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max locked memory         {memlock:<20} unlimited            bytes
Max open files            {files:<20} 1048576              files"""


@pytest.mark.parametrize(
    ("memlock", "files", "capabilities", "found"),
    [
        ("unlimited", "65536", 0, set()),
        ("8388608", "65536", 0, {"limits.memlock"}),
        ("8388608", "65536", 1 << 14, set()),
        ("1073741824", "65536", 0, {"limits.memlock-bound"}),
        ("unlimited", "1024", 0, {"limits.files-few"}),
        ("unlimited", "64", 0, {"limits.files"}),
    ],
)
def test_limits(doctor: Any, checks: Checks, memlock: str, files: str, capabilities: int, found: set[str]) -> None:
    doctor.host.pid = PID
    doctor.write(f"proc/{PID}/limits", LIMITS.format(memlock=memlock, files=files))
    doctor.write(f"proc/{PID}/status", f"Name:\tx\nCapEff:\t{capabilities:016x}")
    findings = set(doctor(checks("limits"))) - {"limits.shm", "limits.shm-small"}  # of the disk that tests run on
    assert findings - {"limits.enough"} == found


def test_shared_memory_that_is_not_there(doctor: Any, checks: Checks) -> None:
    doctor.host.pid = PID
    doctor.write(f"proc/{PID}/limits", LIMITS.format(memlock="unlimited", files="65536"))
    shutil.rmtree(doctor.folder / "dev")
    assert "limits.shm" in doctor(checks("limits"))


def test_limits_are_read_as_the_kernel_writes_them() -> None:
    limits = read_limits(Path("/proc/self"))
    assert limits["Max open files"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert limits["Max locked memory"] == resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]


def test_time_namespaces(doctor: Any, checks: Checks) -> None:
    status = DaemonStatus("0", 99, 0, "enforce", 0.0, "", None, 0.0, 0, 0, 0, {}, 0)
    doctor.host.__dict__["status"] = StatusReply(status, [], [])
    doctor.host.pid = PID
    for name, number in (("self", 1), ("99", 1), (str(PID), 2)):
        (doctor.folder / f"proc/{name}/ns").mkdir(parents=True)
        (doctor.folder / f"proc/{name}/ns/time").symlink_to(f"time:[{number}]")
    assert doctor(checks("clock"))["clock.time-namespace"].subject == f"pid {PID}"


def test_slow_clock_source(doctor: Any, checks: Checks) -> None:
    doctor.write("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet")
    assert "clock.slow-source" in doctor(checks("clock"))


# ---- real programs -------------------------------------------------------------------------------


def compiled(folder: Path, name: str, source: str, *flags: str) -> Path:
    (folder / f"{name}.c").write_text(source)
    program = folder / name
    subprocess.run(["gcc", str(folder / f"{name}.c"), "-o", str(program), *flags], check=True)
    return program


OPENS = (
    "#include <infiniband/verbs.h>\nint main(void) { int n; return !ibv_get_device_list(&n) || !ibv_open_device(0); }"
)


def test_programs_that_the_loader_gives_no_shim(doctor: Any, checks: Checks, tmp_path: Path) -> None:
    plain = compiled(tmp_path, "plain", "int main(void) { return 0; }")
    static = compiled(tmp_path, "static", "int main(void) { return 0; }", "-static")
    privileged = tmp_path / "privileged"
    shutil.copy(plain, privileged)
    privileged.chmod(0o4755)
    script = tmp_path / "script"
    script.write_text(f"#!{plain} -x\n")
    script.chmod(0o755)
    for program, found in (
        (plain, "preloadable"),
        (static, "not-preloadable"),
        (privileged, "not-preloadable"),
        (script, "preloadable"),
        (tmp_path / "none", "not-found"),
    ):
        doctor.host.command = (str(program), "--an-argument")
        assert set(doctor(checks("program"))) == {f"program.{found}"}, program
    assert str(plain) in doctor_reason(doctor, checks, script)


def doctor_reason(doctor: Any, checks: Checks, program: Path) -> str:
    doctor.host.command = (str(program),)
    return str(doctor(checks("program"))["program.preloadable"].reason)


def test_a_program_that_carries_libibverbs(doctor: Any, checks: Checks, tmp_path: Path) -> None:
    archive = Path("/usr/lib/x86_64-linux-gnu/libibverbs.a")
    if not archive.exists():
        pytest.skip("no static libibverbs")
    carries = compiled(tmp_path, "carries", OPENS, str(archive), "-lnl-route-3", "-lnl-3", "-lpthread", "-ldl")
    links = compiled(tmp_path, "links", OPENS, "-libverbs")
    doctor.host.command = (str(carries),)
    assert set(doctor(checks("program"))) == {"program.static-verbs"}
    doctor.host.command = (str(links),)
    assert set(doctor(checks("program"))) == {"program.preloadable"}
    process(doctor, str(carries), str(LIBRARY))
    daemon_with(doctor)
    assert "process.static-verbs" in doctor(checks("process"))


def test_elf_files_are_reported_apart(tmp_path: Path) -> None:
    shim = read_elf(LIBRARY)
    assert shim and shim.dynamic and not shim.carries_verbs
    assert set(INTERPOSED) <= shim.defines, "what the doctor looks for is what the shim has"
    verbs = read_elf(Path(VERBS)) if Path(VERBS).exists() else None
    assert verbs is None or (verbs.dynamic and not verbs.carries_verbs and not verbs.loads_verbs)
    text = tmp_path / "text"
    text.write_text("no ELF file")
    assert read_elf(text) is None


def test_the_shim_comes_first(doctor: Any, checks: Checks) -> None:
    doctor.host.environ = dict(os.environ)
    findings = doctor(checks("preload"))
    assert set(findings) == {"preload.reaches"}
    assert all(way in findings["preload.reaches"].reason for way in ("linked", "dlsym", "dlvsym"))


def test_a_library_that_comes_before_the_shim(doctor: Any, checks: Checks, tmp_path: Path, monkeypatch: Any) -> None:
    first = compiled(tmp_path, "first.so", "void *ibv_open_device(void *d) { return d; }", "-shared", "-fPIC")
    preloads = f"{first} {LIBRARY}"
    monkeypatch.setattr("mfsd.observe.doctor.launching.preload", lambda library, before: preloads)
    doctor.host.environ = dict(os.environ)
    assert str(first) in doctor(checks("preload"))["preload.not-first"].reason
    monkeypatch.setattr("mfsd.observe.doctor.launching.preload", lambda library, before: "/nonexistent.so")
    assert set(doctor(checks("preload"))) == {"preload.ignored"}


def test_a_program_whose_python_cannot_run_the_probe(doctor: Any, checks: Checks, tmp_path: Path) -> None:
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    doctor.host.environ = {**os.environ}
    doctor.host.command = (str(broken), "serve")
    assert "ended with 3" in doctor(checks("preload"))["preload.probe-failed"].reason
    assert set(doctor(checks("libraries"))) == {"libraries.unknown"}


DLVSYM = """#include <dlfcn.h>
void *f(void) { return dlvsym(dlopen("libibverbs.so.1", RTLD_NOW), "ibv_open_device", "IBVERBS_1.1"); }"""


def packages(folder: Path) -> Path:
    """Packages as wheels install them: linked with libibverbs, loading it by name, and linked without calling it."""
    mooncake, nccl = folder / "site/mooncake", folder / "site/nvidia/nccl/lib"
    for package in (mooncake, nccl):
        package.mkdir(parents=True)
    (mooncake / "__init__.py").touch()
    shared = ("-shared", "-fPIC", "-D_GNU_SOURCE")
    compiled(mooncake, "engine.so", OPENS.replace("main", "engine"), *shared, "-libverbs")
    compiled(mooncake, "idle.so", "int f(void) { return 0; }", *shared, "-Wl,--no-as-needed", "-libverbs")
    compiled(nccl, "libnccl.so.2", DLVSYM, *shared)
    return folder / "site"


def test_libraries_by_what_the_loader_binds(doctor: Any, checks: Checks, tmp_path: Path, monkeypatch: Any) -> None:
    doctor.host.environ = {**os.environ, "PYTHONPATH": str(packages(tmp_path))}

    def found() -> dict[str, str]:
        doctor.host.probed.clear()
        return {Path(f.subject).name: f.id for f in checks("libraries").run(doctor.host)}

    assert found() == {"engine.so": "libraries.reached", "libnccl.so.2": "libraries.reached"}
    first = compiled(tmp_path, "first.so", "void *ibv_open_device(void *d) { return d; }", "-shared", "-fPIC")
    monkeypatch.setattr("mfsd.observe.doctor.launching.preload", lambda library, before: f"{first} {LIBRARY}")
    assert found() == {"engine.so": "libraries.unreached", "libnccl.so.2": "libraries.reached"}
    (tmp_path / "site/mooncake/engine.so").unlink()
    missing = compiled(tmp_path, "libneeded.so", "int needed(void) { return 0; }", "-shared", "-fPIC")
    calls = OPENS.replace("main(void) {", "engine(void) { extern int needed(void); needed();")
    engine = compiled(tmp_path / "site/mooncake", "engine.so", calls, "-shared", "-fPIC", str(missing), "-libverbs")
    missing.unlink()
    assert found()[engine.name] == "libraries.not-loaded"


def test_without_nccl_and_mooncake(doctor: Any, checks: Checks, tmp_path: Path) -> None:
    bare = tmp_path / "python3"
    bare.symlink_to(Path(sys.executable).resolve())
    doctor.host.environ = {"PATH": os.environ["PATH"], "PYTHONNOUSERSITE": "1"}
    doctor.host.command = (str(bare),)
    found = set(doctor(checks("libraries")))
    assert found == {"libraries.none"}, found


def test_reports_are_json(doctor: Any) -> None:
    from mfsd.observe.doctor.examine import examine

    report = examine(doctor.host)
    assert msgspec.json.decode(msgspec.json.encode(report))["schema"] == 1
    assert {"fail", "warn", "unknown", "info", "ok"} == set(report.counts)


@pytest.mark.parametrize(
    ("policy", "arbiter", "beater", "found"),
    [
        (2, "3", "3", ["daemon.one-cpu"]),
        (0, "3", "3", []),
        (2, "2-3", "2-3", []),
        (2, "3", "0-3", []),
    ],
)
def test_a_real_time_arbiter_on_the_only_processor_of_its_heartbeats(
    doctor: Any, policy: int, arbiter: str, beater: str, found: list[str]
) -> None:
    for thread, (name, number, cpus) in enumerate([("mfs-arbiter", policy, arbiter), ("mfs-heartbeat", 0, beater)]):
        task = f"proc/{PID}/task/{PID + thread}"
        doctor.write(f"{task}/comm", name)
        doctor.write(f"{task}/stat", f"{PID + thread} ({name}) S " + "7 " * 37 + f"{number} 0 0")
        doctor.write(f"{task}/status", f"Name:\t{name}\nCpus_allowed_list:\t{cpus}")
    doctor.write(f"proc/{PID}/task/{PID + 2}/comm", "mfsd")
    assert [one.id for one in one_cpu(doctor.host, PID)] == found
