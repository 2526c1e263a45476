"""The preloaded shim of this process, reached through the table that it exports (csrc/include/mfs/api.h).

The shim posts the process's RDMA work requests. These calls tell it what a thread posts for. Without a shim MFS posts
nothing and there is nothing to call.
"""

from __future__ import annotations

from typing import Any

from mfsd.capi import ffi, lib

NONE_U32: int = lib.MFS_NONE_U32
Context = Any
"""struct mfs_context, as made by `context_of`."""


def context_of(**fields: int) -> Context:
    """Makes a struct mfs_context. Members that are not given are 0."""
    return ffi.new("struct mfs_context *", fields)


class ForeignShimError(Exception):
    """The shim was built from other sources: its client has another layout, and its table may have one, too."""


class Shim:
    """The table of this process's shim."""

    def __init__(self, table: Any) -> None:
        self._table = table

    @classmethod
    def find(cls) -> Shim | None:
        """Returns this process's shim; None if it is not preloaded. ForeignShimError: it is of another version."""
        table = lib.mfs_api()
        if not table:
            return None
        if not lib.mfs_api_lends_client(table):
            raise ForeignShimError
        return cls(table)

    def client(self) -> int | None:
        """Address of the shim's native client, lent for the life of the process; None while it has no daemon."""
        return int(ffi.cast("uintptr_t", self._table.client())) or None

    def context_set(self, context: Context | None) -> None:
        """Sets what this thread's next posts are for. None ends that."""
        self._table.context_set(ffi.NULL if context is None else context)

    def range_add(self, address: int, size_bytes: int, context: Context) -> bool:
        """Sets what any thread's posts from this memory are for. Returns whether the shim took the range."""
        if not (0 <= address < 1 << 64 and 0 <= size_bytes < 1 << 64):
            return False  # cffi would raise, and nothing here may fail a transfer
        return bool(self._table.range_add(address, size_bytes, context) == 0)

    def range_remove(self, address: int) -> None:
        self._table.range_remove(address)

    def lane_set(self, wire_class: int) -> None:
        """Sets the class of devices and queue pairs that this thread opens from now on. -1 ends that."""
        self._table.lane_set(wire_class)
