"""Where the memory of a list of descriptors is, and the prepared lists that later transfers are made from."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.uint64]
"""One row for each descriptor: address, bytes, device."""


def rows_of(descriptors: Any) -> Rows:
    """Returns the rows of a nixlXferDList or of NIXL's other forms of one: tuples, an Nx3 array, an Nx5 array of
    strides."""
    if isinstance(descriptors, np.ndarray):
        rows = np.array(descriptors, dtype=np.uint64)
        return expanded(rows) if rows.shape[1] == 5 else rows
    if hasattr(descriptors, "descCount"):
        return np.array([descriptors[at] for at in range(descriptors.descCount())], dtype=np.uint64).reshape(-1, 3)
    return np.array(descriptors, dtype=np.uint64).reshape(-1, 3)


def expanded(strided: Rows) -> Rows:
    """Expands each row (address, bytes, device, stride, count) to `count` rows."""
    counts = strided[:, 4].astype(np.int64)
    rows = np.repeat(strided[:, :3], counts, axis=0)
    numbers = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows[:, 0] += numbers.astype(np.uint64) * np.repeat(strided[:, 3], counts)
    return rows


class Prepared:
    """One prepared list. It outlives its release by the program as long as a transfer may still be made from it."""

    __slots__ = ("_lock", "_release", "memory", "peer", "released", "rows", "uniform_bytes", "users")

    def __init__(self, peer: str, memory: Any, rows: Rows, release: Callable[[], None]) -> None:
        """`peer`: the agent that the memory belongs to, "" for this one; `memory`: its kind."""
        self.peer, self.memory, self.rows, self._release = peer, memory, rows, release
        self.uniform_bytes = 0
        if len(rows) and bool((rows[:, 1] == rows[0, 1]).all()):
            self.uniform_bytes = int(rows[0, 1])
        self.users: list[None] = []
        """One entry for each user. A list, because it grows and shrinks atomically, in native code as in Python."""
        self.released = False
        self._lock = threading.Lock()

    def use(self) -> None:
        self.users.append(None)

    def unuse(self) -> None:
        self.users.pop()
        if self.released:
            self.settle()

    def release(self) -> None:
        """The program no longer needs the list."""
        self.released = True
        self.settle()

    def settle(self) -> None:
        """Releases the list if nothing uses it any more."""
        with self._lock:
            release, last = self._release, not self.users
            if last:
                self._release = _nothing
        if last:
            release()


def _nothing() -> None: ...


def prepared_class(base: Any) -> Any:
    """Returns a subclass of NIXL's handle of a prepared list that also keeps its Prepared."""

    class PreparedHandle(base):  # type: ignore[misc]
        __slots__ = ("prepared",)

        def __init__(self, handle: Any, peer: str, memory: Any, rows: Rows) -> None:
            super().__init__(handle._agent, handle._handle)
            handle._released = True  # this handle owns it now
            binding, number = handle._agent, handle._handle
            self.prepared = Prepared(peer, memory, rows, lambda: binding.releasedDlistH(number))

        def release(self: Any) -> None:
            if not self._released:
                self._released = True
                self.prepared.release()

        def __del__(self: Any) -> None:
            if not getattr(self, "_released", True):
                self.release()

    PreparedHandle.__name__ = base.__name__
    PreparedHandle.__qualname__ = base.__qualname__
    PreparedHandle.__module__ = base.__module__
    PreparedHandle.__doc__ = base.__doc__
    return PreparedHandle
