"""The preloaded shim of this process, reached through the table that it exports (csrc/include/mfs/api.h).

The shim posts the process's RDMA work requests; what a thread is working for is set here. Without it nothing is
posted by MFS, and these calls do nothing.
"""

from __future__ import annotations

import ctypes

API_VERSION = 1
NONE_U32 = 2**32 - 1


class Context(ctypes.Structure):
    """struct mfs_context."""

    _fields_ = (
        ("request_id", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("batch", ctypes.c_uint32),
        ("layer", ctypes.c_uint16),
        ("stage", ctypes.c_uint8),
        ("reserved", ctypes.c_uint8 * 1),
        ("hold_until_ns", ctypes.c_uint64),
    )


class _Table(ctypes.Structure):
    """The beginning of struct mfs_api; later versions add at the end."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("context_set", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Context))),
        ("range_add", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.POINTER(Context))),
        ("range_remove", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)),
        ("lane_set", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)),
        ("client", ctypes.CFUNCTYPE(ctypes.c_void_p)),
    )


class Shim:
    """The table of the shim in this process."""

    def __init__(self, table: _Table) -> None:
        self._table = table

    @classmethod
    def find(cls) -> Shim | None:
        """None: it is not preloaded, or speaks another version."""
        try:
            table = _Table.in_dll(ctypes.CDLL(None), "mfs_api_v1")
        except ValueError:
            return None
        if table.version < API_VERSION or table.bytes < ctypes.sizeof(_Table):
            return None
        return cls(table)

    def client(self) -> int | None:
        """Address of the shim's native client, lent for the life of the process; None while it has no daemon."""
        address: int | None = self._table.client()
        return address or None

    def context_set(self, context: Context | None) -> None:
        """What this thread posts from now on is for `context`; None ends it."""
        self._table.context_set(None if context is None else ctypes.byref(context))

    def range_add(self, address: int, size_bytes: int, context: Context) -> bool:
        """What is posted from this memory is for `context`, by whichever thread."""
        return bool(self._table.range_add(address, size_bytes, ctypes.byref(context)) == 0)

    def range_remove(self, address: int) -> None:
        self._table.range_remove(address)

    def lane_set(self, wire_class: int) -> None:
        """Devices and queue pairs that this thread opens from now on carry the class; -1 ends it."""
        self._table.lane_set(wire_class)
