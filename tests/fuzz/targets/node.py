"""The daemon's sockets: a whole daemon in this process gets the inputs while an honest client is served."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from mfsd import _native
from mfsd._native import Client, HelloKind, Stage
from mfsd.node.address import Address, control_beside
from mfsd.node.control import (
    ErrorReply,
    ExplainRequest,
    ModeRequest,
    ProtocolError,
    ReloadRequest,
    RulesRequest,
    StatusReply,
    StatusRequest,
    TraceRequest,
    decode_reply,
    decode_request,
    encode,
)
from mfsd.node.control_client import ask
from mfsd.node.daemon import Daemon
from mfsd.node.log import Log
from mfsd.node.notify import Notifier
from mfsd.node.options import Options
from tests.fuzz.inputs import BETWEEN, messages

Check = Callable[[bytes], None]

ANSWER_S = 100.0
"""Far above what an answer takes; reaching it is a hang."""
CONFIG = '[socket]\nattaches_per_s = 10000\nclients_per_uid = 256\n[arbiter]\nheartbeat = "10ms"\nstale_after = "10s"\n'
SPARE_DESCRIPTORS = 64
"""The daemon may hold so many more for a moment, while it takes leave of connections."""


class HereDaemon:
    """A daemon on a thread of this process, so that a fuzzer sees which code an input reaches."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "run" / "mfsd.sock"
        self.control = control_beside(self.socket)
        config_file = folder / "mfsd.toml"
        config_file.write_text(CONFIG)
        self._log_file = folder / "log"
        self._fd = os.open(self._log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._options = Options(config_file=config_file, socket=self.socket)
        self._loop = asyncio.new_event_loop()
        # signals are for a process's main thread, which is the fuzzer's here
        self._loop.add_signal_handler = lambda *_: None  # type: ignore[method-assign]
        self._address = Address(self.socket, self.control)
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)

        @contextlib.contextmanager
        def ready(_daemon: Daemon) -> Iterator[None]:
            self._ready.set()
            yield

        daemon = Daemon(
            self._options, self._options.configuration(), self._address, Log("info", self._fd), Notifier({}), [ready]
        )
        self._task = self._loop.create_task(daemon.run())
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)

    def __enter__(self) -> HereDaemon:
        self._thread.start()
        assert self._ready.wait(ANSWER_S)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._task is not None
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(ANSWER_S)
        self._address.release()
        os.close(self._fd)

    def status(self) -> StatusReply:
        reply = ask(self.control, StatusRequest(), ANSWER_S)
        assert isinstance(reply, StatusReply)
        return reply

    def check_log(self) -> None:
        """An unexpected exception costs one event, but it is a defect."""
        with self._log_file.open("r+") as lines:
            for line in lines:
                assert "event=defect" not in line and "event=control-failed" not in line, line
                assert line.rstrip("\n").isprintable(), line
            lines.truncate(0)


class Bystander:
    """An honest client of the same daemon."""

    def __init__(self, path: Path) -> None:
        self.client = Client.attach(str(path), process="bystander", timeout_ms=100_000)
        self.nic = self.client.nic("soft0", 7, 125_000_000)

    def check(self) -> None:
        task = self.client.submit(1000, stage=Stage.P2D, nic=self.nic)
        for _ in range(1000):
            if self.client.wait(100_000_000) and self.client.permits():
                self.client.complete(task)
                return
        raise AssertionError("the bystander waits for a permit")


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


# ---- the attach socket ---------------------------------------------------------------------------
# A message of the input is a byte that says on which of four connections, and with how many descriptors, the rest of it
# is sent.

HELLO = _native.hello_encode(HelloKind.ATTACH, process="fuzz")
NIC = _native.hello_encode(HelloKind.NIC, nic_name="soft0", nic_guid=7, nic_rate_bytes_per_s=125_000_000)
OTHER = _native.hello_encode(HelloKind.NIC, nic_name="soft1", nic_guid=8)

HANDSHAKES = (
    b"\x00" + HELLO + BETWEEN + b"\x00" + NIC + BETWEEN + b"\x00" + OTHER,
    b"\x01" + HELLO + BETWEEN + b"\x02" + HELLO + BETWEEN + b"\x01" + NIC + BETWEEN + b"\x82" + NIC,
    b"\x40" + HELLO + BETWEEN + b"\x40" + NIC,
    b"\x03" + NIC + BETWEEN + b"\x03" + HELLO,
    b"\x01" + HELLO + BETWEEN + b"\x01" + HELLO,
    b"\x01" + HELLO[:64] + BETWEEN + b"\x02" + HELLO + HELLO + BETWEEN + b"\x00",
)


def _send(connections: dict[int, socket.socket], path: Path, message: bytes) -> None:
    place, packet = message[0], message[1:]
    one = connections.get(place & 3)
    if one is None:
        one = connections[place & 3] = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one.settimeout(ANSWER_S)
        one.connect(str(path))
    try:
        if place & 0xC0:
            socket.send_fds(one, [packet or b"\0"], [0] * (1 if place & 0x40 else 200))
        else:
            one.send(packet)
        reply, given, _, _ = socket.recv_fds(one, 4096, 2)
    except OSError as error:
        assert error.errno in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EMSGSIZE), error
        reply, given = b"", []
    for fd in given:
        os.close(fd)
    if not reply:
        connections.pop(place & 3).close()
    elif len(given) == 2:
        assert _native.welcome_decode(reply).error == 0


@contextlib.contextmanager
def handshake(folder: Path) -> Iterator[Check]:
    with HereDaemon(folder) as daemon:
        bystander = Bystander(daemon.socket)
        held = descriptors()

        def check(data: bytes) -> None:
            connections: dict[int, socket.socket] = {}
            for message in messages(data)[:40]:
                if message:
                    _send(connections, daemon.socket, message)
            for one in connections.values():
                one.close()
            bystander.check()
            assert len(daemon.status().clients) <= 8
            assert descriptors() <= held + SPARE_DESCRIPTORS
            daemon.check_log()

        yield check
        bystander.client.detach()


# ---- the control socket --------------------------------------------------------------------------

REQUESTS = (
    *(encode(r) for r in (StatusRequest(), RulesRequest(), ReloadRequest(), TraceRequest(), TraceRequest(limit=0))),
    *(
        encode(r)
        for r in (ModeRequest("observe"), ModeRequest("enforce"), ExplainRequest("1:2"), ExplainRequest("1:2:3"))
    ),
    encode(StatusRequest()) + encode(ExplainRequest("0:0")) + encode(TraceRequest(limit=-5)),
    b'{"version":2,"request":"status"}\n',
)


@contextlib.contextmanager
def control(folder: Path) -> Iterator[Check]:
    """Requests that can be read are answered, one line each, in order; a mistake is named."""
    with HereDaemon(folder) as daemon:
        bystander = Bystander(daemon.socket)

        def check(data: bytes) -> None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(ANSWER_S)
                connection.connect(str(daemon.control))
                lines = data.split(b"\n")
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.sendall(data)
                    connection.shutdown(socket.SHUT_WR)
                    answers = connection.makefile("rb").read().splitlines()
                    if all(len(line) < 60_000 for line in lines):
                        assert len(answers) == len(lines) - (not lines[-1])
                    for answer in answers:
                        reply = decode_reply(answer)
                        if isinstance(reply, ErrorReply):
                            assert reply.message.isprintable(), reply
            daemon.status()
            bystander.check()
            daemon.check_log()

        yield check
        bystander.client.detach()


REPLIES: tuple[bytes, ...] = (
    b'{"reply":"error","code":"denied","message":"no"}',
    b'{"reply":"mode","mode":"observe","before":"enforce"}',
    b'{"reply":"reload","config_file":null,"applied":["mode"],"needs_restart":[]}',
    b'{"reply":"rules","rules":[{"source":"built-in","library":"","process":"","peer":"","role":"any","action":"pass",'
    b'"stage":"control","dscp":null,"set_role":"any"}]}',
)


@contextlib.contextmanager
def replies(folder: Path) -> Iterator[Check]:
    """What mfsctl reads, which may come from another version or from another program; and what the daemon reads."""

    def check(data: bytes) -> None:
        for decode in (decode_reply, decode_request):
            try:
                decode(data)
            except ProtocolError as error:
                assert str(error).isprintable(), error

    yield check
