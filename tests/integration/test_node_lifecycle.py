"""The daemon starts, reloads, hangs, dies and comes back; clients and files are left in order."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from mfsd._native import Client, Stage
from mfsd.node.control import StatusRequest
from mfsd.node.control_client import Unreachable, ask
from tests.support.daemon import Daemon
from tests.support.fabric import marked_with
from tests.support.threads import hung
from tests.support.waiting import TIMEOUT_S, eventually

RSS_MIB_MAX = 60


def run_mfsd(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mfsd.cli.daemon", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def test_a_termination_signal_ends_it_in_order(folder: Path) -> None:
    with Daemon(folder) as daemon:
        client = Client.attach(str(daemon.socket), timeout_ms=100_000)
        assert client.alive()
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.wait_end() == 0
        assert not client.alive()
        assert client.hung_up()
        client.detach()
    assert sorted(p.name for p in folder.iterdir()) == ["mfsd.toml", "run"], "and containers keep the folder"
    assert list(daemon.socket.parent.iterdir()) == []
    assert "attached_total=1" in daemon.lines[-1]


def test_a_restart_has_a_new_epoch_and_clients_attach_again(folder: Path) -> None:
    with Daemon(folder, patient=False) as daemon:
        client = Client.attach(str(daemon.socket), timeout_ms=100_000)
        nic = client.nic("soft0", 7, 125_000_000)
        epoch = daemon.status().daemon.epoch
        assert client.epoch == epoch
        daemon.process.kill()
        daemon.process.wait()
        eventually(lambda: not client.alive(), "the heartbeat going stale")
        assert client.hung_up()
    assert daemon.socket.is_socket(), "a killed daemon leaves its socket"
    with Daemon(folder) as daemon:
        assert daemon.status().daemon.epoch != epoch
        again = Client.attach(str(daemon.socket), timeout_ms=100_000)
        assert again.epoch != epoch
        nic = again.nic("soft0", 7, 125_000_000)
        again.submit(1000, stage=Stage.P2D, nic=nic)
        eventually(lambda: again.wait(100_000_000) and again.permits(), "a permit of the new daemon")
        again.detach()
        client.detach()


def test_a_stopped_daemon_is_taken_for_dead_and_believed_again(folder: Path) -> None:
    with Daemon(folder, patient=False) as daemon, Client.attach(str(daemon.socket), timeout_ms=100_000) as client:
        daemon.process.send_signal(signal.SIGSTOP)
        eventually(lambda: not client.alive(), "the heartbeat going stale")
        assert not client.hung_up()
        try:
            ask(daemon.control, StatusRequest(), timeout_s=0.1)
        except Unreachable as error:
            assert "does not answer within 0.1 s: it hangs or is stopped" in str(error)
        else:
            raise AssertionError("a stopped daemon answered")
        second = run_mfsd("--socket", str(daemon.socket))
        assert (second.returncode, "another mfsd" in second.stderr) == (1, True)
        daemon.process.send_signal(signal.SIGCONT)
        eventually(client.alive, "the heartbeat coming back")
        assert daemon.client(os.getpid())


def test_a_second_daemon_is_refused_and_harms_nothing(folder: Path) -> None:
    with Daemon(folder) as daemon, Client.attach(str(daemon.socket), timeout_ms=100_000) as client:
        second = run_mfsd("--socket", str(daemon.socket))
        assert second.returncode == 1
        assert second.stderr == (
            f"mfsd: {daemon.socket}: another mfsd (pid {daemon.process.pid}) serves it; "
            "stop that one or choose another place with --socket\n"
        )
        assert client.alive()
        assert daemon.client(os.getpid())


def test_a_file_in_the_way_is_named(folder: Path) -> None:
    path = folder / "run" / "mfsd.sock"
    path.parent.mkdir()
    path.write_text("precious")
    result = run_mfsd("--socket", str(path))
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        f"mfsd: {path}: exists and is not a socket; remove it or choose another place with --socket"
    )
    assert path.read_text() == "precious"


@contextlib.contextmanager
def reading(folder: Path, coordinator: bool) -> Iterator[tuple[subprocess.Popen[str], TextIO, Path]]:
    """An mfsd that reads its configuration, which is what will be written to this pipe."""
    file = folder / "pipe.toml"
    os.mkfifo(file)
    where = ["--coordinator", "--listen", "127.0.0.1:0"] if coordinator else ["--socket", str(folder / "mfsd.sock")]
    command = [sys.executable, "-m", "mfsd.cli.daemon", "--config", str(file), *where]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            with file.open("w") as pipe:  # once it has been opened there, too
                yield process, pipe, file
        finally:
            process.kill()


@pytest.mark.parametrize("coordinator", [False, True])
def test_a_reload_that_is_asked_for_during_the_start_follows_it(folder: Path, coordinator: bool) -> None:
    with reading(folder, coordinator) as (process, pipe, file):
        process.send_signal(signal.SIGHUP)
        file.unlink()
        file.write_text('mode = "observe"\n')
        pipe.close()
        assert process.stderr is not None
        assert any("event=reloaded" in line and "mode" in line for line in process.stderr)


@pytest.mark.parametrize("coordinator", [False, True])
def test_a_termination_signal_during_the_start_ends_it(folder: Path, coordinator: bool) -> None:
    """The first process of a container ignores those that it does not handle."""
    with reading(folder, coordinator) as (process, _, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0


def test_a_reload_takes_what_it_can(folder: Path) -> None:
    with Daemon(folder, patient=False) as daemon, Client.attach(str(daemon.socket), timeout_ms=100_000) as client:
        rules = len(client.rules())
        daemon.config_file.write_text(
            'mode = "observe"\n[arbiter]\nwindow = "5ms"\n[[rule]]\naction = "pass"\nprocess = "etl"\n'
        )
        daemon.process.send_signal(signal.SIGHUP)
        output = daemon.wait_line("event=reloaded")
        assert "applied=mode,rule needs_restart=arbiter.window" in output
        assert client.mode() == 1
        assert len(client.rules()) == rules + 1
        assert client.rules()[0].process == "etl"
        assert daemon.status().daemon.mode == "observe"


def test_a_reload_reads_the_dscps_of_the_policy_file_again(folder: Path) -> None:
    """One edit: the policy file, which configures hosts and switches, too."""
    rule = '[[rule]]\naction = "pass"\nstage = "p2d"\nclass = 1\n'
    with (
        Daemon(folder, marked_with(folder, [46, 34]) + rule, patient=False) as daemon,
        Client.attach(str(daemon.socket), timeout_ms=100_000) as client,
    ):
        assert client.rules()[0].dscp == 34
        marked_with(folder, [46, 18])
        daemon.process.send_signal(signal.SIGHUP)
        assert "applied=wire.policy_file needs_restart=nothing" in daemon.wait_line("event=reloaded")
        assert client.rules()[0].dscp == 18
        (folder / "policy.toml").unlink()
        daemon.process.send_signal(signal.SIGHUP)
        assert "policy.toml: cannot be read" in daemon.wait_line("event=reload-failed")
        assert client.rules()[0].dscp == 18


def test_a_reload_of_a_bad_file_changes_nothing(folder: Path) -> None:
    with (
        Daemon(folder, 'mode = "observe"\n', patient=False) as daemon,
        Client.attach(str(daemon.socket), timeout_ms=100_000) as client,
    ):
        daemon.config_file.write_text('mode = "enforce"\n[arbiter]\nwindow = "2 parsecs"\n')
        daemon.process.send_signal(signal.SIGHUP)
        output = daemon.wait_line("event=reload-failed")
        assert str(daemon.config_file) in output and "arbiter.window = " in output and "2 parsecs" in output
        assert "the old configuration stays in force" in output
        assert (client.mode(), daemon.status().daemon.mode) == (1, "observe")
        daemon.config_file.unlink()
        daemon.process.send_signal(signal.SIGHUP)
        assert "cannot be read" in daemon.wait_line("event=reload-failed", count=2)
        assert daemon.status().daemon.mode == "observe"


def test_the_service_manager_is_notified(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify"))
        manager.settimeout(100)
        environment = {"NOTIFY_SOCKET": str(folder / "notify"), "WATCHDOG_USEC": "20000"}

        def reported(prefix: str) -> str:
            while not (state := manager.recv(4096).decode()).startswith(prefix):
                assert prefix == "WATCHDOG=1" or state == "WATCHDOG=1", (prefix, state)
            return state

        with Daemon(folder, environment=environment) as daemon:
            assert f"MAINPID={daemon.process.pid}" in reported("READY=1")
            reported("WATCHDOG=1")
            daemon.process.send_signal(signal.SIGHUP)
            assert "MONOTONIC_USEC=" in reported("RELOADING=1")
            reported("READY=1")
            daemon.process.send_signal(signal.SIGTERM)
            reported("STOPPING=1")
            assert daemon.wait_end() == 0


def test_a_hung_arbiter_is_not_reported_alive(folder: Path) -> None:
    """The loop of the daemon is well; the thread that permits does not run. The test is the service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify"))
        environment = {"NOTIFY_SOCKET": str(folder / "notify"), "WATCHDOG_USEC": "200000"}

        def silent() -> bool:
            """Ten times as long as the manager waits, so that a slow host is not taken for a hung daemon."""
            manager.settimeout(2.0)
            try:
                return not manager.recv(4096)
            except TimeoutError:
                return True

        def alive() -> bool:
            manager.settimeout(100)
            return any(manager.recv(4096) == b"WATCHDOG=1" for _ in range(100))

        with Daemon(folder, environment=environment, prepare=no_core_file) as daemon:
            assert alive()
            with hung(daemon.process.pid, "mfs-arbiter"):
                assert any(silent() for _ in range(100)), "a hung arbiter was reported alive"
                assert daemon.process.poll() is None
            assert alive(), "it goes on, and says so"
            with hung(daemon.process.pid, "mfs-arbiter") as arbiter:
                daemon.process.send_signal(signal.SIGABRT)  # what systemd sends when WatchdogSec is over
                arbiter.wait_end()
            assert daemon.wait_end() == -signal.SIGABRT
        with Daemon(folder) as successor, Client.attach(str(successor.socket), timeout_ms=100_000) as client:
            assert client.alive()


def no_core_file() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def test_bad_configurations_end_before_anything_is_touched(folder: Path) -> None:
    config = folder / "bad.toml"
    config.write_text("[socket]\nmode = 660\n")
    result = run_mfsd("--config", str(config))
    assert result.returncode == 2
    assert result.stderr == (
        f'mfsd: {config}: socket.mode = 660: not a file mode; write three octal digits as text, for example "0660"\n'
    )
    assert run_mfsd("--config", str(config), "--check-config").stderr == result.stderr
    assert run_mfsd("--config", str(folder / "none.toml")).stderr == (
        f"mfsd: {folder}/none.toml: cannot be read: No such file or directory\n"
    )


def test_a_check_names_all_errors_and_files_that_cannot_be_used(folder: Path) -> None:
    config = folder / "bad.toml"
    config.write_text(
        'mode = "wat"\n[socket]\nmod = "0660"\n[cluster]\ncoordinators = ["x", "a:1", "y"]\n'
        '[[rule]]\nprocess = "a"\n[[rule]]\naction = "hold"\nstage = "control"\n'
    )
    result = run_mfsd("--config", str(config), "--check-config")
    assert result.returncode == 2
    keys = [line.removeprefix(f"mfsd: {config}: ").split(": ")[0] for line in result.stderr.splitlines()]
    assert keys == [
        'mode = "wat"',
        'socket.mod = "0660"',
        'cluster.coordinators[0] = "x"',
        'cluster.coordinators[2] = "y"',
        "rule[0].action",
        'rule[1].stage = "control"',
    ]
    config.write_text('[cluster]\nca = "/nope.pem"\ncertificate = "/nope.crt"\nkey = "/nope.key"\n')
    result = run_mfsd("--config", str(config), "--check-config")
    assert (result.returncode, result.stdout) == (2, "")
    assert "cluster.ca /nope.pem cannot be read: No such file or directory" in result.stderr
    assert "certificate /nope.crt cannot" in result.stderr and "key /nope.key cannot" in result.stderr, "all of them"
    config.write_text('[[rule]]\nprocess = "["\naction = "hold"\nstage = "p2d"\n')
    result = run_mfsd("--config", str(config), "--check-config")
    assert (result.returncode, result.stdout) == (0, f"{config}: good\n")
    assert "warning" in result.stderr and 'rule[0].process = "["' in result.stderr


def test_what_is_for_a_daemon_alone_is_refused_for_a_coordinator(folder: Path) -> None:
    for option in (["--mode", "observe"], ["--socket", str(folder / "x.sock")]):
        result = run_mfsd("--coordinator", *option)
        assert result.returncode == 2 and f"{option[0]} is for a node's daemon" in result.stderr


def test_the_printed_default_passes_its_own_check(folder: Path) -> None:
    config = folder / "default.toml"
    config.write_text(run_mfsd("--print-default-config").stdout)
    result = run_mfsd("--config", str(config), "--check-config")
    assert (result.returncode, result.stdout) == (0, f"{config}: good\n")


def test_a_socket_path_that_is_too_long_is_named(folder: Path) -> None:
    path = folder / ("x" * 120)
    result = run_mfsd("--socket", str(path))
    assert result.returncode == 2
    assert f"--socket {path}: is {len(str(path))} bytes long; a socket path has at most 99" in result.stderr


def test_an_idle_daemon_is_small(folder: Path) -> None:
    with Daemon(folder) as daemon:
        status = Path(f"/proc/{daemon.process.pid}/status").read_text()
        rss_kib = int(status.partition("VmRSS:")[2].split()[0])
        assert rss_kib < RSS_MIB_MAX * 1024
        modules = "import sys, mfsd.cli.daemon, mfsd.node.daemon; print('rich' in sys.modules)"
        assert subprocess.check_output([sys.executable, "-c", modules], text=True) == "False\n"
