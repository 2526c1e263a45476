"""What the adapters ask of ``mfsd.client``, and how a process gets its one session."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, cast

from mooncake_adapter.once import Once

STAGE_REUSE, STAGE_P2D, STAGE_BACKGROUND = 1, 3, 4


class Task(Protocol):
    """A submitted message; see mfsd.client.Task."""

    def wait(self, timeout_s: float | None = None) -> int: ...
    def ready(self) -> bool: ...
    def complete(self) -> None: ...
    def cancel(self) -> None: ...


class Leave(Protocol):
    """A permitted message; see mfsd.client.Session.permit."""

    @property
    def wire_class(self) -> int | None: ...
    def complete(self) -> object: ...
    def cancel(self) -> object: ...


class Batch(Protocol):
    """A batch under way; see mfsd.client.Batch."""

    def layer(self, number: int) -> None: ...
    def end(self) -> None: ...


class Session(Protocol):
    """The part of mfsd.client.Session that the adapters use."""

    @property
    def scheduled(self) -> bool: ...
    @property
    def classes(self) -> int: ...
    @property
    def dscp(self) -> list[int | None]: ...
    def close(self) -> None: ...
    def nic(self, name: str, *, guid: int = 0) -> int: ...
    def batch(
        self,
        batch_id: int,
        *,
        layers: int,
        requests: Sequence[object] = (),
        compute_ns: int = 0,
        deadline_ns: int = 0,
    ) -> Batch: ...
    def submit(
        self,
        size_bytes: int,
        *,
        stage: int,
        nic: int = 0,
        request_id: int = 0,
        deadline_ns: int = 0,
        batch: Batch | None = None,
        layer: int = 0,
        peer: str = "",
        laned: bool = False,
        incoming: bool = False,
    ) -> Task: ...
    def permit(
        self,
        size_bytes: int,
        *,
        stage: int,
        nic: int = 0,
        request_id: int = 0,
        deadline_ns: int = 0,
        batch: Batch | None = None,
        layer: int = 0,
        peer: str = "",
        laned: bool = False,
        incoming: bool = False,
        timeout_s: float | None = None,
    ) -> Leave | None: ...
    def lane(self, wire_class: int) -> AbstractContextManager[object]: ...
    def pruned(self, request_id: int) -> bool: ...


def open_session() -> Session:
    """The session of this process. ImportError where mfsd's client is missing."""
    return cast(Session, importlib.import_module("mfsd.client").Session.open())


class Holder:
    """Opens the session at its first use, once, and again in a forked child; never raises."""

    def __init__(self, opener: Callable[[], Session] = open_session, once: Once | None = None) -> None:
        self._opener = opener
        self._once = once or Once()
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._tried = False

    def forget(self) -> None:
        """In a child after fork: the parent's session is not ours."""
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
