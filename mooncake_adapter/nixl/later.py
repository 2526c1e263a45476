"""The thread that posts what has been permitted meanwhile, and gives back permits of what has arrived.

An engine asks how its transfers stand once a step, which may take as long as many transfers. The thread ends with its
agent, and sleeps while nothing is under way.
"""

from __future__ import annotations

import queue
import threading
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


def _run(mover: weakref.ref[Mover], shared: Shared) -> None:
    active: list[Work] = []
    polls_left = LINGER_POLLS
    while True:
        while shared.added:
            active.append(shared.added.popleft())
        if active:
            own = mover()
            if own is None:
                return
            active = [transfer for transfer in active if own.move_on(transfer)]
            del own
            polls_left = LINGER_POLLS
        polls_left -= 1
        try:
            if active or polls_left > 0:
                pause_s = WAITING_S if any(waits(transfer) for transfer in active) else ARRIVING_S
                go_on = shared.wake.get(timeout=pause_s)
            else:
                shared.asleep = True
                go_on = bool(shared.added) or shared.wake.get()  # what came before it could see that we sleep
                shared.asleep, polls_left = False, LINGER_POLLS
        except queue.Empty:
            continue
        if not go_on:
            return
