"""Gives the arbiter's events to the recordings. Without any recording, the arbiter writes no events."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from mfsd.node.control import RecordEvents, RecordStarted

RECORDINGS_MAX = 4
RING_EVENTS = 131_072
"""8 MiB, only during a recording."""
CHUNK_EVENTS = 32_768
"""Events in one reply, which must fit a line."""
WAITING_BYTES_MAX = 1 << 26
"""Backlog of one recording that reads slowly. What exceeds it is lost, and counted."""
CLOCK_READINGS = 9


class Source(Protocol):
    """The part of the arbiter that this module needs."""

    def trace_attach(self, slots: int = ...) -> None: ...
    def trace_detach(self) -> None: ...
    def trace_read(self, n: int = ...) -> tuple[bytes, int]: ...


class Names(Protocol):
    """Names for the numbers in events."""

    def processes(self) -> Mapping[int, str]: ...
    def units(self) -> Mapping[int, str]: ...
    def nics(self) -> Mapping[int, str]: ...


class TooMany(Exception):
    """RECORDINGS_MAX recordings are under way."""

    def __init__(self) -> None:
        super().__init__(f"{RECORDINGS_MAX} recordings are under way; wait for one of them to end")


class Recording:
    """One reader's events."""

    def __init__(self, recorder: Recorder, lost_before: int) -> None:
        self._recorder = recorder
        self._lost_before = lost_before
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._named: dict[str, dict[int, str]] = {"processes": {}, "units": {}, "nics": {}}

    def put(self, events: bytes, event_bytes: int) -> None:
        if self._waiting_bytes + len(events) > WAITING_BYTES_MAX:
            self._dropped += len(events) // event_bytes
            return
        self._waiting.append(events)
        self._waiting_bytes += len(events)

    def take(self, last: bool = False) -> RecordEvents:
        """Returns what has happened since the last call, or the first part of it: while `waiting`, take the rest."""
        lost = self._recorder.pump()
        events = self._waiting.popleft() if self._waiting else b""
        self._waiting_bytes -= len(events)
        fresh = {}
        for kind, known in self._named.items():
            now = getattr(self._recorder.names, kind)()
            fresh[kind] = {number: name for number, name in now.items() if known.get(number) != name}
            known.update(fresh[kind])
        monotonic_ns, realtime_ns, _ = read_clocks()
        return RecordEvents(
            events,
            lost - self._lost_before + self._dropped,
            fresh["processes"],
            fresh["units"],
            fresh["nics"],
            monotonic_ns,
            realtime_ns,
            last and not self._waiting,
        )

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def close(self) -> None:
        self._recorder.end(self)


class Recorder:
    """Owned by the daemon's loop."""

    def __init__(self, source: Source, names: Names, node: str, pid: int, epoch: int, event_bytes: int) -> None:
        self._source = source
        self.names = names
        self._node, self._pid, self._epoch = node, pid, epoch
        self._event_bytes = event_bytes
        self._recordings: list[Recording] = []

    def start(self) -> tuple[RecordStarted, Recording]:
        """Starts a recording. Raises TooMany, or OSError without memory."""
        if len(self._recordings) == RECORDINGS_MAX:
            raise TooMany
        if not self._recordings:
            self._source.trace_attach(RING_EVENTS)
        recording = Recording(self, self.pump())
        self._recordings.append(recording)
        monotonic_ns, realtime_ns, uncertainty_ns = read_clocks()
        return RecordStarted(self._node, self._pid, self._epoch, monotonic_ns, realtime_ns, uncertainty_ns), recording

    def end(self, recording: Recording) -> None:
        if recording in self._recordings:
            self._recordings.remove(recording)
            if not self._recordings:
                self._source.trace_detach()

    def pump(self) -> int:
        """Gives every recording what the ring holds. Returns the number of events lost so far."""
        while True:
            events, lost = self._source.trace_read(CHUNK_EVENTS)
            if events:
                for recording in self._recordings:
                    recording.put(events, self._event_bytes)
            if len(events) < CHUNK_EVENTS * self._event_bytes:
                return lost


def read_clocks(
    monotonic_ns: Callable[[], int] = time.monotonic_ns, realtime_ns: Callable[[], int] = time.time_ns
) -> tuple[int, int, int]:
    """CLOCK_MONOTONIC and CLOCK_REALTIME at one moment, and how far apart the readings may be. The best of several."""
    readings = []
    for _ in range(CLOCK_READINGS):
        before, real, after = monotonic_ns(), realtime_ns(), monotonic_ns()
        readings.append((after - before, (before + after) // 2, real))
    width, monotonic, real = min(readings)
    return monotonic, real, (width + 1) // 2
