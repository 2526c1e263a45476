"""Lanes: one engine for each class on the wire, opened when a class is first used. No transfer waits for that.

A transfer goes through a lane only when that lane is open at both ends. Until then, and to peers without an adapter, it
goes through the engine that the program made. A message therefore never changes lane.
"""

from __future__ import annotations

import ctypes
import math
import queue
import socket
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from mfsd.client.shim import ForeignShimError, Shim
from mooncake_adapter.mooncake import marking
from mooncake_adapter.mooncake.directory import Directory, LanePorts, ask, join, own_host, port_of, split
from mooncake_adapter.session import Session
from mooncake_adapter.warn_once import WarnOnce

P2P = "P2PHANDSHAKE"
OPEN_TRIES, OPEN_PAUSE_S = 100, 0.05
AGAIN_S = 10.0
"""How long a peer without a lane is not asked again."""
SCRATCH_BYTES = 4096
CONNECTIONS = 16
"""Number of concurrent one-byte reads, which makes Mooncake open all its connections to a peer."""
_initializing = threading.Lock()


def shim_present() -> bool:
    """Whether libmfs_shim.so is preloaded, which marks queue pairs. False if its version is another."""
    try:
        return Shim.find() is not None
    except ForeignShimError:
        return False


@dataclass(frozen=True)
class Lane:
    """One engine, whose traffic carries one class."""

    wire_class: int
    engine: Any
    ports: LanePorts


@dataclass(frozen=True)
class Setting:
    """How the program initialized its engine, so that a lane is initialized in the same way."""

    arguments: tuple[str, ...]
    """The arguments of initialize(); the third is the protocol."""
    method: str
    host: str
    tcp: bool


class Lanes:
    """The lanes of one engine."""

    def __init__(self, base: type, engine: Any, session: Session, wire_class: int, once: WarnOnce) -> None:
        """``wire_class`` is the class of the program's own engine."""
        self._base, self._engine = base, weakref.ref(engine)
        self._session, self._once = session, once
        self.wire_class = wire_class
        self._setting: Setting | None = None
        self._open: dict[int, Lane] = {}
        self._memory: dict[int, tuple[int, str]] = {}
        self._routes: dict[tuple[str, int], tuple[Any, str]] = {}
        self.changed: Callable[[], None] = lambda: None
        """Called after the answers of known() and marked() have changed."""
        self._adapted: frozenset[str] = frozenset()
        self._below: bool | None = None
        self._asked: dict[tuple[str, int], float] = {}
        """Time until which a peer's lane is not asked for again; infinite while the question is queued."""
        self._opening: set[int] = set()
        self._lock = threading.Lock()
        self._wanted: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self._directory: Directory | None = None
        self._scratch = ctypes.create_string_buffer(SCRATCH_BYTES)

    # ---- set-up ------------------------------------------------------------------------------------------------------

    def initialize(self, engine: Any, method: str, arguments: tuple[str, ...], tcp: bool) -> int:
        """Initializes the program's own engine in its class; returns Mooncake's result."""
        result, ports = self._initialize(engine, method, arguments, self.wire_class, tcp)
        if result != 0 or arguments[1] != P2P:
            return result  # with a metadata server an engine has one name, and each lane would need its own
        if not tcp and not shim_present():
            return result
        host = own_host(arguments[0])
        self._setting = Setting(arguments, method, host, tcp)
        self._open[self.wire_class] = Lane(self.wire_class, None, ports)
        try:
            self._directory = Directory(host, ports.rpc_port, self._answer)
            weakref.finalize(engine, self._directory.close)
            if self._directory.taken:
                self._once.warn(
                    "directory",
                    "another process has port %d, where the lane directory of this engine belongs; peers send to it "
                    "unmarked until the port is free",
                    port_of(ports.rpc_port),
                )
        except OSError as error:
            self._once.warn(
                "directory",
                "cannot open the lane directory at %s (%s); peers send to this engine unmarked",
                host,
                error,
            )
        return result

    def _initialize(
        self, engine: Any, method: str, arguments: tuple[str, ...], wire_class: int, tcp: bool
    ) -> tuple[int, LanePorts]:
        with _initializing, self._session.lane(wire_class):
            before = marking.listening_ports() if tcp else set()
            result: int = getattr(self._base, method)(engine, *arguments)
            if result != 0:
                return result, LanePorts(0)
            rpc_port = int(self._base.get_rpc_port(engine))  # type: ignore[attr-defined]
            if not tcp:
                return result, LanePorts(rpc_port)
            new = marking.listening_ports() - before - {rpc_port}
        dscp = marking.dscp_of(self._session.dscp, wire_class)
        if dscp is not None:
            marking.mark_listening(new, dscp)
        return result, LanePorts(rpc_port, min(new, default=0))

    # ---- memory ------------------------------------------------------------------------------------------------------

    def registered(self, address: int, size_bytes: int, location: str = "*") -> None:
        """Registers memory of the program's engine with every lane."""
        with self._lock:
            self._memory[address] = (size_bytes, location)
            for lane in [one for one in self._open.values() if one.engine is not None]:
                if self._base.register_memory(lane.engine, address, size_bytes, location) != 0:  # type: ignore[attr-defined]
                    self._drop(lane, f"cannot register the memory at {address:#x}")

    def unregistered(self, address: int) -> None:
        with self._lock:
            if self._memory.pop(address, None) is not None:
                for lane in self._open.values():
                    if lane.engine is not None:
                        self._base.unregister_memory(lane.engine, address)  # type: ignore[attr-defined]

    def _drop(self, lane: Lane, reason: str) -> None:
        self._once.warn("lane-drop", "the lane of class %d is no longer used: %s", lane.wire_class, reason)
        self._open.pop(lane.wire_class, None)
        self._routes = {k: v for k, v in self._routes.items() if v[0] is not lane.engine}
        self.changed()

    # ---- routes ------------------------------------------------------------------------------------------------------

    def engines(self) -> list[Any]:
        """Returns the engines of the lanes, without the program's own."""
        return [lane.engine for lane in list(self._open.values()) if lane.engine is not None]

    def known(self, peer: str) -> dict[int, tuple[Any, str] | None]:
        """Returns, by class, the answers of route() that hold until `changed` is called or a moment has passed. Classes
        for which route() would first ask the peer are left out."""
        dscp, setting, now_s = self._session.dscp, self._setting, time.monotonic()
        found: dict[int, tuple[Any, str] | None] = {}
        for wire_class, mark in enumerate(dscp):
            engine, name = self._routes.get((peer, wire_class), (None, ""))
            asked = self._asked.get((peer, wire_class), 0.0) > now_s
            own = setting is None or (wire_class == self.wire_class and not setting.tcp)
            if engine is not None or own or asked or mark is None or (peer, wire_class) in self._routes:
                found[wire_class] = None if engine is None else (engine, name)
        return found

    def marked(self, peer: str, reading: bool) -> bool:
        """Whether all traffic to the peer (or from it, if ``reading``) is certain to carry the DSCP of a class below
        that of collectives, in a lane or in the program's own engine."""
        setting = self._setting
        if setting is None:
            return False
        sure = (peer, self.wire_class) in self._routes if setting.tcp else not reading or peer in self._adapted
        return sure and self._below_collectives()

    def _below_collectives(self) -> bool:
        """Whether the program's own engine is marked below collectives by the daemon's table. Looked up until there is
        a daemon."""
        if self._below is None:
            apart = self._session.classes_apart
            if any(dscp is not None for dscp in self._session.dscp):
                self._below = self.wire_class in apart
        return bool(self._below)

    def route(self, peer: str, wire_class: int | None, peer_address: int) -> tuple[Any, str] | None:
        """Returns the engine of the lane and the peer's name in it; None for the program's own engine. Never waits."""
        if wire_class is None:
            return None
        found = self._routes.get((peer, wire_class))
        if found is not None:
            return found if found[0] is not None else None
        if self._setting is None or (wire_class == self.wire_class and not self._setting.tcp):
            return None
        self._ask_later(peer, wire_class, peer_address)
        return None

    def failed(self, peer: str) -> None:
        """Drops the lanes to a peer after a failed transfer: its process may have ended."""
        with self._lock:
            self._routes = {k: v for k, v in self._routes.items() if k[0] != peer}
            self._adapted -= {peer}
            self._asked = {k: v for k, v in self._asked.items() if k[0] != peer or v == math.inf}
        self.changed()

    def _ask_later(self, peer: str, wire_class: int, peer_address: int) -> None:
        key = (peer, wire_class)
        now_s = time.monotonic()
        if self._asked.get(key, 0.0) > now_s:
            return
        with self._lock:
            if self._asked.get(key, 0.0) > now_s:
                return
            needed = marking.dscp_of(self._session.dscp, wire_class) is not None  # an unmarked class needs none
            self._asked[key] = math.inf if needed else now_s + AGAIN_S
        if needed:
            self._later(lambda: self._ask(peer, wire_class, peer_address))

    def _ask(self, peer: str, wire_class: int, peer_address: int) -> None:
        try:
            self._establish(peer, wire_class, peer_address)
        finally:
            with self._lock:
                self._asked[peer, wire_class] = time.monotonic() + AGAIN_S

    def _later(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._worker is None:
                self._worker = threading.Thread(
                    target=_work, args=(self._wanted, self._once), name="mfs-lane", daemon=True
                )
                self._worker.start()
                weakref.finalize(self, self._wanted.put, None)
        self._wanted.put(work)

    def _answer(self, wire_class: int) -> LanePorts | None:
        """Answers the directory with the ports of a lane, which is opened if needed."""
        lane = self._open.get(wire_class)
        if lane is None and 0 <= wire_class < self._session.classes:
            with self._lock:
                wanted = wire_class not in self._opening
                self._opening.add(wire_class)
            if wanted:
                self._later(lambda: self._open_one(wire_class))
        return lane.ports if lane is not None else None

    def _open_one(self, wire_class: int) -> None:
        try:
            self._opened(wire_class)
        finally:
            with self._lock:
                self._opening.discard(wire_class)

    def _opened(self, wire_class: int) -> Lane | None:
        """Opens a lane unless it is open. Called by the worker thread only."""
        lane = self._open.get(wire_class)
        setting, engine = self._setting, self._engine()
        if lane is not None or setting is None or engine is None:
            return lane
        made = self._base()
        arguments = (setting.host, *setting.arguments[1:])
        result, ports = self._initialize(made, setting.method, arguments, wire_class, setting.tcp)
        if result != 0:
            self._once.warn("lane", "cannot open the lane of class %d: Mooncake returned %d", wire_class, result)
            return None
        lane = Lane(wire_class, made, ports)
        with self._lock:
            for address, (size_bytes, location) in self._memory.items():
                if made.register_memory(address, size_bytes, location) != 0:
                    self._once.warn("lane", "the lane of class %d cannot register the program's memory", wire_class)
                    return None
            self._open[wire_class] = lane
        return lane

    def _establish(self, peer: str, wire_class: int, peer_address: int) -> None:
        lane = self._opened(wire_class)
        if lane is None or self._setting is None:
            return
        try:
            host, port = split(peer)
            for _ in range(OPEN_TRIES):
                there = ask(host, port, wire_class)
                if there is not None:
                    break
                time.sleep(OPEN_PAUSE_S)
            else:
                return
        except (OSError, ValueError, msgspec.MsgspecError):
            return  # the peer has no adapter
        name = join(host, there.rpc_port)
        engine = lane.engine or self._engine()
        if engine is None:
            return
        if self._setting.tcp:
            self._connect(engine, name, host, there.data_port, wire_class, peer_address)
        with self._lock:
            self._routes = {**self._routes, (peer, wire_class): (lane.engine, name)}
            self._adapted |= {peer}
        self.changed()

    def _connect(self, engine: Any, name: str, host: str, port: int, wire_class: int, peer_address: int) -> None:
        """Makes Mooncake open its connections to the peer by reading one byte of the memory to be written, then marks
        them."""
        dscp = marking.dscp_of(self._session.dscp, wire_class)
        if dscp is None:
            return
        base: Any = self._base
        scratch = ctypes.addressof(self._scratch)
        reads = [
            base.batch_transfer_async_read(engine, name, [scratch], [peer_address], [1]) for _ in range(CONNECTIONS)
        ]
        base.get_batch_transfer_status(engine, [read for read in reads if read])
        hosts = {info[4][0] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        marking.mark_connected(port, {str(one) for one in hosts}, dscp)


def _work(wanted: queue.SimpleQueue[Callable[[], None] | None], once: WarnOnce) -> None:
    while (work := wanted.get()) is not None:
        try:
            work()
        except Exception as error:
            once.warn("lane-worker", "cannot open a lane (%s: %s)", type(error).__name__, error)
