"""The native way of a transfer of one message that goes by the program's own backend: methods that try it first.

After a transfer nothing of them is in the cache any more, and in Python each step would cost a microsecond. What is
unusual goes by the methods that are given here: those in Python, which alone know what to do then. Without mfsd's
native part there are these alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Method = Callable[..., Any]

try:
    from mfsd import _native
except ImportError:  # and no session, which says so
    _native = None  # type: ignore[assignment]


def made(method: Method) -> Method:
    """make_prepped_xfer."""
    return method if _native is None else _native.posted_make(method)


def started(method: Method) -> Method:
    """transfer."""
    return method if _native is None else _native.posted_transfer(method)


def checked(method: Method) -> Method:
    """check_xfer_state."""
    return method if _native is None else _native.posted_check(method)


def released(method: Method) -> Method:
    """A handle's release."""
    return method if _native is None else _native.posted_release(method)


def deleted(method: Method) -> Method:
    """A handle's __del__."""
    return method if _native is None else _native.posted_del(method)
