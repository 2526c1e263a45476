"""Connects a lane to a peer in the background. UCX connects with the first bytes, which would wait for the connection.

One byte of the memory that a transfer is about to reach is read into memory of our own. Until it has arrived, transfers
of that class go through the program's own backend, so that none waits for a lane.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import Any, NamedTuple

from mooncake_adapter.nixl.lanes import Lanes


class Reach(NamedTuple):
    """Memory of a peer that a transfer reaches."""

    memory: Any
    address: int
    device: int


class Warming(NamedTuple):
    """A one-byte read that is under way in a lane."""

    peer: str
    lane: str
    handle: int


class Warmer:
    """Connects the lanes of one agent."""

    def __init__(self, binding: Any, statuses: Any, lanes: Lanes) -> None:
        self._binding, self._statuses, self._lanes = binding, statuses, lanes
        self._lock = threading.Lock()
        self._begun: set[tuple[str, str]] = set()
        self._scratch = ctypes.create_string_buffer(8)
        self._registered: set[str] = set()

    def begin(self, peer: str, lane: str, reach: Reach) -> Warming | None:
        """Starts to read the byte; returns None if that was done before or is not possible."""
        with self._lock:
            if (peer, lane) in self._begun:
                return None
            self._begun.add((peer, lane))
        backend = self._lanes.handles[lane]
        address = ctypes.addressof(self._scratch)
        kind, statuses = self._statuses.nixlXferDList, self._statuses
        try:
            if lane not in self._registered:
                whole = statuses.nixlRegDList(statuses.DRAM_SEG, [(address, len(self._scratch), 0, "")])
                self._binding.registerMem(whole, [backend])
                self._registered.add(lane)
            here = kind(statuses.DRAM_SEG, [(address, 1, 0)])
            there = kind(reach.memory, [(reach.address, 1, reach.device)])
            handle = self._binding.createXferReq(statuses.NIXL_READ, here, there, peer, b"", [backend])
            self._binding.postXferReq(handle, b"")
        except Exception as error:
            self._lanes.failed(peer, lane, error)
            return None
        return Warming(peer, lane, handle)

    def move_on(self, warming: Warming) -> bool:
        """Polls the read; returns whether the byte is still on its way."""
        peer, lane, handle = warming
        try:
            status = self._binding.getXferStatus(handle)
            if status == self._statuses.NIXL_IN_PROG:
                return True
            if status != self._statuses.NIXL_SUCCESS:
                raise OSError(f"NIXL answers {status}")
            self._lanes.connected(peer, lane)
        except Exception as error:
            self._lanes.failed(peer, lane, error)
        with contextlib.suppress(Exception):
            self._binding.releaseXferReq(handle)
        return False

    def forget(self, peer: str) -> None:
        """The peer has gone, or its name now stands for another one."""
        with self._lock:
            self._begun = {one for one in self._begun if one[0] != peer}
