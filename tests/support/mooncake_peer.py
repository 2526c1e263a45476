"""A second process with its own Mooncake engine, adapted or stock, whose memory and state a test can read."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
from multiprocessing.connection import Connection
from typing import Any

SIZE_BYTES = 64 << 20


def memory(size_bytes: int = SIZE_BYTES) -> tuple[mmap.mmap, int]:
    """Returns anonymous memory and its address."""
    area = mmap.mmap(-1, size_bytes)
    return area, ctypes.addressof(ctypes.c_char.from_buffer(area))


def started(engine: Any, address: int, protocol: str = "tcp") -> Any:
    """Initializes the engine on loopback, registers the memory, and returns the engine."""
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", protocol, "") == 0
    assert engine.register_memory(address, SIZE_BYTES) == 0
    return engine


def _peer(pipe: Connection, adapted: bool, protocol: str, scripted: bool) -> None:
    if adapted:
        from mooncake_adapter.hook import install
        from mooncake_adapter.process import Process
        from mooncake_adapter.session import Holder
        from tests.support.scripted_session import ScriptedSession

        install(Process(Holder(ScriptedSession)) if scripted else None)  # type: ignore[arg-type]
    from mooncake.engine import TransferEngine

    area, address = memory()
    engine = started(TransferEngine(), address, protocol)
    pipe.send((f"127.0.0.1:{engine.get_rpc_port()}", address))
    while (question := pipe.recv()) is not None:
        if question[0] == "read":
            pipe.send(area[question[1] : question[1] + question[2]])
        elif question[0] == "write":
            area[question[1] : question[1] + len(question[2])] = question[2]
            pipe.send(True)
        elif question[0] == "notifies":
            pipe.send([(one.name, one.msg) for one in engine.get_notifies()])
    os._exit(0)  # the engine's threads never end


class Peer:
    """The other process. Leaving the context ends it."""

    def __init__(self, *, adapted: bool, protocol: str = "tcp", scripted: bool = True) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_peer, args=(theirs, adapted, protocol, scripted), daemon=True)
        self._process.start()
        self.name, self.address = self._ask_raw()

    def _ask_raw(self) -> Any:
        if not self._pipe.poll(30):
            raise AssertionError("the peer does not answer")
        return self._pipe.recv()

    def ask(self, *question: object) -> Any:
        self._pipe.send(question)
        return self._ask_raw()

    def read(self, offset: int, size_bytes: int) -> bytes:
        return bytes(self.ask("read", offset, size_bytes))

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send(None)
        self._process.join(100)
        if self._process.is_alive():
            self._process.kill()
