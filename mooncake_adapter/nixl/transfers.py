"""One transfer of the program: its pieces, and the state of each."""

from __future__ import annotations

import threading
from collections import deque
from enum import Enum
from typing import Any

from mooncake_adapter.nixl import native
from mooncake_adapter.nixl.pieces import Piece
from mooncake_adapter.nixl.recipes import Recipe
from mooncake_adapter.remainder import Remainder
from mooncake_adapter.session import Task


class State(Enum):
    """State of a transfer or of a part; the values are NIXL's status strings."""

    IDLE = "IDLE"
    WAITING = "WAITING"
    PROC = "PROC"
    DONE = "DONE"
    ERR = "ERR"


class Part:
    """A piece for which a permit was asked."""

    __slots__ = ("handle", "lane", "piece", "state", "task")

    def __init__(self, piece: Piece, task: Task) -> None:
        self.piece, self.task = piece, task
        self.state = State.WAITING
        self.handle = 0
        self.lane: str | None = None
        """Alias of the lane that it was posted in; None: the program's own backend."""


class Transfer:
    """What the adapter keeps for one handle. The thread that advances the transfer holds its lock.

    Most transfers are one message that is permitted at once. Attributes that those do not need are set on the class
    only.
    """

    notification: bytes = b""
    posted_notification: bytes = b""
    backends: list[int]
    """The program's own backends for this transfer."""
    state = State.IDLE
    direct = False
    """Whether it was posted without MFS, so that only NIXL knows its state."""
    posted = 0
    """The handle that was posted last."""
    failed = False
    error: Exception | None = None
    held_s = 0.0
    hold_max_s = 0.0
    idle_since_s = 0.0
    """Since when it has waited with nothing under way; 0 if it has not."""
    lease_until_s = 0.0
    remainder: Remainder | None = None
    """Set for a transfer of several pieces."""
    closed = False
    abandoned = False

    def __init__(self, own: int, recipe: Recipe, peer: str, pieces: list[Piece], stage: int, incoming: bool) -> None:
        self.own, self.recipe, self.peer, self.pieces = own, recipe, peer, pieces
        self.stage, self.incoming = stage, incoming
        self.whole = len(pieces) == 1
        """Whether the transfer is one message."""
        self.cached: dict[str, int] = {}
        """Handles of the whole transfer by lane, for when it is posted again."""
        self.lock = threading.Lock()
        self.todo: deque[Piece] = deque()
        self.parts: list[Part] = []
        self.telemetry: list[Any] = []
        """Telemetry of pieces that have arrived, as their handles are gone."""


def handle_class(base: Any) -> Any:
    """Returns a subclass of NIXL's handle of a transfer that also keeps the adapter's state."""

    def release(self: Any) -> None:
        if not self._released:
            self.scheduling.release(self.transfer)
            self._released = True

    def __del__(self: Any) -> None:
        if not getattr(self, "_released", True):
            self.scheduling.abandon(self.transfer)

    class TransferHandle(base):  # type: ignore[misc]
        __slots__ = ("kept", "posting", "scheduling")

        def __init__(self: Any, handle: Any, transfer: Transfer, scheduling: Any) -> None:
            self._agent, self._handle, self._released = handle._agent, handle._handle, False
            handle._released = True  # this handle owns it now
            self.kept, self.scheduling = transfer, scheduling
            self.posting = scheduling.posting(transfer)

        @property
        def transfer(self: Any) -> Transfer:
            """Python's state of the transfer, which is authoritative from now on."""
            posting = self.posting
            found: Transfer = self.kept if posting is None else posting.transfer()
            return found

    TransferHandle.release = native.released(release)
    TransferHandle.__del__ = native.deleted(__del__)
    TransferHandle.__name__ = base.__name__
    TransferHandle.__qualname__ = base.__qualname__
    TransferHandle.__module__ = base.__module__
    TransferHandle.__doc__ = base.__doc__
    return TransferHandle
