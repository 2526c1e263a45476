"""Answers what operators ask through the coordinator: what a request waits for and has moved, flows as they end, and
the doctor's findings.

It only reads, and little at a time. Few questions are open at once. Of flows that end too fast only some are read; the
rest is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from mfsd.node.control import (
    ErrorReply,
    FlowsReply,
    FlowsRequest,
    HealthReply,
    HealthRequest,
    ProtocolError,
    Reply,
    WhyReply,
    WhyRequest,
    decode_request,
    encode,
)
from mfsd.node.events import decode
from mfsd.node.flows import Filter, Pairing
from mfsd.node.recorder import Recorder, Recording, TooMany, read_clocks
from mfsd.text import one_line

LOOK_S = 0.25
FLOWS_MAX = 250
"""Flows in one answer: some 80 KB."""
EVENTS_MAX = 4_096
"""Events read in one step: some 10 ms of the daemon's loop."""


class Target(Protocol):
    """The part of the daemon that this module needs."""

    def why(self, request: WhyRequest) -> WhyReply:
        """Raises LookupError if nothing is known about it."""

    async def health(self) -> HealthReply: ...


class Questions:
    """Owned by the daemon's loop."""

    def __init__(
        self,
        node: str,
        target: Target,
        recorder: Recorder,
        event_bytes: int,
        answer: Callable[[int, bytes, bool], None],
    ) -> None:
        """`answer` takes a question's number, one answer, and whether it is the last."""
        self._node, self._target, self._recorder, self._event_bytes = node, target, recorder, event_bytes
        self._answer = answer
        self._open: dict[int, asyncio.Task[None]] = {}

    def asked(self, question_id: int, request: bytes) -> None:
        try:
            found = self._now(question_id, request)
        except ProtocolError as error:
            found = ErrorReply(error.code, str(error))
        except LookupError as error:
            found = ErrorReply("not-found", one_line(str(error)))
        except (TooMany, OSError) as error:
            found = ErrorReply("failed", one_line(str(error)))
        if found is not None:
            self._answer(question_id, encode(found), True)

    def unasked(self, question_id: int) -> None:
        task = self._open.pop(question_id, None)
        if task is not None:
            task.cancel()

    def forgotten(self) -> None:
        for question_id in list(self._open):
            self.unasked(question_id)

    def _now(self, question_id: int, line: bytes) -> Reply | None:
        """Returns the answer; None if answers come later."""
        match decode_request(line):
            case WhyRequest() as request:
                return self._target.why(request)
            case FlowsRequest() as request:
                self.unasked(question_id)
                _, recording = self._recorder.start()
                task = asyncio.get_running_loop().create_task(self._flows(question_id, request, recording))
                task.add_done_callback(lambda _: recording.close())  # also if the task is cancelled before it runs
                self._open[question_id] = task
                return None
            case HealthRequest():
                self.unasked(question_id)
                self._open[question_id] = asyncio.get_running_loop().create_task(self._health(question_id))
                return None
            case _:
                return ErrorReply("denied", "this is not answered through a coordinator; ask on the node itself")

    async def _health(self, question_id: int) -> None:
        try:
            reply: Reply = await self._target.health()
        except Exception as error:  # any check may fail, and the caller is told
            reply = ErrorReply("failed", one_line(f"the doctor failed: {error}"))
        self._open.pop(question_id, None)
        self._answer(question_id, encode(reply), True)

    async def _flows(self, question_id: int, request: FlowsRequest, recording: Recording) -> None:
        wanted = Filter(
            frozenset(request.stages), request.request_id, request.port, "", request.process, request.slow_s
        )
        pairing, processes, nics = Pairing(self._node), dict[int, str](), dict[int, str]()
        unread = 0
        while True:
            await asyncio.sleep(LOOK_S)
            flows, taken, more = [], 0, True
            while more:
                events = recording.take()
                more = recording.waiting
                processes.update(events.processes)
                nics.update(events.nics)
                room = (EVENTS_MAX - taken) * self._event_bytes
                unread += max(0, len(events.events) - room) // self._event_bytes
                part = decode(events.events[:room])
                taken += len(part)
                flows += [flow for flow in pairing.take(part, processes, nics) if wanted.wants(flow)]
            unread += max(0, len(flows) - FLOWS_MAX)
            monotonic_ns, realtime_ns, _ = read_clocks()
            reply = FlowsReply(flows[:FLOWS_MAX], events.lost + unread, realtime_ns - monotonic_ns)
            self._answer(question_id, encode(reply), False)
