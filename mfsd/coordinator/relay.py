"""Operators' questions to daemons. The leader passes them on, and the answers back, and reads neither.

A limited number of bytes of answers is buffered for the caller. Answers beyond that are dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Protocol

from mfsd.proto import mfs_pb2 as pb

REQUEST_BYTES_MAX = 4_096
OPEN_MAX = 16
WAITING_BYTES_MAX = 2 << 20
"""Limit of the answers that one reader has not taken."""
REPLY_BYTES_MAX = 512 << 10
REPLY_BYTES = 64
"""What an answer without content counts for."""


class Daemon(Protocol):
    """The part of a stream that is needed here."""

    @property
    def node(self) -> str: ...
    @property
    def hello(self) -> pb.Hello: ...
    def send(self, message: pb.ToNode) -> None: ...


class NotAsked(Exception):
    """``str()`` gives the reason."""


class _Question:
    def __init__(self, number: int, request: bytes, node: str) -> None:
        self.number, self.request, self.node = number, request, node
        self._replies: deque[pb.AskReply] = deque()
        self._bytes = self.lost = 0
        self._come = asyncio.Event()
        self.open: set[str] = set()
        """Nodes that have more to answer."""

    def put(self, reply: pb.AskReply) -> None:
        """Adds an answer. A node's last one is never dropped, because the reader waits for it."""
        size = REPLY_BYTES + len(reply.reply)
        if self._bytes + size > WAITING_BYTES_MAX:
            self.lost += 1
            if not reply.last:
                return
            reply.ClearField("reply")
            size = REPLY_BYTES
        self._bytes += size
        self._replies.append(reply)
        self._come.set()

    async def take(self) -> pb.AskReply:
        while not self._replies:
            self._come.clear()
            await self._come.wait()
        reply = self._replies.popleft()
        self._bytes -= REPLY_BYTES + len(reply.reply)
        reply.lost = self.lost
        return reply

    @property
    def over(self) -> bool:
        return not self.open and not self._replies


class Questions:
    def __init__(self, daemons: Callable[[], Iterable[Daemon]]) -> None:
        """daemons: returns those that follow this leader now."""
        self._daemons = daemons
        self._open: dict[int, _Question] = {}
        self._given = 0

    async def ask(self, request: pb.AskRequest) -> AsyncGenerator[pb.AskReply, None]:
        """Yields answers until every node has sent its last one. The first reply has the number of nodes asked. Raises
        NotAsked."""
        if len(request.request) > REQUEST_BYTES_MAX:
            raise NotAsked(f"the question has {len(request.request)} bytes: at most {REQUEST_BYTES_MAX}")
        if len(self._open) >= OPEN_MAX:
            raise NotAsked(f"{OPEN_MAX} questions are open; wait for one of them to end")
        self._given += 1
        question = self._open[self._given] = _Question(self._given, request.request, request.node)
        try:
            daemons = [daemon for daemon in self._daemons() if request.node in daemon.node]
            yield pb.AskReply(asked=len(daemons))
            for daemon in daemons:
                self._pass_on(question, daemon)
            while not question.over:
                yield await question.take()
        finally:
            del self._open[question.number]
            for daemon in self._daemons():
                if daemon.node in question.open:
                    daemon.send(pb.ToNode(question=pb.Question(id=question.number, end=True)))

    def joined(self, daemon: Daemon) -> None:
        """A daemon has connected (again): all open questions are passed to it, too."""
        for question in self._open.values():
            if question.node in daemon.node:
                self._pass_on(question, daemon)

    def left(self, node: str) -> None:
        for question in self._open.values():
            if node in question.open:
                question.open.discard(node)
                question.put(pb.AskReply(node=node, last=True, problem="its daemon is not connected any more"))

    def answered(self, node: str, answer: pb.Answer) -> None:
        """Passes an answer on. An answer that no caller waits for is ignored."""
        question = self._open.get(answer.id)
        if question is None or node not in question.open:
            return
        if answer.last:
            question.open.discard(node)
        if len(answer.reply) > REPLY_BYTES_MAX:
            question.put(pb.AskReply(node=node, last=answer.last, problem="its answer is too long to be passed on"))
        else:
            question.put(pb.AskReply(node=node, reply=answer.reply, last=answer.last))

    def _pass_on(self, question: _Question, daemon: Daemon) -> None:
        if not daemon.hello.answers:
            problem = f"mfsd {daemon.hello.version} is too old to answer"
            question.put(pb.AskReply(node=daemon.node, last=True, problem=problem))
            return
        question.open.add(daemon.node)
        daemon.send(pb.ToNode(question=pb.Question(id=question.number, request=question.request)))
