"""The native way of a transfer of one message whose permit is there at once: methods that try it first.

After a transfer nothing of them is in the cache any more, and in Python each step would cost a microsecond. What is
unusual goes by the methods here that are given: those in Python, which alone know what to do then. Without mfsd's
native part there are these alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    from mfsd._native import posted_check, posted_del, posted_make, posted_release, posted_transfer
except ImportError:  # and no session, which says so

    def _alone(method: Callable[..., Any]) -> Callable[..., Any]:
        return method

    made = started = checked = released = deleted = _alone
else:
    made, started, checked, released, deleted = (
        *(posted_make, posted_transfer, posted_check),
        *(posted_release, posted_del),
    )

__all__ = ["checked", "deleted", "made", "released", "started"]
