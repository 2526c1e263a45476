"""How two adapted processes find each other's lanes: one line of JSON as the question, one as the answer.

An engine that listens on port P for Mooncake's handshakes has its lane directory on port P + 10000 of the same host. A
sender asks for the lane of a class. The answer has the ports of that lane, or none while it is being opened. A process
without an adapter does not answer; transfers to it go as without MFS.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Callable

import msgspec

VERSION = 1
PORT_OFFSET = 10_000
LINE_BYTES_MAX = 512
TIMEOUT_S = 1.0
PAUSE_S = 0.1
"""Pause before accept() is tried again after it failed for want of a file descriptor."""
RETRY_S = 1.0
"""Pause before a port that another process had is tried again. Peers without an answer ask less often."""


class Question(msgspec.Struct):
    mfs_lanes: int
    engine: int
    """Port of the engine that the sender means; the directory of another engine may have taken our port."""
    wire_class: int


class LanePorts(msgspec.Struct, frozen=True):
    """Where the engine of a lane listens. data_port 0: its data does not go over TCP."""

    rpc_port: int
    data_port: int = 0


class Answer(msgspec.Struct):
    mfs_lanes: int
    engine: int
    lane: LanePorts | None = None


def port_of(rpc_port: int) -> int:
    port = rpc_port + PORT_OFFSET
    return port if port < 65536 else port - 2 * PORT_OFFSET


def split(peer: str) -> tuple[str, int]:
    """Splits a Mooncake segment name into host and port. Raises ValueError if it has no port."""
    host, _, port = peer.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{peer!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def own_host(name: str) -> str:
    """Returns the host of the name that an engine gives itself, with or without a port. A name with several colons and
    no brackets is an IPv6 address, whatever it ends with."""
    host, _, port = name.rpartition(":")
    named_port = host and port.isdigit() and (":" not in host or host.endswith("]"))
    return (host if named_port else name).strip("[]")


def join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _line(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n") and len(data) < LINE_BYTES_MAX:
        part = connection.recv(LINE_BYTES_MAX)
        if not part:
            break
        data += part
    return data


def ask(host: str, rpc_port: int, wire_class: int) -> LanePorts | None:
    """Asks an engine for its lane of a class; None while that is not open. Raises OSError or msgspec.MsgspecError if
    the engine has no adapter."""
    with socket.create_connection((host, port_of(rpc_port)), timeout=TIMEOUT_S) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.sendall(msgspec.json.encode(Question(VERSION, rpc_port, wire_class)) + b"\n")
        answer = msgspec.json.decode(_line(connection), type=Answer)
    if answer.mfs_lanes != VERSION or answer.engine != rpc_port:
        raise msgspec.ValidationError("the lane directory belongs to another engine")
    return answer.lane


class Directory:
    """Answers for one engine until it is closed. While another process has the port it waits for the port to become
    free. Raises OSError if the host's address cannot be used."""

    def __init__(self, host: str, rpc_port: int, lane: Callable[[int], LanePorts | None]) -> None:
        """``lane`` returns the ports for a class, or None while its lane is not open."""
        self._engine, self._lane = rpc_port, lane
        self._address = host, port_of(rpc_port)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._listener = self._listen()
        self._thread = threading.Thread(target=self._serve, name="mfs-lanes", daemon=True)
        self._thread.start()

    @property
    def taken(self) -> bool:
        """Whether another process still has the port."""
        return self._listener is None

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            listener = self._listener
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
            listener.close()

    def _listen(self) -> socket.socket | None:
        """Returns None while another process has the port."""
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        try:
            return socket.create_server(self._address, family=family)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return None

    def _wait_for_port(self) -> socket.socket | None:
        """Returns None when the directory is closed before the port is free."""
        while not self._closed.wait(RETRY_S):
            with self._lock, contextlib.suppress(OSError):
                if not self._closed.is_set():
                    self._listener = self._listen()
            if self._listener is not None:
                break
        return self._listener

    def _serve(self) -> None:
        listener = self._listener or self._wait_for_port()
        while listener is not None:
            try:
                connection, _ = listener.accept()
            except OSError:
                if self._closed.wait(PAUSE_S):
                    return
                continue
            with connection, contextlib.suppress(Exception):
                connection.settimeout(TIMEOUT_S)
                question = msgspec.json.decode(_line(connection), type=Question)
                lane = self._lane(question.wire_class) if question.engine == self._engine else None
                connection.sendall(msgspec.json.encode(Answer(VERSION, self._engine, lane)) + b"\n")
