"""The thread that posts what has been permitted meanwhile, and gives back permits of what has arrived.

An engine asks how its transfers stand once a step, which may take as long as many transfers. The thread ends with its
agent, and sleeps while nothing is under way.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections import deque
from typing import Protocol

from mooncake_adapter.nixl.transfers import State, Transfer
from mooncake_adapter.nixl.warming import Warming

Work = Transfer | Warming
WAITING_S = 200e-6
"""Between two polls while anything waits for its permit."""
ARRIVING_S = 2e-3
"""And while all there is to wait for is the network."""
AGE_PARTS = 16
"""What the network has had for long is asked about seldom: its end is noticed late by one of so many parts of the time
that it took. An answer may take NIXL as long as a message the network, and what a stopped peer does not take would be
asked about for ever."""
LINGER_POLLS = 10
"""For so long it polls on when nothing is under way: waking it costs a transfer more than adding to a list."""


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

    def add(self, transfer: Work) -> None:
        shared = self._shared
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=_run, args=(self._mover, shared), name="mfs-nixl", daemon=True
                    )
                    self._thread.start()
                    weakref.finalize(self, shared.wake.put, False)
        shared.added.append(transfer)
        if shared.asleep or waits(transfer):
            shared.wake.put(True)


class Shared:
    """What the thread has of its owner."""

    def __init__(self) -> None:
        self.added: deque[Work] = deque()
        self.wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.asleep = False


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


def _run(mover: weakref.ref[Mover], shared: Shared) -> None:
    active: list[Turn] = []
    polls_left = LINGER_POLLS
    while True:
        while shared.added:
            active.append(Turn(shared.added.popleft()))
        if active:
            own = mover()
            if own is None:
                return
            now_s = time.monotonic()
            active = [turn for turn in active if not turn.comes(now_s) or own.move_on(turn.work)]
            del own
            polls_left = LINGER_POLLS
        polls_left -= 1
        try:
            if active or polls_left > 0:
                pause_s = WAITING_S if any(waits(turn.work) for turn in active) else ARRIVING_S
                go_on = shared.wake.get(timeout=pause_s)
            else:
                shared.asleep = True
                go_on = bool(shared.added) or shared.wake.get()  # what came before it could see that we sleep
                shared.asleep, polls_left = False, LINGER_POLLS
        except queue.Empty:
            continue
        if not go_on:
            return
