"""How a transfer is made, so that it can be made again: in another lane, or for some of its descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mooncake_adapter.nixl.descriptors import Rows
from mooncake_adapter.nixl.pieces import Positions
from mooncake_adapter.nixl.warming import Reach


class Recipe(Protocol):
    """The arguments that NIXL was given for one transfer."""

    def make(self, binding: Any, positions: Positions | None, notification: bytes, backends: Sequence[int]) -> int:
        """Makes a NIXL handle for these descriptors. Raises what NIXL raises."""

    def reach(self) -> Reach | None:
        """Returns some memory of the peer that the transfer reaches."""

    def forget(self) -> None:
        """No further handle will be made."""


class FromPrepared(NamedTuple):
    """A transfer by indices into two prepared lists."""

    operation: Any
    local: Any
    """A PreparedHandle."""
    local_indices: npt.NDArray[np.int32]
    remote: Any
    remote_indices: npt.NDArray[np.int32]
    skip_merge: bool

    def make(self, binding: Any, positions: Positions | None, notification: bytes, backends: Sequence[int]) -> int:
        mine, theirs = self.local_indices, self.remote_indices
        if positions is not None:
            mine, theirs = mine[positions], theirs[positions]
        return int(
            binding.makeXferReq(
                *(self.operation, self.local._handle, mine, self.remote._handle, theirs),
                *(notification, backends, self.skip_merge),
            )
        )

    def reach(self) -> Reach | None:
        prepared = self.remote.prepared
        if not len(self.remote_indices):
            return None
        address, _, device = prepared.rows[self.remote_indices[0]].tolist()
        return Reach(prepared.memory, address, device)

    def forget(self) -> None:
        self.local.prepared.unuse()
        self.remote.prepared.unuse()


class FromLists(NamedTuple):
    """A transfer by two lists of descriptors."""

    operation: Any
    kind: Any
    """The class nixlXferDList."""
    local: tuple[Any, Rows]
    """Kind of memory, and its rows."""
    remote: tuple[Any, Rows]
    peer: str

    def make(self, binding: Any, positions: Positions | None, notification: bytes, backends: Sequence[int]) -> int:
        lists = [
            self.kind(memory, np.ascontiguousarray(rows if positions is None else rows[positions]))
            for memory, rows in (self.local, self.remote)
        ]
        return int(binding.createXferReq(self.operation, *lists, self.peer, notification, backends))

    def reach(self) -> Reach | None:
        memory, rows = self.remote
        if not len(rows):
            return None
        address, _, device = rows[0].tolist()
        return Reach(memory, address, device)

    def forget(self) -> None: ...
