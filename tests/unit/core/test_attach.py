"""Attaching to what is no daemon, an old daemon or a hostile one ends in one errno, within the timeout."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mfsd import _native
from mfsd._native import Arbiter, Client

Answer = Callable[[socket.socket, bytes], None]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[[Answer], str]]:
    """Listens, and answers the first packet of every connection with the given function."""
    listeners: list[socket.socket] = []

    def listen(answer: Answer) -> str:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = str(tmp_path / f"d{len(listeners)}")
        listener.bind(path)
        listener.listen()
        listeners.append(listener)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    answer(connection, connection.recv(4096))
                    connection.recv(1)  # until the client has had enough

        threading.Thread(target=serve, daemon=True).start()
        return path

    yield listen
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def sealed(size: int, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW, start: bytes = b"") -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    os.pwrite(fd, start, 0)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def with_segment(make: Callable[[], int]) -> Answer:
    def answer(connection: socket.socket, _: bytes) -> None:
        fd, bell = make(), os.eventfd(0)
        socket.send_fds(connection, [_native.welcome_encode(client_id=1)], [fd, bell])
        os.close(fd)
        os.close(bell)

    return answer


def real_segment() -> bytes:
    with Arbiter() as arbiter:
        _, memfd, doorbell = arbiter.client_add()
        os.close(doorbell)
        content = os.pread(memfd, 64, 0)
        os.close(memfd)
    return content


def changed(field: str, value: int, size: int) -> bytes:
    content = bytearray(real_segment())
    offset = _native.LAYOUT[f"header.{field}"]
    content[offset : offset + size] = value.to_bytes(size, "little")
    return bytes(content)


def attach_error(path: str, timeout_ms: int = 100_000) -> tuple[int | None, str]:
    with pytest.raises(OSError) as raised:
        Client.attach(path, timeout_ms=timeout_ms)
    return raised.value.errno, raised.value.strerror or ""


def test_no_daemon(tmp_path: Path) -> None:
    assert attach_error(str(tmp_path / "none")) == (
        errno.ENOENT,
        "no daemon listens on its socket: start mfsd or set MFS_SOCKET",
    )


def test_no_daemon_behind_the_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "dead")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(path)
    assert attach_error(path)[0] == errno.ECONNREFUSED


def test_path_too_long() -> None:
    assert attach_error("/" + "x" * 200)[0] == errno.ENAMETOOLONG


def test_silent_daemon(daemon: Callable[[Answer], str]) -> None:
    assert attach_error(daemon(lambda connection, _: None), timeout_ms=50)[0] == errno.ETIMEDOUT


def test_daemon_that_does_not_accept(tmp_path: Path) -> None:
    path = str(tmp_path / "full")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
            first.connect(path)  # fills the backlog
            assert attach_error(path, timeout_ms=50)[0] == errno.ETIMEDOUT


@pytest.mark.parametrize("error", [errno.EACCES, errno.EUSERS, errno.ENOSPC, errno.EPROTO])
def test_refusal_keeps_its_errno(daemon: Callable[[Answer], str], error: int) -> None:
    path = daemon(lambda connection, _: connection.sendall(_native.welcome_encode(error=-error)))
    assert attach_error(path)[0] == error


@pytest.mark.parametrize(
    "packet",
    [
        b"HTTP/1.1 400 Bad Request",
        b"\0" * _native.WELCOME_BYTES,
        _native.welcome_encode(client_id=1),  # without descriptors
        _native.welcome_encode(client_id=1) + b"x",
        _native.welcome_encode(client_id=1, major=_native.ABI_MAJOR + 1),
        _native.welcome_encode(error=-2_000_000_000),
    ],
)
def test_foreign_answers(daemon: Callable[[Answer], str], packet: bytes) -> None:
    assert attach_error(daemon(lambda connection, _: connection.sendall(packet)))[0] == errno.EPROTO


def test_hung_up_at_once(daemon: Callable[[Answer], str]) -> None:
    path = daemon(lambda connection, _: connection.shutdown(socket.SHUT_RDWR))
    assert attach_error(path)[0] in (errno.ECONNRESET, errno.EPIPE)


@pytest.mark.parametrize(
    "make",
    [
        lambda: sealed(4096, start=real_segment()),  # truncated: reading it whole would be a SIGBUS
        lambda: sealed(_native.SEGMENT_BYTES, seals=0, start=real_segment()),  # could be truncated later
        lambda: sealed(_native.SEGMENT_BYTES),  # no header
        lambda: sealed(_native.SEGMENT_BYTES, start=changed("major", _native.ABI_MAJOR + 1, 2)),
        lambda: sealed(_native.SEGMENT_BYTES, start=changed("header_bytes", 128, 4)),
        lambda: sealed(_native.SEGMENT_BYTES, start=changed("segment_bytes", 4096, 8)),
    ],
    ids=["truncated", "unsealed", "empty", "major", "header", "size"],
)
def test_segments_that_cannot_be_trusted(daemon: Callable[[Answer], str], make: Callable[[], int]) -> None:
    assert attach_error(daemon(with_segment(make)))[0] == errno.EPROTO


def test_a_daemon_that_sends_without_end_is_not_listened_to_without_end(daemon: Callable[[Answer], str]) -> None:
    def flood(connection: socket.socket, hello: bytes) -> None:
        with_segment(lambda: sealed(_native.SEGMENT_BYTES, start=real_segment()))(connection, hello)
        with contextlib.suppress(OSError):
            while True:
                connection.send(bytes(16))

    with Client.attach(daemon(flood), timeout_ms=500) as client:
        for _ in range(3):
            with pytest.raises(OSError) as raised:
                client.nic("rdma0")
            assert raised.value.errno in (errno.EPROTO, errno.ETIMEDOUT)


def test_the_good_segment_is_taken(daemon: Callable[[Answer], str]) -> None:
    path = daemon(with_segment(lambda: sealed(_native.SEGMENT_BYTES, start=real_segment())))
    with Client.attach(path, timeout_ms=100_000) as client:
        assert not client.alive()  # no arbiter writes heartbeats
        with pytest.raises(OSError, match="not connected") as raised:
            client.submit(1, stage=3)
        assert raised.value.errno == errno.ENOTCONN


def test_a_late_answer_names_no_other_nic(daemon: Callable[[Answer], str]) -> None:
    """The first question is answered only when the second is there; each NIC's index is the number of its question."""

    def answer(connection: socket.socket, packet: bytes) -> None:
        with_segment(lambda: sealed(_native.SEGMENT_BYTES, start=real_segment()))(connection, packet)
        connection.recv(4096)
        for number in itertools.count(1):
            if not connection.recv(4096):
                return
            for index in range(0 if number == 1 else number, number + 1):
                connection.sendall(_native.nic_reply_encode(nic=index))

    with Client.attach(daemon(answer), timeout_ms=500) as client:
        with pytest.raises(TimeoutError):
            client.nic("late")
        for number in itertools.count(1):
            with contextlib.suppress(TimeoutError):  # a busy machine
                assert client.nic(f"nic{number}") == number
                break


IN_A_PROGRAM = """
import os, sys
from mfsd._native import Client

def opened():
    return {int(n) for n in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{n}")}

before = opened()
"""


def in_a_program(code: str, path: str) -> str:
    """What a program of its own says, whose descriptors are no one else's."""
    command = [sys.executable, "-c", IN_A_PROGRAM + code, path]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout


def test_the_place_of_a_standard_descriptor_stays_free(daemon: Callable[[Answer], str]) -> None:
    """Else the program's output goes to the session once it is opened again, and is closed with it."""
    code = """
output = os.dup(1)
for number in 0, 1, 2:
    os.close(number)
with Client.attach(sys.argv[1], timeout_ms=100_000):
    os.write(output, repr(sorted(opened() & {0, 1, 2})).encode())
"""
    good = daemon(with_segment(lambda: sealed(_native.SEGMENT_BYTES, start=real_segment())))
    assert in_a_program(code, good) == "[]"


def test_files_that_have_taken_the_place_of_the_sessions_are_left_alone(daemon: Callable[[Answer], str]) -> None:
    """The program has closed all that it does not know, as one that becomes a daemon does."""
    code = """
client = Client.attach(sys.argv[1], timeout_ms=100_000)
own, there = opened() - before, os.eventfd(0)
for number in own:
    os.dup2(there, number)
print(len(own), client.hung_up())
try:
    client.nic("rdma0")
except OSError as error:
    print(error.errno)
client.detach()
print(own <= opened())
"""
    good = daemon(with_segment(lambda: sealed(_native.SEGMENT_BYTES, start=real_segment())))
    assert in_a_program(code, good) == f"2 True\n{errno.ENOTCONN}\nTrue\n"


@pytest.mark.parametrize("free", [0, 1, 2], ids=["socket", "segment", "doorbell"])
def test_a_program_without_free_descriptors_is_told_so(daemon: Callable[[Answer], str], free: int) -> None:
    code = f"""
import resource

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
filled = []
try:
    while True:
        filled.append(os.dup(1))
except OSError:
    pass
for number in filled[:{free}]:
    os.close(number)
try:
    Client.attach(sys.argv[1], timeout_ms=100_000)
except OSError as error:
    print(error.errno, error.strerror)
"""
    good = daemon(with_segment(lambda: sealed(_native.SEGMENT_BYTES, start=real_segment())))
    reason = "this program has no free descriptor for its session: raise its limit of open files"
    assert in_a_program(code, good) == f"{errno.EMFILE} {reason}\n"


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_nothing_leaks(daemon: Callable[[Answer], str], eventually: Callable[..., object]) -> None:
    bad = daemon(with_segment(lambda: sealed(4096)))
    good = daemon(with_segment(lambda: sealed(_native.SEGMENT_BYTES, start=real_segment())))
    attach_error(bad)
    Client.attach(good, timeout_ms=100_000).detach()
    settled = open_files()
    for _ in range(20):
        attach_error(bad)
        Client.attach(good, timeout_ms=100_000).detach()
    eventually(lambda: open_files() <= settled, "the server's side has closed, too")
