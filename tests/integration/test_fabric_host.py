"""`mfsctl switch diff --apply` and `mfsctl host` on real interfaces in a network namespace of our own."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyroute2 import netns

from bench.fabric.lab import missing
from mfsd.cli.commands.host import host
from mfsd.cli.commands.switch import switch
from mfsd.fabric.driver_statistics import EthtoolStatistics
from mfsd.fabric.plan import make_plan
from mfsd.fabric.policy import load_profile
from mfsd.fabric.systems import SYSTEMS
from mfsd.fabric.systems.linux.qdisc import diff_queues, interface_index, open_netlink, read_queues, wanted_queues

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def tool(command: str) -> str:
    return subprocess.run(command.split(), check=True, capture_output=True, text=True, timeout=200).stdout


@pytest.fixture
def namespace() -> Iterator[str]:
    name = f"mfs-host-{os.getpid()}"
    tool(f"ip netns add {name}")
    tool(f"ip -n {name} link add name nic0 type veth peer name nic1")
    tool(f"ip -n {name} link set dev nic0 up")
    yield name
    tool(f"ip netns del {name}")


def run(command: Any, *arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, catch_exceptions=False)


def diff(namespace: str, *more: str) -> Result:
    return run(
        switch,
        "diff",
        "--nos",
        "linux",
        "--policy",
        "paper-k8",
        "--ports",
        "testbed=nic0",
        "--netns",
        namespace,
        *more,
    )


def test_apply_shows_the_difference_first_and_settles(namespace: str) -> None:
    assert diff(namespace).exit_code == 1
    assert tool(f"tc -n {namespace} qdisc show dev nic0").startswith("qdisc noqueue")
    applied = diff(namespace, "--apply")
    assert applied.exit_code == 0
    assert "root qdisc: noqueue -> htb" in applied.stdout
    again = diff(namespace)
    assert (again.exit_code, again.stdout) == (0, "")


def test_a_changed_class_and_a_lost_filter_are_found_and_repaired(namespace: str) -> None:
    diff(namespace, "--apply")
    changed = "parent 1:1 classid 1:13 htb rate 1mbit ceil 5mbit prio 1"
    tool(f"tc -n {namespace} class change dev nic0 {changed}")
    tool(f"tc -n {namespace} filter del dev nic0 parent 1: protocol ip prio 1 handle 800::130 u32")
    found = diff(namespace)
    assert found.exit_code == 1
    assert "~ nic0: class 1:13: rate 1000kbit ceil 5000kbit prio 1 -> " in found.stdout
    assert "+ nic0: filter ip dscp 48 = 1:16" in found.stdout
    assert diff(namespace, "--apply").exit_code == 0
    assert diff(namespace).exit_code == 0


@pytest.mark.parametrize("name", ["rocev2-2-lossless", "rocev2-lossy-ecn", "paper-k8"])
def test_the_kernel_holds_what_the_text_says(namespace: str, name: str) -> None:
    profile = load_profile(name)
    plan = make_plan(name, profile, {"hosts": ["nic0"]})
    text = SYSTEMS["linux"].render(plan).text
    for _ in range(2):
        subprocess.run(["tc", "-n", namespace, "-batch", "-"], input=text, text=True, check=True, timeout=200)
        with open_netlink(namespace) as ipr:
            have = read_queues(ipr, interface_index(ipr, "nic0"))
        assert diff_queues(wanted_queues(plan, plan.ports[0]), have) == []


def test_a_foreign_qdisc_is_left_alone(namespace: str) -> None:
    tool(f"tc -n {namespace} qdisc add dev nic0 root tbf rate 10mbit burst 10kb latency 50ms")
    refused = diff(namespace, "--apply")
    assert refused.exit_code == 1
    assert "its root qdisc 'tbf' is not MFS's" in refused.stderr
    assert "qdisc tbf" in tool(f"tc -n {namespace} qdisc show dev nic0")


def test_apply_refuses_systems_it_cannot_write_to() -> None:
    refused = run(switch, "diff", "--nos", "eos", "--ports", "Ethernet1/1", "--apply")
    assert refused.exit_code == 1
    assert "MFS does not write to Arista EOS" in refused.stderr


def on_host(namespace: str, state: Path, command: str, *more: str) -> Result:
    where = ("--dev", "nic0", "--netns", namespace, "--state-dir", str(state))
    return run(host, command, "--policy", "paper-k8", "--group", "testbed", *where, *more)


def test_host_apply_verify_rollback(namespace: str, tmp_path: Path) -> None:
    assert on_host(namespace, tmp_path, "verify").exit_code == 1
    dry = on_host(namespace, tmp_path, "apply", "--dry-run")
    assert "would change  qdisc: noqueue -> mfs" in dry.stdout
    assert on_host(namespace, tmp_path, "verify").exit_code == 1
    first = json.loads(on_host(namespace, tmp_path, "apply", "--json").stdout)
    outcomes = {r["setting"]: r["outcome"] for r in first}
    assert outcomes == {
        "dcbx": "not supported",
        "dscp-to-priority": "not supported",
        "trust": "not supported",
        "ets": "not supported",
        "pfc": "not supported",
        "qdisc": "changed",
    }
    (ets,) = [r for r in first if r["setting"] == "ets"]
    assert ets["reason"] == "this (virtual) device has no such setting (Operation not supported)"
    assert ets["remedy"] == "without it, the NIC sends its classes in no order"
    second = json.loads(on_host(namespace, tmp_path, "apply", "--json").stdout)
    assert {r["outcome"] for r in second} == {"not supported", "ok"}
    assert on_host(namespace, tmp_path, "verify").exit_code == 0
    assert "changed       qdisc: mfs -> noqueue" in on_host(namespace, tmp_path, "apply", "--rollback").stdout
    assert tool(f"tc -n {namespace} qdisc show dev nic0").startswith("qdisc noqueue")
    refused = on_host(namespace, tmp_path, "apply", "--rollback")
    assert refused.exit_code == 1
    assert "nothing to roll back" in refused.stderr


def test_host_names_a_missing_interface(namespace: str, tmp_path: Path) -> None:
    refused = run(host, "show", "--dev", "nope", "--netns", namespace, "--state-dir", str(tmp_path))
    assert refused.exit_code == 1
    assert "nope: no such interface" in refused.stderr


def test_check_and_render_by_command_line(tmp_path: Path) -> None:
    file = tmp_path / "mfs.txt"
    ports = ("--ports", "hosts=Ethernet1/[1-2]")
    written = run(switch, "render", "--nos", "eos", *ports, "-o", str(file))
    assert written.exit_code == 0
    good = json.loads(run(switch, "check", "--nos", "eos", *ports, "--config", str(file), "--json").stdout)
    assert {f["status"] for f in good} <= {"pass", "not checked"}
    file.write_text(file.read_text().replace("priority strict", "priority first"))
    bad = run(switch, "check", "--nos", "eos", *ports, "--config", str(file))
    assert bad.exit_code == 1
    assert "priority first" in bad.stdout
    missing_running = run(switch, "diff", "--nos", "eos", *ports)
    assert "--running: give the file" in missing_running.stderr
    compared = run(switch, "diff", "--nos", "eos", *ports, "--running", str(file))
    assert compared.exit_code == 1
    assert "+ qos profile MFS-hosts / uc-tx-queue 6 / priority strict" in compared.stdout


def test_the_kernels_statistics_of_a_real_interface_are_read(namespace: str) -> None:
    """Those that `ethtool -S` prints, by the reader of port counters. A veth's driver has its other end's index."""
    netns.pushns(namespace)
    try:
        statistics = EthtoolStatistics()
        assert statistics("nic0")["peer_ifindex"] == socket.if_nametoindex("nic1")
        assert statistics("nic0") == statistics("nic0"), "the handle stays open"
        tool("ip link del nic0")
        with pytest.raises(OSError, match="no statistics"):
            statistics("nic0")
    finally:
        netns.popns()


def test_an_interface_may_have_more_channels_than_when_its_statistics_were_first_read(namespace: str) -> None:
    """As after `ethtool -L`: the kernel writes as many values as there are then, beyond a buffer for those before."""
    netns.pushns(namespace)
    try:
        tool("ip link add many0 numrxqueues 8 numtxqueues 8 type veth peer name many1 numrxqueues 8 numtxqueues 8")
        set_channels("many0", 1)
        statistics = EthtoolStatistics()
        few = statistics("many0")
        set_channels("many0", 8)
        many = [statistics("many0") for _ in range(1000)][-1]
        assert len(many) > len(few) and many["peer_ifindex"] == socket.if_nametoindex("many1")
        set_channels("many0", 1)
        assert statistics("many0") == few
    finally:
        netns.popns()


def set_channels(interface: str, count: int) -> None:
    siocethtool, ethtool_schannels = 0x8946, 0x3D
    channels = (ctypes.c_uint32 * 9)(ethtool_schannels, 0, 0, 0, 0, count, count)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        fcntl.ioctl(asked, siocethtool, struct.pack("16sQ16x", interface.encode(), ctypes.addressof(channels)))
