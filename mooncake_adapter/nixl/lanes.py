"""Lanes: each class on the wire has an engine of its own in the same agent, under an alias of UCX's plugin.

An agent's metadata names its engines, so the metadata that agents exchange anyway tells both ends each other's lanes.
Data that is read comes back in the responder's lane of the same name. All lanes are made before the metadata.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from mooncake_adapter.mooncake.lanes import shim_present
from mooncake_adapter.nixl.engine_class import EngineClass
from mooncake_adapter.nixl.plugins import LANED, alias
from mooncake_adapter.session import Session, own_class
from mooncake_adapter.warn_once import WarnOnce

THREADS = "num_threads"
"""Not set for lanes, which make do with one thread: each thread takes doorbell pages of the NIC, which are scarce."""
ATTACH_S, ATTACH_POLL_S = 1.0, 0.005
"""How long to wait for the marks if the shim's session comes with the first device, and the interval of the checks."""


def named_in(metadata: bytes, backend: str) -> bool:
    """Whether an agent's metadata has connections of this backend."""
    return b"|t" + struct.pack("<Q", len(backend)) + backend.encode() in metadata


class Backends(dict[str, Any]):
    """An agent's backends by name. Lanes can be looked up by name, but iteration does not show them."""

    def __init__(self, own: dict[str, Any]) -> None:
        super().__init__(own)
        self.lanes: dict[str, Any] = {}

    def __missing__(self, name: str) -> Any:
        return self.lanes[name]


class Lanes:
    """The lanes of one agent."""

    def __init__(self, session: Session, once: WarnOnce) -> None:
        self._session, self._once = session, once
        self.own_class = own_class(session)
        self.engine_class = EngineClass(once)
        self.handles: dict[str, Any] = {}
        """NIXL's handle of each backend, by alias."""
        self.changed: Callable[[], None] = lambda: None
        """Called when the answers of `route` or `class_marked` may have changed."""
        self._class_of: dict[int, str] = {}
        """The alias of each class's lane; classes with the same DSCP share a lane."""
        self._peers: dict[str, frozenset[str]] = {}
        self._connected: frozenset[tuple[str, str]] = frozenset()
        self._lock = threading.Lock()

    @property
    def dscp(self) -> list[int | None]:
        return self._session.dscp

    def mark(self, wire_class: int) -> int | None:
        """Returns the DSCP of a class; None if the fabric does not mark it."""
        marks = self.dscp
        return marks[wire_class] if wire_class < len(marks) else None

    def _wait_for_marks(self) -> None:
        until_s = time.monotonic() + (ATTACH_S if shim_present() else 0.0)
        while not self._session.scheduled and time.monotonic() < until_s:
            time.sleep(ATTACH_POLL_S)

    def open(self, binding: Any, parameters: dict[str, str]) -> dict[str, Any]:
        """Creates an engine for every class that has a mark of its own; returns the handles by alias."""
        self._wait_for_marks()
        own = self.mark(self.own_class)
        parameters = {name: value for name, value in parameters.items() if name != THREADS}
        by_mark: dict[int, str] = {}
        for wire_class, mark in enumerate(self.dscp):
            if mark is None or mark == own:
                continue
            if mark not in by_mark:
                if not self._open_one(binding, wire_class, self.engine_class.parameters(parameters, mark)):
                    break
                by_mark[mark] = alias(wire_class)
            self._class_of[wire_class] = by_mark[mark]
        self.changed()
        return self.handles

    def _open_one(self, binding: Any, wire_class: int, parameters: dict[str, str]) -> bool:
        name = alias(wire_class)
        try:
            with self._session.lane(wire_class):
                self.handles[name] = binding.createBackend(name, parameters)
            return True
        except Exception as error:
            self._once.warn(
                "nixl-lane",
                "no lane of class %d (backend %s: %s: %s); its transfers go by the program's own backend",
                *(wire_class, name, type(error).__name__, error),
            )
            return False

    def drop(self, name: str, reason: object) -> None:
        """Gives up a lane of this agent."""
        self._once.warn("nixl-drop", "lane %s is given up: %s", name, reason)
        with self._lock:
            self._class_of = {c: one for c, one in self._class_of.items() if one != name}
        self.changed()

    # ---- peers -------------------------------------------------------------------------------------------------------

    def met(self, peer: str, metadata: bytes) -> None:
        """The peer's metadata was loaded."""
        there = frozenset(name for name in self.handles if named_in(metadata, name))
        with self._lock:
            self._peers[peer] = there
            self._connected = frozenset(one for one in self._connected if one[0] != peer)
        self.changed()
        if there != frozenset(self.handles) and named_in(metadata, LANED):
            self._once.warn(
                "nixl-peer",
                "agent %r has %d of the %d lanes of this one (it runs without MFS, or with other classes); transfers "
                "without a lane go by the program's own backend",
                *(peer, len(there), len(self.handles)),
            )

    def forget(self, peer: str) -> None:
        with self._lock:
            self._peers.pop(peer, None)
            self._connected = frozenset(one for one in self._connected if one[0] != peer)
        self.changed()

    def failed(self, peer: str, name: str, reason: object) -> None:
        """A transfer to the peer failed in this lane, so the lane is not used until the peer's metadata is loaded
        again."""
        self._once.warn(
            "nixl-lane-failed", "lane %s to %r is left (%s); the program's own backend sends", name, peer, reason
        )
        with self._lock:
            self._peers[peer] = self._peers.get(peer, frozenset(self.handles)) - {name}
        self.changed()

    def connected(self, peer: str, name: str) -> None:
        """Bytes have come from the peer in this lane."""
        with self._lock:
            self._connected |= {(peer, name)}

    def is_connected(self, peer: str, name: str) -> bool:
        return (peer, name) in self._connected

    def route(self, peer: str, wire_class: int) -> str | None:
        """Returns the alias of the lane for transfers of this class to the peer; None for the program's own backend.

        If the adapter did not see the peer's metadata (it came by a listener or etcd), the lane is tried.
        """
        name = self._class_of.get(wire_class)
        there = self._peers.get(peer)
        return name if there is None or name in there else None

    def class_marked(self, peer: str) -> bool:
        """Whether all traffic to and from the peer is certain to carry the mark of a class below that of
        collectives."""
        if not self._peers.get(peer):
            return False
        apart = self.engine_class.apart(self.mark(self.own_class), self.mark(0))
        return apart and self.own_class in self._session.classes_apart
