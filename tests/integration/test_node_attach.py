"""Clients come, are scheduled, and go, in every way a process can go. Real daemon, real processes."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mfsd import _native
from mfsd._native import Client, Stage
from mfsd.node.container import container_of
from mfsd.node.control import ClientStatus
from mfsd.node.memory import bytes_for
from tests.support.daemon import Daemon
from tests.support.fabric import marked_with
from tests.support.forked import Forked
from tests.support.waiting import eventually
from tests.support.wire import RawClient

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")


def granted(client: Client, task: int) -> int:
    """The wire class of the task's permit, once it has arrived."""

    def poll() -> tuple[int] | None:
        client.wait(100_000_000)
        return next(((wire_class,) for t, wire_class in client.permits() if t == task), None)

    return eventually(poll, "the permit")[0]


def test_a_flow_from_attach_to_detach_is_seen_in_status(folder: Path) -> None:
    with Daemon(folder) as daemon:
        client = Client.attach(str(daemon.socket), process="worker", timeout_ms=100_000)
        nic = client.nic("soft0", 7, 1_000)
        task = client.submit(50_000, stage=Stage.P2D, nic=nic)
        granted(client, task)

        status = eventually(lambda: (c := daemon.client(os.getpid())) and c.permits == 1 and c)
        assert isinstance(status, ClientStatus)
        assert (status.process, status.state, status.nics, status.uid) == (
            "worker",
            "active",
            ["soft0"],
            os.geteuid(),
        )
        assert (status.in_flight_bytes, status.held_bytes, status.submits) == (50_000, 0, 1)
        assert daemon.nic("soft0").rate_bytes_per_s == 1_000
        assert daemon.nic("soft0").in_flight_bytes == 50_000

        client.complete(task)
        eventually(lambda: daemon.nic("soft0").in_flight_bytes == 0, "the window being free again")
        assert sum(c.granted_bytes for c in daemon.nic("soft0").classes) == 50_000
        client.detach()
        daemon.wait_clients(0)
        assert "why=detached" in daemon.wait_line("event=ended")


def hold_and_fly(daemon: Daemon) -> Client:
    """A client with one task in flight that fills the window and one that is held behind it."""
    client = Client.attach(str(daemon.socket), timeout_ms=100_000)
    nic = client.nic("soft0", 7, 1_000)
    first = client.submit(10_000_000, stage=Stage.P2D, nic=nic)
    granted(client, first)
    client.submit(20_000_000, stage=Stage.P2D, nic=nic)
    return client


def test_a_killed_client_leaves_nothing_behind(folder: Path) -> None:
    with Daemon(folder) as daemon:
        descriptors = daemon.descriptors()
        kept: list[Client] = []
        with Forked(lambda: kept.append(hold_and_fly(daemon))) as child:
            eventually(lambda: daemon.nic("soft0").classes and held_bytes(daemon) == 20_000_000, "the held task")
            assert daemon.nic("soft0").in_flight_bytes == 10_000_000
            child.kill()
        daemon.wait_clients(0)
        assert (daemon.nic("soft0").in_flight_bytes, held_bytes(daemon)) == (0, 0)
        eventually(lambda: daemon.descriptors() <= descriptors, "the descriptors being closed")

        with Client.attach(str(daemon.socket), timeout_ms=100_000) as other:  # the window is free for others
            granted(other, other.submit(1000, stage=Stage.P2D, nic=other.nic("soft0", 7)))


def held_bytes(daemon: Daemon) -> int:
    return sum(c.held_bytes for c in daemon.nic("soft0").classes)


def test_a_child_that_inherited_the_socket_does_not_keep_a_dead_client(folder: Path) -> None:
    def attach_and_leave_the_socket_to_a_child() -> int:
        raw = RawClient(daemon.socket)
        assert raw.attach().error == 0
        heir = os.fork()
        if heir == 0:
            try:
                signal.pause()
            finally:
                os._exit(0)
        return heir

    with Daemon(folder) as daemon, Forked(attach_and_leave_the_socket_to_a_child) as client:
        daemon.wait_clients(1)
        client.kill()
        try:
            daemon.wait_clients(0)
            assert "why=exited" in daemon.wait_line("event=ended")
            os.kill(client.result, 0)  # the heir lives, with the socket open
        finally:
            os.kill(client.result, signal.SIGKILL)


def test_a_stopped_client_disturbs_no_other(folder: Path) -> None:
    with Daemon(folder) as daemon:
        kept: list[Client] = []
        with Forked(lambda: kept.append(Client.attach(str(daemon.socket), timeout_ms=100_000))) as child:
            daemon.wait_clients(1)
            child.signal(signal.SIGSTOP)
            with Client.attach(str(daemon.socket), timeout_ms=100_000) as other:
                granted(other, other.submit(1000, stage=Stage.P2D, nic=other.nic("soft0", 7)))
            child.signal(signal.SIGCONT)
            assert daemon.client(child.pid)


def test_another_abi_is_refused_with_the_reason(folder: Path) -> None:
    with Daemon(folder) as daemon, RawClient(daemon.socket) as raw:
        hello = _native.hello_encode(_native.HelloKind.ATTACH, major=_native.ABI_MAJOR + 1)
        welcome = raw.attach(hello)
        assert welcome.error == -errno.EPROTO
        assert str(_native.ABI_MAJOR + 1) in welcome.reason
        assert raw.segment is None
        assert raw.closed()
        assert daemon.status().daemon.refused == {"EPROTO": 1}


@pytest.mark.parametrize("minor", [_native.ABI_MINOR - 1, _native.ABI_MINOR + 1], ids=["older", "newer"])
def test_another_minor_version_is_served_and_shown(folder: Path, minor: int) -> None:
    version, daemons = f"{_native.ABI_MAJOR}.{minor}", f"{_native.ABI_MAJOR}.{_native.ABI_MINOR}"
    with Daemon(folder) as daemon, RawClient(daemon.socket) as raw:
        welcome = raw.attach(_native.hello_encode(_native.HelloKind.ATTACH, minor=minor, process="engine"))
        assert (welcome.error, welcome.minor) == (0, _native.ABI_MINOR) and raw.segment is not None
        (client,) = daemon.wait_clients(1)
        assert (client.abi, daemon.status().daemon.abi) == (version, daemons)
        assert f"speaks={version}" in daemon.wait_line("event=other-abi")
        mfsctl = Path(sys.executable).with_name("mfsctl")
        shown = subprocess.run(
            [mfsctl, "--socket", daemon.socket, "status"], capture_output=True, text=True, timeout=200
        )
        assert f"ABI {version}, this daemon {daemons}" in shown.stdout, shown.stdout + shown.stderr


@as_root
def test_a_user_who_is_not_listed_is_refused(folder: Path) -> None:
    def attach_as_another_user() -> str:
        try:
            Client.attach(str(daemon.socket), timeout_ms=100_000)
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return "attached"

    config = '[socket]\nmode = "0666"\nallowed_uids = [4711]\n'
    with Daemon(folder, config) as daemon:
        with Forked(attach_as_another_user, uid=NOBODY) as child:
            assert child.result == "EACCES"
        assert f"uid {NOBODY} is not in allowed_uids" in daemon.wait_line("event=refused")
        daemon.config_file.write_text(f'[socket]\nmode = "0666"\nallowed_uids = [{NOBODY}]\n')
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_line("event=reloaded")
        with Forked(attach_as_another_user, uid=NOBODY) as child:
            assert child.result == "attached"


def test_one_user_cannot_take_all_clients(folder: Path) -> None:
    with Daemon(folder, "[socket]\nclients_per_uid = 2\n") as daemon:
        clients = [Client.attach(str(daemon.socket), timeout_ms=100_000) for _ in range(2)]
        with pytest.raises(OSError) as caught:
            Client.attach(str(daemon.socket), timeout_ms=100_000)
        assert caught.value.errno == errno.EUSERS
        clients.pop().detach()
        daemon.wait_clients(1)
        Client.attach(str(daemon.socket), timeout_ms=100_000).detach()
        clients.pop().detach()


IN_ITS_OWN_PID_NAMESPACE = ("unshare", "--pid", "--fork", sys.executable, "-c")
ATTACH = """
import errno, sys
from mfsd._native import Client
clients = []
for _ in range(2):
    try:
        clients.append(Client.attach(sys.argv[1], timeout_ms=100_000))
        print("attached", flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
sys.stdin.read()
"""


@as_root
def test_root_of_one_container_cannot_take_all_clients(folder: Path) -> None:
    if container_of(os.getpid()):
        pytest.skip("this test is in a container itself, and all that it starts counts as that one's")
    with Daemon(folder, "[socket]\nclients_per_container = 1\n") as daemon:
        containers = [
            subprocess.Popen(
                [*IN_ITS_OWN_PID_NAMESPACE, ATTACH, str(daemon.socket)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        try:
            for container in containers:
                assert container.stdout is not None
                assert [container.stdout.readline() for _ in range(2)] == ["attached\n", "EUSERS\n"]
            Client.attach(str(daemon.socket), timeout_ms=100_000).detach()
            assert "see clients_per_container" in daemon.wait_line("event=refused")
        finally:
            for container in containers:
                container.communicate("")


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A control group with this limit, below our own where that can be found; skips where none can be made."""
    root, name = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
    if not root.is_dir():
        root, name = Path("/sys/fs/cgroup"), "memory.max"
    group = root / f"mfs-test-{os.getpid()}"
    try:
        group.mkdir()
        try:
            (group / name).write_text(str(limit_bytes))
        except OSError:
            group.rmdir()
            raise
    except OSError as error:
        pytest.skip(f"no control group with a memory limit can be made here: {error}")
    try:
        yield group
    finally:
        eventually(lambda: not (group / "cgroup.procs").read_text(), "the group being empty")
        group.rmdir()


@as_root
def test_memory_that_is_limited_is_an_answer_and_not_a_crash(folder: Path) -> None:
    fit = 4
    with memory_group(bytes_for(fit)) as group:

        def enter() -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

        with Daemon(folder, prepare=enter) as daemon:
            line = daemon.wait_line("event=memory-limits-clients")
            assert f"clients={fit}" in line and "socket.clients_max" in line
            clients = [Client.attach(str(daemon.socket), timeout_ms=100_000) for _ in range(fit)]
            with pytest.raises(OSError) as caught:
                Client.attach(str(daemon.socket), timeout_ms=100_000)
            assert caught.value.errno == errno.ENOSPC
            assert "memory limit holds" in daemon.wait_line("event=refused")
            assert daemon.status().daemon.refused == {"ENOSPC": 1}
            for client in clients:
                client.detach()


@pytest.mark.parametrize("cpus_count", [1, 2])
def test_one_processor_for_both_threads_of_the_arbiter_is_reported(folder: Path, cpus_count: int) -> None:
    cpus = sorted(os.sched_getaffinity(0))[:cpus_count]
    if len(cpus) < cpus_count:
        pytest.skip("this process may use one processor")
    config = f'[arbiter]\nstale_after = "10s"\nspin = "0ns"\ncpus = "{",".join(map(str, cpus))}"\n'
    with Daemon(folder, config) as daemon:
        daemon.process.terminate()
        assert daemon.wait_end() == 0
    found = [line for line in daemon.lines if "event=one-cpu-for-heartbeats" in line]
    assert len(found) == (cpus_count == 1)
    assert all(f"cpu={cpus[0]}" in line and "arbiter.cpus" in line for line in found)


def test_the_configured_rate_goes_before_what_a_client_says(folder: Path) -> None:
    config = '[nic."soft0"]\nrate = "8mbit"\n'
    with Daemon(folder, config) as daemon, Client.attach(str(daemon.socket), timeout_ms=100_000) as client:
        client.nic("soft0", 7, 125_000_000)
        assert daemon.nic("soft0").rate_bytes_per_s == 1_000_000


def test_rules_reach_clients_in_their_order(folder: Path) -> None:
    rule = 'process = "etl"\npeer = "10.1.0.0/16"\naction = "pass"\nclass = 1\n'
    with (
        Daemon(folder, f"{marked_with(folder, [46, 34])}[[rule]]\n{rule}") as daemon,
        Client.attach(str(daemon.socket), timeout_ms=100_000) as client,
    ):
        first, *built_in = client.rules()
        assert (first.process, first.peer_prefix_bits, first.dscp) == ("etl", 112, 34)
        assert [r.library for r in built_in[:2]] == ["engine.so", "store.so"]
        assert [r.stage for r in built_in[:2]] == [Stage.P2D, Stage.REUSE]
        last = built_in[-1]
        assert (last.library, last.process, last.role, last.peer_prefix_bits) == ("", "", 0, 0)
        assert last.action == _native.RuleAction.PASS


@pytest.mark.parametrize(
    ("limit", "value", "reason"),
    [("RLIMIT_FSIZE", 100_000, "ENOSPC"), ("RLIMIT_NOFILE", 15, "ENOSPC")],
)
def test_a_host_that_is_out_of_memory_or_descriptors(folder: Path, limit: str, value: int, reason: str) -> None:
    """A segment that cannot be made is one refusal, not the end of the daemon."""
    import resource

    def prepare() -> None:
        resource.setrlimit(getattr(resource, limit), (value, value))

    with Daemon(folder, prepare=prepare) as daemon:
        raws = []
        try:
            for _ in range(16):
                raw = RawClient(daemon.socket)
                raws.append(raw)
                raw.socket.send(_native.hello_encode(_native.HelloKind.ATTACH))
            output = eventually(
                lambda: next((x for x in daemon.lines if "event=refused" in x or "accept-failed" in x), None)
            )
            assert reason in output or "Too many open files" in output
        finally:
            for raw in raws:
                raw.close()
        assert daemon.process.poll() is None
        eventually(daemon.answers, "the daemon answering")
        daemon.wait_clients(0)


def test_a_process_is_named_by_what_it_says_but_harmlessly(folder: Path) -> None:
    with Daemon(folder) as daemon, RawClient(daemon.socket) as raw:
        raw.attach(_native.hello_encode(_native.HelloKind.ATTACH, process="\x1b[31mred"))
        (client,) = daemon.wait_clients(1)
        assert client.process == "?[31mred"
