"""The thread that posts what has been permitted meanwhile, and gives back permits of what has arrived.

An engine asks how its transfers stand once a step, which may take as long as many transfers. The thread ends with its
agent, and sleeps while nothing is under way.
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
"""Between two polls while anything waits for its permit. What native code asks for is its program's alone for so
long."""
ARRIVING_S = 2e-3
"""And while all there is to wait for is the network. What native code has posted is its program's alone for so long."""
AGE_PARTS = 16
"""What the network has had for long is asked about seldom: its end is noticed late by one of so many parts of the time
that it took. An answer may take NIXL as long as a message the network, and what a stopped peer does not take would be
asked about for ever."""


class Mover(Protocol):
    """Does the thread's work."""

    def move_on(self, transfer: Work) -> bool:
        """Does what can be done now; whether anything is left to do."""
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
        """Starts the thread, once."""
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
    """What the thread has of its owner."""

    def __init__(self) -> None:
        from mfsd._native import Unasked  # not without a session

        self.added: deque[Work] = deque()
        self.unasked = Unasked(int(ARRIVING_S * 1e9), int(WAITING_S * 1e9))
        self.over = False

    def end(self) -> None:
        self.over = True
        self.unasked.ring()


def waits(transfer: Work) -> bool:
    """Whether some of it waits for a permit."""
    if isinstance(transfer, Warming):
        return False
    return any(part.state is State.WAITING for part in list(transfer.parts))


class Turn:
    """When a transfer that is under way is asked about."""

    __slots__ = ("_due_s", "_seen", "_since_s", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self._seen: object = None
        self._since_s = self._due_s = 0.0

    def comes(self, now_s: float) -> bool:
        """Whether it is now. From one change of what the network has of it to the next, ever less often."""
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
    """Each is added here, where it has not ended. A function of its own, as what it leaves in variables would keep the
    last one's agent for as long as the thread waits."""
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
