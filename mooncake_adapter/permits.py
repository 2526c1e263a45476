"""Submitting to the daemon such that no trouble with it ever reaches a transfer."""

from __future__ import annotations

import logging
from typing import Any

from mooncake_adapter.once import LOG, Once
from mooncake_adapter.session import Leave, Session, Task

HOLD_MAX_S = 10.0
"""Mooncake's own callers give up after 30 s, and bytes that land after that corrupt a cache."""


class Unscheduled:
    """A task that nobody schedules: permitted at once, in the class of the program's own engine."""

    def __init__(self, wire_class: int) -> None:
        self.wire_class = wire_class

    def wait(self, timeout_s: float | None = None) -> int:
        return self.wire_class

    def ready(self) -> bool:
        return True

    def complete(self) -> None: ...

    def cancel(self) -> None: ...


def submitted(session: Session, once: Once, size_bytes: int, **metadata: Any) -> Task:
    """Session.submit that does not raise: what it cannot do goes unscheduled, with one warning."""
    if LOG.isEnabledFor(logging.DEBUG):
        _say(size_bytes, metadata)
    try:
        return session.submit(size_bytes, **metadata)
    except Exception as error:
        return _unscheduled(session, once, error)


def permitted(session: Session, once: Once, size_bytes: int, **metadata: Any) -> Leave | None:
    """Session.permit that does not raise, likewise; sleeps until the message may go. None: nothing is scheduled."""
    if LOG.isEnabledFor(logging.DEBUG):
        _say(size_bytes, metadata)
    try:
        return session.permit(size_bytes, timeout_s=HOLD_MAX_S, **metadata)
    except Exception as error:
        return _unscheduled(session, once, error)


def _say(size_bytes: int, metadata: dict[str, Any]) -> None:
    shown = " ".join(f"{k}={v}" for k, v in metadata.items() if k not in ("batch", "laned", "incoming"))
    LOG.debug("message bytes=%d %s", size_bytes, shown)


def _unscheduled(session: Session, once: Once, error: Exception) -> Unscheduled:
    once.warn("submit", "a transfer could not be submitted (%s: %s); it goes unscheduled", type(error).__name__, error)
    return Unscheduled(max(0, session.classes - 2))
