"""The thread that posts transfers permitted later, and returns the permits of transfers that have arrived.

An engine asks for the status of its transfers once a step, which may take as long as many transfers. The thread ends
with its agent, and sleeps while nothing is under way.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Protocol

from mooncake_adapter.nixl.transfers import State, Transfer
from mooncake_adapter.nixl.warming import Warming

if TYPE_CHECKING:
    from mfsd._native import Unasked

Work = Transfer | Warming
WAITING_S = 200e-6
"""Interval between polls while any transfer waits for a permit. For this long the thread leaves what native code has
asked for to the program."""
ARRIVING_S = 2e-3
"""The same while only the network is waited for, and for what native code has posted."""
AGE_PARTS = 16
"""The longer a transfer has been with the network, the less often it is asked about: its end is noticed late by at most
one of so many parts of its duration. Asking NIXL may take as long as the network takes for a message, and a transfer to
a stopped peer never ends."""


class Mover(Protocol):
    """Does the thread's work."""

    def move_on(self, transfer: Work) -> bool:
        """Does what can be done now; returns whether anything is left to do."""
        ...


class Later:
    """The transfers of one agent that are under way."""

    def __init__(self, mover: Mover) -> None:
        self._mover = weakref.ref(mover)
        self._shared = Shared()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def unasked(self) -> Unasked:
        """What native code has posted."""
        return self._shared.unasked

    def begin(self) -> None:
        """Starts the thread unless it was started."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=_run, args=(self._mover, self._shared), name="mfs-nixl", daemon=True)
                thread.start()
                self._thread = thread
                weakref.finalize(self, self._shared.end)

    def add(self, transfer: Work) -> None:
        if self._thread is None:
            self.begin()
        self._shared.added.append(transfer)
        if waits(transfer):
            self._shared.unasked.ring()
        else:
            self._shared.unasked.soon()


class Shared:
    """The part of the owner's state that the thread uses."""

    def __init__(self) -> None:
        from mfsd._native import Unasked  # needs the native part, which a session has loaded

        self.added: deque[Work] = deque()
        self.unasked = Unasked(int(ARRIVING_S * 1e9), int(WAITING_S * 1e9))
        self.over = False

    def end(self) -> None:
        self.over = True
        self.unasked.ring()


def waits(transfer: Work) -> bool:
    """Whether any part of it waits for a permit."""
    if isinstance(transfer, Warming):
        return False
    return any(part.state is State.WAITING for part in list(transfer.parts))


class Turn:
    """When to ask about a transfer that is under way."""

    __slots__ = ("_due_s", "_seen", "_since_s", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self._seen: object = None
        self._since_s = self._due_s = 0.0

    def comes(self, now_s: float) -> bool:
        """Whether it is time to ask. The interval grows until the state of the transfer changes."""
        if isinstance(self.work, Warming):
            return True
        seen = (len(self.work.todo), len(self.work.parts), waits(self.work))
        if seen != self._seen or seen[-1]:
            self._seen, self._since_s, self._due_s = seen, now_s, now_s
        if now_s < self._due_s:
            return False
        self._due_s = now_s + (now_s - self._since_s) / AGE_PARTS
        return True


def _take_over(unasked: Unasked) -> None:
    """Takes over the transfers that native code has posted and that have not ended. Each of them reaches add().

    A function of its own, because its local variables would keep the last agent alive while the thread waits.
    """
    for posting in unasked.due():
        posting.transfer()


def _run(mover: weakref.ref[Mover], shared: Shared) -> None:
    active: list[Turn] = []
    unasked = shared.unasked
    while not shared.over:
        _take_over(unasked)
        while shared.added:
            active.append(Turn(shared.added.popleft()))
        if active:
            own = mover()
            if own is None:
                return
            now_s = time.monotonic()
            active = [turn for turn in active if not turn.comes(now_s) or own.move_on(turn.work)]
            del own
        if active:
            unasked.wait(WAITING_S if any(waits(turn.work) for turn in active) else ARRIVING_S)
        else:
            unasked.wait_until_due()
