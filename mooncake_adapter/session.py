"""What the adapters need of ``mfsd.client``, and how a process gets its one session."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from mfsd.policy.types import Stage
from mooncake_adapter.warn_once import WarnOnce

if TYPE_CHECKING:
    from mfsd.client import Session as Session
else:
    Session = Any  # imported when it is opened: without mfsd's native part engines run on, unscheduled

STAGE_REUSE, STAGE_P2D, STAGE_BACKGROUND = int(Stage.REUSE), int(Stage.P2D), int(Stage.BACKGROUND)
"""As plain numbers: an enumeration costs a transfer more than everything else here."""
ADAPTED = "_mfs_adapted"
"""Attribute of classes that are already adapted."""


class Task(Protocol):
    """A submitted message; see mfsd.client.Task."""

    def wait(self, timeout_s: float | None = None) -> int: ...
    def ready(self) -> bool: ...
    def complete(self) -> None: ...
    def cancel(self) -> None: ...


class Permit(Protocol):
    """A permitted message; see mfsd.client.Session.permit."""

    @property
    def wire_class(self) -> int | None: ...
    def complete(self) -> object: ...
    def cancel(self) -> object: ...


class Batch(Protocol):
    """A batch under way; see mfsd.client.Batch."""

    def layer(self, number: int) -> None: ...
    def end(self) -> None: ...


def open_session() -> Session:
    """Opens the session of this process. Raises ImportError if mfsd's client is missing."""
    return cast(Session, importlib.import_module("mfsd.client").Session.open())


def own_class(session: Session) -> int:
    """Returns the class of the program's own engine: that of last stages of unknown size if the program marks them
    itself, else the lowest above the scavenger, in which anything may wait."""
    return session.class_of(STAGE_P2D)


def read_class(session: Session) -> int:
    """Returns the class of the store's own client."""
    return session.class_of(STAGE_REUSE)


class Holder:
    """Opens the session once, at its first use, and again in a forked child. Never raises."""

    def __init__(self, opener: Callable[[], Session] = open_session, once: WarnOnce | None = None) -> None:
        self._opener = opener
        self._once = once or WarnOnce()
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._tried = False

    def forget(self) -> None:
        """Called in a child after fork, which must not use the parent's session."""
        self._lock = threading.Lock()
        self._session, self._tried = None, False

    def get(self) -> Session | None:
        if self._tried:
            return self._session
        with self._lock:
            if not self._tried:
                try:
                    self._session = self._opener()
                except Exception as error:
                    self._once.warn("session", "MFS cannot be used here (%s); transfers run unscheduled", error)
                self._tried = True
        return self._session
