"""Native versions of NIXL's methods for transfers of one message that go through the program's own backend.

After a transfer the adapter has been evicted from the caches, and each step in Python would cost a microsecond. Unusual
transfers go to the Python methods passed here. Without mfsd's native part those are used alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Method = Callable[..., Any]

try:
    from mfsd import _native
except ImportError:  # then there is no session either, which reports it
    _native = None  # type: ignore[assignment]


def made(method: Method) -> Method:
    """Wraps make_prepped_xfer."""
    return method if _native is None else _native.posted_make(method)


def started(method: Method) -> Method:
    """Wraps transfer."""
    return method if _native is None else _native.posted_transfer(method)


def checked(method: Method) -> Method:
    """Wraps check_xfer_state."""
    return method if _native is None else _native.posted_check(method)


def released(method: Method) -> Method:
    """Wraps a handle's release."""
    return method if _native is None else _native.posted_release(method)


def deleted(method: Method) -> Method:
    """Wraps a handle's __del__."""
    return method if _native is None else _native.posted_del(method)
