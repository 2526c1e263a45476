"""Records what daemons do: the client half of recordings, several daemons at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from mfsd.node.control import RecordEvents, RecordRequest, RecordStarted
from mfsd.node.control_client import Conversation, Refused, Unreachable
from mfsd.node.events import LAYOUT, Event, decode

EVENTS_MAX = 2_000_000
"""Default limit for one daemon: about 1 GB as JSON."""

END_S = 5.0
"""How long a daemon may take to send the end of a recording."""


class Recorded(Struct):
    """What one daemon has sent."""

    started: RecordStarted
    events: list[Event] = []
    lost: int = 0
    processes: dict[int, str] = {}
    units: dict[int, str] = {}
    nics: dict[int, str] = {}
    realtime_drift_ns: int = 0
    """How far CLOCK_REALTIME has gained on CLOCK_MONOTONIC during the recording."""
    problem: str = ""
    """Why it ended early."""


class Recordings:
    """Recordings of several daemons, each in its own thread, from the start until `stop`."""

    def __init__(self, sockets: Sequence[Path], events_max: int = EVENTS_MAX) -> None:
        """Starts all of them, or none. Raises Unreachable or Refused."""
        self.found: list[Recorded] = []
        self._events_max = events_max
        self._conversations: list[Conversation] = []
        try:
            for path in sockets:
                self._conversations.append(conversation := Conversation(path, RecordRequest(LAYOUT)))
                started = conversation.reply()
                if not isinstance(started, RecordStarted):
                    raise Unreachable(f"{path}: unexpected reply; is this another version of mfsd?")
                self.found.append(Recorded(started))
                conversation.wait_patiently()
        except BaseException:
            self._close()
            raise
        # Not Thread.join: Ctrl-C in it marks a running thread as ended (in CPython 3.11, for one).
        self._ended = [threading.Event() for _ in self.found]
        for mine in zip(self._conversations, self.found, self._ended, strict=True):
            threading.Thread(target=self._read, args=mine, daemon=True).start()

    def wait(self, seconds: float | None) -> None:
        """Waits until all have ended by themselves, but no longer than this."""
        until_s = None if seconds is None else time.monotonic() + seconds
        for ended in self._ended:
            ended.wait(None if until_s is None else max(0.0, until_s - time.monotonic()))

    def stop(self) -> list[Recorded]:
        """Ends them and returns what was recorded, in the order of the sockets. A daemon gets END_S to send its
        rest."""
        for conversation in self._conversations:
            conversation.finish()
        self.wait(END_S)
        for conversation, found, ended in zip(self._conversations, self.found, self._ended, strict=True):
            if not ended.is_set():
                found.problem = f"mfsd does not answer within {END_S:g} s: events that it had not sent yet are missing"
                conversation.give_up()
                ended.wait()
        self._close()
        return self.found

    def _close(self) -> None:
        for conversation in self._conversations:
            conversation.__exit__()

    def _read(self, conversation: Conversation, to: Recorded, ended: threading.Event) -> None:
        started = to.started
        try:
            while True:
                reply = conversation.reply()
                if not isinstance(reply, RecordEvents):
                    continue  # a reply kind of a later version
                to.events += decode(reply.events)
                to.lost = reply.lost
                to.processes.update(reply.processes)
                to.units.update(reply.units)
                to.nics.update(reply.nics)
                if reply.monotonic_ns:
                    passed_ns = reply.monotonic_ns - started.monotonic_ns
                    to.realtime_drift_ns = reply.realtime_ns - started.realtime_ns - passed_ns
                if reply.last:
                    return
                if len(to.events) >= self._events_max and not to.problem:
                    to.problem = f"the recording ended at {self._events_max} events; see --max-events"
                    conversation.finish()
        except (Unreachable, Refused, ValueError) as error:
            to.problem = to.problem or str(error)
        finally:
            ended.set()
