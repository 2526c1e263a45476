"""Who connects, and when that process ends: real processes, real sockets."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mfsd.node import peer as peers
from mfsd.node.peer import identified, open_pidfd, peer_of, printable, process_name

CLIENT = """
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
sys.stdin.read()
"""


@pytest.fixture(params=["with the connection", "by pid"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "by pid":
        monkeypatch.setattr(peers, "SO_PEERPIDFD", 9999)  # as on a kernel before 6.5


def test_the_pidfd_tells_the_end_of_the_process(tmp_path: Path, way: None) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        process = subprocess.Popen([sys.executable, "-c", CLIENT, str(tmp_path / "s")], stdin=subprocess.PIPE)
        connection, _ = listener.accept()
        peer = peer_of(connection)
        assert (peer.pid, peer.uid) == (process.pid, os.geteuid())
        assert {os.getegid(), *os.getgroups()} == set(peer.gids)
        pidfd = open_pidfd(connection, peer.pid, time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        assert select.select([pidfd], [], [], 0)[0] == []
        process.kill()
        assert select.select([pidfd], [], [], 10)[0] == [pidfd]
        process.wait()
        os.close(pidfd)
        connection.close()


def test_a_process_younger_than_the_connection_is_not_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "SO_PEERPIDFD", 9999)
    one, other = socket.socketpair()
    with one, other:
        before_any_process_ns = 0
        with pytest.raises(ProcessLookupError, match=f"process {os.getpid()} ended while it attached"):
            open_pidfd(one, os.getpid(), before_any_process_ns)


def test_a_process_that_has_ended_is_not_taken_for_another_with_its_pid(tmp_path: Path, way: None) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        process = subprocess.Popen([sys.executable, "-c", CLIENT, str(tmp_path / "s")], stdin=subprocess.PIPE)
        connection, _ = listener.accept()
        boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        peer, pidfd = identified(connection, peer_of(connection), boot_ns)
        assert peer.pid == process.pid
        os.close(pidfd)
        process.communicate(b"")
        with pytest.raises(ProcessLookupError):
            identified(connection, peer, boot_ns)
        connection.close()


def test_names_cannot_disturb_a_terminal() -> None:
    assert printable("a\x1b[2Jb\u202e\n") == "a?[2Jb??"
    assert process_name(os.getpid()) == Path("/proc/self/comm").read_text().strip()
    assert process_name(2**22 + 1) == ""
