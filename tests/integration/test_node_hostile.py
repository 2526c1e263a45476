"""Whatever one client does to the daemon, another keeps its service."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mfsd import _native
from mfsd._native import Client, HelloKind, Stage
from mfsd.node.control import ErrorReply, StatusReply, StatusRequest, decode_reply, encode
from tests.support.daemon import Daemon
from tests.support.waiting import eventually
from tests.support.wire import RawClient

SEED = 20240607


class Bystander:
    """A well-behaved client; :meth:`works` runs a task through it."""

    def __init__(self, daemon: Daemon) -> None:
        self.client = Client.attach(str(daemon.socket), process="bystander", timeout_ms=100_000)
        self.nic = self.client.nic("soft0", 7, 125_000_000)

    def works(self) -> bool:
        task = self.client.submit(1000, stage=Stage.P2D, nic=self.nic)
        eventually(lambda: self.client.wait(100_000_000) and self.client.permits(), "the bystander's permit")
        self.client.complete(task)
        return True


@pytest.fixture
def daemon(folder: Path) -> Iterator[Daemon]:
    with Daemon(folder) as running:
        yield running


@pytest.fixture
def bystander(daemon: Daemon) -> Iterator[Bystander]:
    one = Bystander(daemon)
    yield one
    assert one.works()
    one.client.detach()
    assert daemon.process.poll() is None
    assert not [line for line in daemon.lines if "event=defect" in line]


def test_random_packets_close_their_own_connection(daemon: Daemon, bystander: Bystander) -> None:
    generator = random.Random(SEED)
    good = _native.hello_encode(HelloKind.ATTACH)
    for _ in range(60):
        packet = generator.randbytes(generator.choice([1, 16, len(good) - 1, len(good), len(good) + 1, 4000]))
        with RawClient(daemon.socket) as raw:
            raw.socket.send(packet)
            assert raw.closed()
    assert bystander.works()
    assert len(daemon.status().clients) == 1


def test_random_packets_after_the_welcome(daemon: Daemon, bystander: Bystander) -> None:
    generator = random.Random(SEED)
    hello = _native.hello_encode(HelloKind.ATTACH)
    packets = [
        hello,
        _native.hello_encode(HelloKind.NIC, nic_name=""),
        _native.hello_encode(99, nic_name="soft0"),
        hello[:50],
        *(generator.randbytes(len(hello)) for _ in range(10)),
    ]
    for packet in packets:
        with RawClient(daemon.socket) as raw:
            assert raw.attach().error == 0
            raw.socket.send(packet)
            assert raw.closed()
    daemon.wait_clients(1)


def test_descriptors_sent_along_are_not_taken(daemon: Daemon, bystander: Bystander, tmp_path: Path) -> None:
    daemon.wait_clients(1)  # those of earlier tests are gone
    before = daemon.descriptors()
    sent_path = tmp_path / "sent"
    sent_path.touch()
    with sent_path.open("rb") as sent, RawClient(daemon.socket) as raw:
        assert has_open(os.getpid(), sent_path)
        hello = _native.hello_encode(HelloKind.NIC, nic_name="soft0", nic_guid=7)
        assert raw.attach().error == 0
        for _ in range(20):
            socket.send_fds(raw.socket, [hello], [sent.fileno()] * 10)
            raw.socket.recv(4096)
        assert not has_open(daemon.process.pid, sent_path)
    daemon.wait_clients(1)
    eventually(lambda: daemon.descriptors() <= before)


def has_open(pid: int, path: Path) -> bool:
    """Whether one of the process's descriptors is of the file."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if link.readlink() == path:
                return True
    return False


def test_silence_is_not_waited_for(daemon: Daemon, bystander: Bystander) -> None:
    silent = [RawClient(daemon.socket) for _ in range(20)]
    assert bystander.works()
    Client.attach(str(daemon.socket), timeout_ms=100_000).detach()
    assert all(raw.closed() for raw in silent)
    for raw in silent:
        raw.close()
    assert "waited_s=1" in daemon.wait_line("event=silent-client")


@pytest.mark.parametrize(("reads", "why"), [(True, "why=flood"), (False, "why=")])
def test_a_flood_of_packets_ends_the_flooder(daemon: Daemon, bystander: Bystander, reads: bool, why: str) -> None:
    hello = _native.hello_encode(HelloKind.NIC, nic_name="soft0", nic_guid=7)
    with RawClient(daemon.socket) as raw:
        raw.attach()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(100_000):
                raw.socket.send(hello)
                if reads and raw.socket.recv(4096) == b"":
                    raise ConnectionResetError
    daemon.wait_clients(1)
    assert why in daemon.wait_line("event=ended")


def test_a_flood_of_connections_is_refused_by_user(folder: Path) -> None:
    with Daemon(folder, "[socket]\nattaches_per_s = 5\n") as daemon:
        errors = []
        for _ in range(12):
            with RawClient(daemon.socket) as raw:
                errors.append(raw.attach().error)
        assert errors[0] == 0
        assert -errno.EUSERS in errors
        assert daemon.status().daemon.refused["EUSERS"] >= 1


def test_too_many_nics_are_refused_and_existing_ones_stay(daemon: Daemon, bystander: Bystander) -> None:
    with Client.attach(str(daemon.socket), timeout_ms=100_000) as hoarder:
        with pytest.raises(OSError) as caught:
            for n in range(_native.NICS_MAX + 1):
                hoarder.nic(f"fake{n}", n)
        assert caught.value.errno == errno.ENOSPC
        assert len(daemon.status().nics) == _native.NICS_MAX
        assert f"{_native.NICS_MAX} NICs are known" in daemon.wait_line("event=nic-refused")
        task = hoarder.submit(1000, stage=Stage.P2D, nic=_native.NICS_MAX - 1)
        eventually(lambda: hoarder.wait(100_000_000) and hoarder.permits(), "a permit on the last NIC")
        hoarder.complete(task)
        page = eventually(hoarder.outlook)
        assert len(page.ports) == 2 * _native.NICS_MAX


def test_an_older_library_gets_no_index_that_it_does_not_know(daemon: Daemon, bystander: Bystander) -> None:
    minor = _native.NICS_MINOR - 1
    with RawClient(daemon.socket) as raw:
        assert raw.attach(_native.hello_encode(HelloKind.ATTACH, minor=minor)).error == 0
        answers = []
        for n in range(_native.NICS_FIRST):
            raw.socket.send(_native.hello_encode(HelloKind.NIC, minor=minor, nic_name=f"more{n}"))
            answers.append(_native.nic_reply_decode(raw.socket.recv(4096)))
    assert [a.error for a in answers] == [0] * (_native.NICS_FIRST - 1) + [-errno.ENOSPC], "the bystander has one"
    assert "update its library" in daemon.wait_line("event=nic-refused")


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_all_over_the_segment(daemon: Daemon, bystander: Bystander, seed: int) -> None:
    generator = random.Random(seed)
    with RawClient(daemon.socket) as raw:
        raw.attach()
        assert raw.segment is not None
        raw.socket.send(_native.hello_encode(HelloKind.NIC, nic_name="soft0", nic_guid=7))
        raw.socket.recv(4096)
        for _ in range(3):
            raw.segment[:] = generator.randbytes(len(raw.segment))
            assert bystander.works()
        hostile = eventually(lambda: next((c for c in daemon.status().clients if c.process == "raw"), None))
        assert hostile.pid == os.getpid()
        assert isinstance(daemon.status(), StatusReply)
    daemon.wait_clients(1)


def test_a_segment_cannot_be_truncated_under_the_daemon(daemon: Daemon, bystander: Bystander) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(daemon.socket))
        connection.send(_native.hello_encode(HelloKind.ATTACH))
        _, (memfd, doorbell), _, _ = socket.recv_fds(connection, 4096, 2)
        for size in (0, 1 << 30):
            with pytest.raises(PermissionError):
                os.ftruncate(memfd, size)
        os.close(memfd)
        os.close(doorbell)


def test_garbage_on_the_control_socket(daemon: Daemon, bystander: Bystander) -> None:
    def control() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(100)
        connection.connect(str(daemon.control))
        return connection

    with control() as connection, connection.makefile("rb") as replies:
        for line in (b"\n", b"\xff\n", b"[]\n", b'{"version":7}\n', b"[" * 50_000 + b"\n"):
            connection.sendall(line)
            assert isinstance(decode_reply(replies.readline()), ErrorReply), line
        connection.sendall(encode(StatusRequest()))  # and the connection is still good
        assert isinstance(decode_reply(replies.readline()), StatusReply)
    with control() as connection, pytest.raises((BrokenPipeError, ConnectionResetError)):
        while True:  # a line without end
            connection.sendall(b"x" * 65536)
    idle = [control() for _ in range(100)]
    assert daemon.answers(), "idle connections keep no client out"
    for connection in idle:
        connection.close()
