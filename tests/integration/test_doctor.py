"""`mfsctl doctor` on real parts: a daemon, programs on soft RoCE, a network of namespaces, two lldpd."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.fabric.lab import Lab, missing, slow_profile
from bench.ports import free_port
from mfsd import _native
from mfsd.fabric.policy import load_profile
from mfsd.observe.doctor.checks import daemon as daemon_check
from mfsd.observe.doctor.checks import pfc
from mfsd.observe.doctor.host import Host, run_program
from tests.conftest import SoftRoce, wait_for_listener
from tests.support.daemon import Daemon
from tests.support.fabric import marked_with
from tests.support.forked import Forked
from tests.support.priority import may
from tests.support.under_mfs import under_mfs
from tests.support.waiting import eventually
from tests.support.wire import RawClient

LANE = '[wire]\nprofile = "rocev2-2-lossless"\n[[rule]]\naction = "hold"\nstage = "p2d"\nclass = 0\n'
DOCTOR = (sys.executable, "-m", "mfsd.cli.ctl")
needs_root = pytest.mark.skipif(bool(missing()), reason=missing())


def findings(
    socket_path: Path, *arguments: str, prefix: tuple[str, ...] = (), code: int | None = None
) -> list[dict[str, Any]]:
    """Checks the exit code against the verdict."""
    command = [*prefix, *DOCTOR, "--socket", str(socket_path), "doctor", "--json", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert result.stdout, result.stderr
    report = json.loads(result.stdout)
    assert result.returncode == {"scheduled": 0, "not scheduled": 1, "cannot tell": 4}[report["verdict"]]
    assert code is None or result.returncode == code
    found: list[dict[str, Any]] = report["findings"]
    return found


def doctor(socket_path: Path, *arguments: str, prefix: tuple[str, ...] = (), code: int | None = None) -> dict[str, Any]:
    """Findings by id, of one subject each."""
    return {f["id"]: f for f in findings(socket_path, *arguments, prefix=prefix, code=code)}


def unscheduled(socket_path: Path) -> dict[str, str]:
    """Subjects and reasons of all programs without the shim on this machine, those of other tests among them."""
    return {f["subject"]: f["reason"] for f in findings(socket_path) if f["id"] == "others.unscheduled"}


def test_a_daemon_that_answers_and_one_that_does_not(folder: Path) -> None:
    with Daemon(folder, LANE) as daemon:
        found = doctor(daemon.socket)
        assert "pid" in found["daemon.answers"]["reason"]
        assert daemon.status().daemon.attached_total == 1, "the doctor attaches as a program does"
        eventually(lambda: not daemon.status().clients, "the doctor to be gone again")
    found = doctor(daemon.socket, code=1)
    assert "no mfsd at" in found["daemon.unreachable"]["reason"]
    assert "daemon.answers" not in found


@pytest.mark.parametrize(
    ("config", "finding"),
    [
        ('mode = "observe"\n' + LANE, "daemon.observe"),
        ('mode = "off"\n' + LANE, "daemon.off"),
        (LANE.replace("class = 0", "dscp = 63"), "daemon.foreign-dscp"),
        ("", "daemon.no-dscp"),
    ],
)
def test_a_daemon_that_does_not_do_what_one_thinks(folder: Path, config: str, finding: str) -> None:
    with Daemon(folder, config) as daemon:
        assert finding in doctor(daemon.socket)


@pytest.mark.skipif(not may(os.SCHED_RR), reason="needs the right to real-time priority")
def test_a_real_time_arbiter_beside_its_heartbeats_is_found(folder: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    with Daemon(folder, f'[arbiter]\nstale_after = "10s"\nspin = "0ns"\ncpus = "{cpu}"\n') as daemon:
        assert f"CPU {cpu} alone" in doctor(daemon.socket)["daemon.one-cpu"]["reason"]


def test_the_policy_is_the_one_that_the_daemon_marks_by(folder: Path) -> None:
    """63 is in no shipped profile, and good where the daemon's own policy file has it."""
    rule = '[[rule]]\naction = "hold"\nstage = "p2d"\nclass = 0\n'
    with Daemon(folder, marked_with(folder, [63, 8]) + rule) as daemon:
        assert "daemon.foreign-dscp" not in doctor(daemon.socket)
        assert "daemon.foreign-dscp" in doctor(daemon.socket, "--profile", "paper-k8")
        (folder / "policy.toml").unlink()
        assert "daemon.foreign-dscp" in doctor(daemon.socket), "the default, where that file cannot be read"


@pytest.mark.parametrize(
    ("welcome", "finding"),
    [
        (_native.welcome_encode(major=99, error=-71), "daemon.abi"),
        (_native.welcome_encode(error=-71, reason="sizes differ"), "daemon.abi"),
        (_native.welcome_encode(error=-13, reason="uid 7 is not allowed"), "daemon.attach-refused"),
        (b"HTTP/1.1 400 Bad Request", "daemon.abi"),
    ],
)
def test_daemons_of_another_build(folder: Path, welcome: bytes, finding: str) -> None:
    """The real daemon cannot be had in another ABI: a socket answers in its place."""
    path = folder / "mfsd.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(1)

        def answer() -> None:
            connection, _ = listener.accept()
            connection.recv(_native.HELLO_BYTES)
            connection.send(welcome)
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        host = Host(path, path, "rocev2-2-lossless", load_profile("rocev2-2-lossless"))
        (found,) = daemon_check._attach(host)
        thread.join()
    assert found.id == finding


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_user_who_may_not_open_the_sockets_is_not_told_to_start_a_daemon(folder: Path) -> None:
    with Daemon(folder, LANE) as daemon:
        host = Host(daemon.socket, daemon.control, "rocev2-2-lossless", load_profile("rocev2-2-lossless"))
        with Forked(lambda: {f.id: f.remedy for f in daemon_check.run(host)}, uid=65_534) as user:
            refused = user.result
        daemon.socket.chmod(0o666)
        with Forked(lambda: [f.id for f in daemon_check.run(host)], uid=65_534) as user:
            assert user.result == ["daemon.control-out-of-reach"]
    assert set(refused) == {"daemon.attach-refused", "daemon.control-out-of-reach"}
    assert "socket.group" in refused["daemon.attach-refused"]


def test_a_policy_that_there_is_not_is_wrong_usage_and_no_verdict(folder: Path) -> None:
    command = [*DOCTOR, "--socket", str(folder / "none.sock"), "doctor", "--profile", "nosuch"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 2 and "profiles.nosuch: no such profile; there are" in done.stderr


def test_programs_of_another_minor_version_are_named(folder: Path) -> None:
    with Daemon(folder, LANE) as daemon, RawClient(daemon.socket) as raw:
        raw.attach(_native.hello_encode(_native.HelloKind.ATTACH, minor=_native.ABI_MINOR - 1))
        daemon.wait_clients(1)
        found = doctor(daemon.socket)["daemon.abi-minor"]
    assert found["severity"] == "warn"
    versions = f"ABI 1.{_native.ABI_MINOR - 1}, this daemon 1.{_native.ABI_MINOR}"
    assert found["reason"].startswith(f"1 program speaks {versions}: they do without ")


def test_a_soft_roce_device_is_usable(soft_roce: SoftRoce, folder: Path) -> None:
    with Daemon(folder, LANE) as daemon:
        command = (*DOCTOR, "--socket", daemon.socket, "doctor", "--json", "--coordinator", "127.0.0.1:1")
        result = soft_roce.run(*command, check=False)
    found = {f["id"]: f for f in json.loads(result.stdout)["findings"]}
    assert found["devices.usable"]["subject"] == "mfs0"
    assert found["override.clear"]["subject"] == "mfs0"
    assert "refused" in found["coordinator.unreachable"]["reason"]


def coordinator_process() -> tuple[subprocess.Popen[str], str]:
    address = f"127.0.0.1:{free_port()}"
    command = (sys.executable, "-m", "mfsd.cli.daemon", "--coordinator", "--listen", address, "--advertise", address)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for_listener(int(address.rpartition(":")[2]), process)
    return process, address


def test_a_real_coordinator(folder: Path) -> None:
    process, address = coordinator_process()
    try:
        with Daemon(folder, LANE) as daemon:
            found = doctor(daemon.socket, "--coordinator", address)
            assert "term" in found["coordinator.leads"]["reason"]
        (folder / "linked").mkdir()
        with Daemon(folder / "linked", f'[cluster]\nnode = "n7"\ncoordinators = ["{address}"]\n{LANE}') as daemon:
            found = doctor(daemon.socket)
            assert {"coordinator.leads", "coordinator.not-linked"} & set(found), "of the daemon's own configuration"
        with socket.create_server(("127.0.0.1", 0)) as other:
            found = doctor(daemon.socket, "--coordinator", f"127.0.0.1:{other.getsockname()[1]}", code=1)
            assert "coordinator.no-status" in found
    finally:
        process.kill()
        process.communicate()
    assert "coordinator.unreachable" in doctor(daemon.socket, "--coordinator", address, code=1)


@pytest.fixture
def writer(soft_roce: SoftRoce, folder: Path) -> Callable[..., tuple[subprocess.Popen[str], Daemon]]:
    """An ib_write_bw that runs until the test ends."""

    def start(daemon: Daemon, scheduled: bool) -> subprocess.Popen[str]:
        port = str(free_port())
        command = ("ib_write_bw", "-d", "mfs0", "-x", "0", "-n", "5000000", "-s", "4096", "-p", port)
        prefix = under_mfs(daemon.socket) if scheduled else []
        server = soft_roce.start(*prefix, *command)
        wait_for_listener(int(port), server)
        return soft_roce.start(*prefix, *command, "127.0.0.1")

    return start  # type: ignore[return-value]


def test_running_programs_with_and_without_the_shim(folder: Path, writer: Any) -> None:
    with Daemon(folder, LANE) as daemon:
        client = writer(daemon, scheduled=True)
        eventually(lambda: (c := daemon.client(client.pid)) and c.permits > 0, "permits")
        found = doctor(daemon.socket, "--pid", str(client.pid))
        assert "mfs0" in found["process.scheduled"]["reason"]
        assert f"pid {client.pid}" not in unscheduled(daemon.socket)
        plain = writer(daemon, scheduled=False)
        eventually(lambda: "libmfs-rdmav" in Path(f"/proc/{plain.pid}/maps").read_text(), "its device")
        found = doctor(daemon.socket, "--pid", str(plain.pid), code=1)
        assert "LD_PRELOAD=(unset)" in found["process.not-preloaded"]["reason"]
        assert "ib_write_bw" in unscheduled(daemon.socket)[f"pid {plain.pid}"]


def test_a_program_that_is_to_run(folder: Path, tmp_path: Path) -> None:
    with Daemon(folder, LANE) as daemon:
        found = doctor(daemon.socket, "--", "ib_write_bw", "--help")
        assert "ib_write_bw" in found["program.preloadable"]["reason"]
        doctor(daemon.socket, "--", str(tmp_path / "none"), code=1)


def test_wrong_usage(folder: Path) -> None:
    for arguments in (("--pid", "0"), ("--group", "nowhere"), ("--policy", "none")):
        command = [*DOCTOR, "doctor", *arguments]
        assert subprocess.run(command, capture_output=True, timeout=200, check=False).returncode in (1, 2)


# ---- networks ------------------------------------------------------------------------------------


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(["near", "peer"], slow_profile("rocev2-lossy-ecn", 0.1)) as lab:
        for i, host in enumerate(lab.names):
            run_program(["ip", "-n", lab.namespace(host), "link", "set", "dev", "eth0", "mtu", "4200"])
            run_program(["ip", "-n", lab.switch, "link", "set", "dev", f"p{i}", "mtu", "4200"])
        yield lab


@needs_root
def test_the_path_to_a_peer(lab: Lab, folder: Path) -> None:
    inside = ("ip", "netns", "exec", lab.namespace("near"))
    arguments = ("--policy", "rocev2-lossy-ecn", "--dev", "eth0", "--peer", lab.address("peer"))
    with Daemon(folder, LANE) as daemon:
        found = doctor(daemon.socket, *arguments, prefix=inside)
        assert "4192 bytes" in found["peer.mtu-holds"]["reason"]
        assert {"peer.no-probe", "mtu.fits", "nic.no-order"} <= set(found)
        run_program(["ip", "-n", lab.switch, "link", "set", "dev", "p1", "mtu", "1500"])
        found = doctor(daemon.socket, *arguments, prefix=inside, code=1)
        assert "84 bytes come back" in found["peer.path-mtu"]["reason"]
        run_program(["ip", "-n", lab.namespace("peer"), "link", "set", "dev", "eth0", "down"])
        assert "peer.silent" in doctor(daemon.socket, *arguments, prefix=inside)


@needs_root
def test_dscps_on_the_path(lab: Lab, folder: Path) -> None:
    inside = ("ip", "netns", "exec", lab.namespace("near"))
    serve = ("ip", "netns", "exec", lab.namespace("peer"), *DOCTOR, "fabric", "serve")
    arguments = ("--policy", "rocev2-lossy-ecn", "--dev", "eth0", "--peer", lab.address("peer"))
    reflector = subprocess.Popen(serve, stderr=subprocess.PIPE, text=True)
    try:
        assert reflector.stderr and "answering" in reflector.stderr.readline()
        with Daemon(folder, LANE) as daemon:
            assert "46, 34, 26, 8" in doctor(daemon.socket, *arguments, prefix=inside)["peer.dscp-kept"]["reason"]
            bleach = "table ip b { chain c { type filter hook prerouting priority 0 ; ip dscp set cs0 ; } ; }"
            run_program(["ip", "netns", "exec", lab.namespace("peer"), "nft", bleach])
            found = doctor(daemon.socket, *arguments, prefix=inside, code=1)
            assert "arrives as 0" in found["peer.bleached"]["reason"]
    finally:
        reflector.kill()
        reflector.communicate()


@needs_root
@pytest.mark.skipif(
    shutil.which("lldpd") is None, reason="lldpd is not installed; its output is also a file of the unit tests"
)
def test_pfc_that_a_switch_announces(lab: Lab, folder: Path) -> None:
    """A real lldpd on both ends; that of the switch sends the DCBX PFC TLV of priorities 3 and 4."""
    sockets = {name: folder / f"{name}.lldp" for name in ("near", "switch")}
    places = {"near": (lab.namespace("near"), "eth0"), "switch": (lab.switch, "p0")}
    started = []
    try:
        for name, (namespace, interface) in places.items():
            command = ("ip", "netns", "exec", namespace, "lldpd", "-d", "-u", str(sockets[name]), "-I", interface)
            started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        eventually(lambda: all(s.is_socket() for s in sockets.values()), "two lldpd")
        announce = "configure lldp custom-tlv oui 00,80,c2 subtype 11 oui-info 08,18"
        run_program(["lldpcli", "-u", str(sockets["switch"]), *announce.split()])
        end = time.monotonic() + 20

        def ask(argv: list[str]) -> str:
            return run_program([argv[0], "-u", str(sockets["near"]), *argv[1:]])

        host = Host(
            folder / "none",
            folder / "none",
            "rocev2-2-lossless",
            load_profile("rocev2-2-lossless"),
            interfaces=("eth0",),
            run=ask,
        )
        while not {f.id for f in pfc.run(host)} >= {"pfc.agrees"}:
            assert time.monotonic() < end, [f.reason for f in pfc.run(host)]
            run_program(["lldpcli", "-u", str(sockets["switch"]), "update"])
        (finding,) = pfc.run(host)
        assert "3, 4" in finding.reason
    finally:
        for process in started:
            process.terminate()
            process.wait(100)


@pytest.mark.skipif(not Path("/usr/lib/python3/dist-packages/pyverbs").is_dir(), reason="python3-pyverbs is missing")
def test_a_message_over_a_soft_roce_port(soft_roce: SoftRoce, folder: Path) -> None:
    prefix = tuple(soft_roce.argv())
    found = doctor(folder / "none.sock", prefix=prefix)
    assert "100 Gbit/s" in found["verbs.agrees"]["reason"] and "verbs.moved" not in found
    found = doctor(folder / "none.sock", "--verbs", prefix=prefix)
    assert "4096 bytes, GID index 0 (::ffff:" in found["verbs.moved"]["reason"]
    assert "verbs.dscp-seen" in found or "CAP_NET_RAW" in found["verbs.dscp-unseen"]["reason"]
