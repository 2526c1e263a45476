"""Serves the control protocol on a stream socket."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Protocol

from mfsd.node.config_file import ConfigError
from mfsd.node.control import (
    REQUEST_BYTES_MAX,
    ConfigReply,
    ConfigRequest,
    ErrorReply,
    ExplainReply,
    ExplainRequest,
    FlowsRequest,
    HealthRequest,
    ModeReply,
    ModeRequest,
    ProtocolError,
    QueueReply,
    QueueRequest,
    RecordRequest,
    RecordStarted,
    ReloadReply,
    ReloadRequest,
    Reply,
    Request,
    RequestsReply,
    RequestsRequest,
    RulesReply,
    RulesRequest,
    StatusReply,
    TraceReply,
    TraceRequest,
    WhyReply,
    WhyRequest,
    decode_request,
    encode,
)
from mfsd.node.log import Log
from mfsd.node.peer import peer_of
from mfsd.node.recorder import Recording, TooMany
from mfsd.text import one_line

CONNECTIONS_PER_UID = 16
CONNECTIONS_MAX = 64
"""Besides those of root and the daemon's user, who can always connect."""
IDLE_S = 10.0
WRITE_S = 5.0
RECORD_S = 0.05
"""Time between two reads of the ring of events."""


class Controllable(Protocol):
    """What the control socket reads and changes."""

    def status(self) -> StatusReply: ...
    def rules(self) -> RulesReply: ...
    def switch_mode(self, request: ModeRequest) -> ModeReply: ...
    def trace(self, request: TraceRequest) -> TraceReply: ...
    def list_requests(self, request: RequestsRequest) -> RequestsReply: ...
    def queue(self, request: QueueRequest) -> QueueReply: ...
    def record(self, request: RecordRequest) -> tuple[RecordStarted, Recording]:
        """Raises TooMany, or ProtocolError if the client understands another layout of events."""

    def configuration(self) -> ConfigReply: ...
    def why(self, request: WhyRequest) -> WhyReply:
        """Raises LookupError if nothing is known about it."""

    def explain(self, request: ExplainRequest) -> ExplainReply:
        """Raises LookupError, with a line for people, if there is no such task."""

    def reload(self) -> ReloadReply:
        """Raises ConfigError if the file cannot be used. The old configuration stays."""


class ControlServer:
    """Answers requests until closed."""

    def __init__(self, listener: socket.socket, target: Controllable, log: Log) -> None:
        self._listener = listener
        self._target = target
        self._log = log
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], int] = {}
        """Connections, and the users that opened them."""

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._connected, sock=self._listener, limit=REQUEST_BYTES_MAX)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            uid = peer_of(writer.get_extra_info("socket")).uid
            may_change = uid in (0, os.geteuid())
            if may_change or self._has_room(uid):
                self._tasks[task] = uid
                await self._serve(reader, writer, may_change)
                writer.close()
                await asyncio.wait_for(writer.wait_closed(), WRITE_S)
        except (OSError, asyncio.TimeoutError, ValueError, asyncio.CancelledError):
            pass  # the client is gone or silent, a line has no end, or the daemon stops: the connection ends
        finally:
            self._tasks.pop(task, None)
            writer.transport.abort()

    def _has_room(self, uid: int) -> bool:
        others = [u for u in self._tasks.values() if u not in (0, os.geteuid())]
        return len(others) < CONNECTIONS_MAX and others.count(uid) < CONNECTIONS_PER_UID

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, may_change: bool) -> None:
        while line := await asyncio.wait_for(reader.readline(), IDLE_S):
            try:
                request = decode_request(line)
                if isinstance(request, RecordRequest):
                    await self._record(request, reader, writer)
                    return
                reply = self._answer(request, may_change)
            except ProtocolError as error:
                reply = ErrorReply(error.code, str(error))
            except TooMany as error:
                reply = ErrorReply("failed", str(error))
            except OSError:  # the connection, or the daemon, is about to be gone
                raise
            except Exception as error:  # a defect must cost one answer, not the connection
                self._log.error("control-failed", error=repr(error))
                reply = ErrorReply("failed", one_line(f"mfsd could not do it: {error}"))
            writer.write(encode(reply))
            await asyncio.wait_for(writer.drain(), WRITE_S)

    async def _record(self, request: RecordRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Streams events until the client closes its writing side, or is gone."""
        started, recording = self._target.record(request)
        ended = asyncio.ensure_future(reader.read(1))
        try:
            writer.write(encode(started))
            while True:
                last = ended.done()
                events = recording.take(last)
                writer.write(encode(events))
                await asyncio.wait_for(writer.drain(), WRITE_S)
                if events.last:
                    return
                if not recording.waiting:
                    await asyncio.wait({ended}, timeout=RECORD_S)
        finally:
            recording.close()
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)

    def _answer(self, request: Request, may_change: bool) -> Reply:
        if isinstance(request, (ModeRequest, ReloadRequest)) and not may_change:
            return ErrorReply("denied", "only root and the daemon's user may change it; use sudo")
        if isinstance(request, FlowsRequest):
            return ErrorReply("denied", "flows are shown through a coordinator; here, record events")
        if isinstance(request, HealthRequest):
            return ErrorReply("denied", "health is shown through a coordinator; here, run mfsctl doctor")
        try:
            if isinstance(request, ModeRequest):
                return self._target.switch_mode(request)
            if isinstance(request, ReloadRequest):
                return self._target.reload()
            if isinstance(request, TraceRequest):
                return self._target.trace(request)
            if isinstance(request, ExplainRequest):
                return self._target.explain(request)
            if isinstance(request, ConfigRequest):
                return self._target.configuration()
            if isinstance(request, WhyRequest):
                return self._target.why(request)
            if isinstance(request, RequestsRequest):
                return self._target.list_requests(request)
            if isinstance(request, QueueRequest):
                return self._target.queue(request)
            return self._target.rules() if isinstance(request, RulesRequest) else self._target.status()
        except ConfigError as error:
            return ErrorReply("config", f"the old configuration stays in force: {error}")
        except LookupError as error:
            return ErrorReply("not-found", one_line(str(error)))
