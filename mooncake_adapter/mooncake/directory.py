"""How two adapted processes find each other's lanes: one line of JSON asked, one answered.

An engine that listens on port P for Mooncake's handshakes has its lane directory on port P + 10000 of the same host.
A sender asks for the lane of its class; the answer names its ports, or none yet while it is being opened. A
process without an adapter answers nothing there, and is sent to as ever.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

import msgspec

VERSION = 1
PORT_OFFSET = 10_000
LINE_BYTES_MAX = 512
TIMEOUT_S = 1.0
PAUSE_S = 0.1
"""After which it is tried again to take a connection, where none could be had: no descriptor was left."""


class Question(msgspec.Struct):
    mfs_lanes: int
    engine: int
    """Port of the engine that the asker means; another's directory may have taken our port."""
    wire_class: int


class LanePorts(msgspec.Struct, frozen=True):
    """Where a lane's engine listens; data_port 0: data does not go over TCP."""

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
    """Host and port of a Mooncake segment name. ValueError where it has no port."""
    host, _, port = peer.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{peer!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def own_host(name: str) -> str:
    """Host of the name that an engine gives itself, with or without a port. One with several colons and no brackets is
    an IPv6 address, whatever it ends with."""
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
    """The lane of that engine, None while it is not open yet. OSError or msgspec.MsgspecError: it has no adapter."""
    with socket.create_connection((host, port_of(rpc_port)), timeout=TIMEOUT_S) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.sendall(msgspec.json.encode(Question(VERSION, rpc_port, wire_class)) + b"\n")
        answer = msgspec.json.decode(_line(connection), type=Answer)
    if answer.mfs_lanes != VERSION or answer.engine != rpc_port:
        raise msgspec.ValidationError("the lane directory of another engine")
    return answer.lane


class Directory:
    """Answers for one engine until it is closed. OSError where the port is taken."""

    def __init__(self, host: str, rpc_port: int, lane: Callable[[int], LanePorts | None]) -> None:
        """``lane`` answers for a class, None while it is not open."""
        self._engine, self._lane = rpc_port, lane
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._closed = threading.Event()
        self._listener = socket.create_server((host, port_of(rpc_port)), family=family)
        self._thread = threading.Thread(target=self._serve, name="mfs-lanes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._closed.wait(PAUSE_S):
                    return
                continue
            with connection, contextlib.suppress(Exception):
                connection.settimeout(TIMEOUT_S)
                question = msgspec.json.decode(_line(connection), type=Question)
                lane = self._lane(question.wire_class) if question.engine == self._engine else None
                connection.sendall(msgspec.json.encode(Answer(VERSION, self._engine, lane)) + b"\n")
