"""Operators' questions to daemons: the leader passes them on and the answers back, and reads neither.

Answers wait in a queue of fixed size for whoever asked; what comes faster than it goes is lost and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Protocol

from mfsd.proto import mfs_pb2 as pb

REQUEST_BYTES_MAX = 4_096
OPEN_MAX = 32
WAITING_MAX = 512


class Daemon(Protocol):
    """A stream, by what is needed of it."""

    @property
    def node(self) -> str: ...
    @property
    def hello(self) -> pb.Hello: ...
    def send(self, message: pb.ToNode) -> None: ...


class NotAsked(Exception):
    """``str()`` says why."""


class _Question:
    def __init__(self, number: int, request: bytes, node: str) -> None:
        self.number, self.request, self.node = number, request, node
        self.replies: asyncio.Queue[pb.AskReply] = asyncio.Queue(WAITING_MAX)
        self.lost = 0
        self.open: set[str] = set()
        """Nodes that have more to say."""

    def put(self, reply: pb.AskReply) -> None:
        if self.replies.full():
            self.replies.get_nowait()
            self.lost += 1
        self.replies.put_nowait(reply)


class Questions:
    def __init__(self, daemons: Callable[[], Iterable[Daemon]]) -> None:
        """daemons: those that follow this leader now."""
        self._daemons = daemons
        self._open: dict[int, _Question] = {}
        self._given = 0

    async def ask(self, request: pb.AskRequest) -> AsyncGenerator[pb.AskReply, None]:
        """Answers until every node has said its last; the first reply says how many were asked. NotAsked."""
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
            while question.open or not question.replies.empty():
                reply = await question.replies.get()
                reply.lost = question.lost
                yield reply
        finally:
            del self._open[question.number]
            for daemon in self._daemons():
                if daemon.node in question.open:
                    daemon.send(pb.ToNode(question=pb.Question(id=question.number, end=True)))

    def joined(self, daemon: Daemon) -> None:
        """A daemon has come (back): what is open is asked of it, too."""
        for question in self._open.values():
            if question.node in daemon.node:
                self._pass_on(question, daemon)

    def left(self, node: str) -> None:
        for question in self._open.values():
            if node in question.open:
                question.open.discard(node)
                question.put(pb.AskReply(node=node, last=True, problem="its daemon is not connected any more"))

    def answered(self, node: str, answer: pb.Answer) -> None:
        """Answers to what nobody waits for are ignored."""
        question = self._open.get(answer.id)
        if question is None or node not in question.open:
            return
        if answer.last:
            question.open.discard(node)
        question.put(pb.AskReply(node=node, reply=answer.reply, last=answer.last))

    def _pass_on(self, question: _Question, daemon: Daemon) -> None:
        if not daemon.hello.answers:
            problem = f"mfsd {daemon.hello.version} is too old to answer"
            question.put(pb.AskReply(node=daemon.node, last=True, problem=problem))
            return
        question.open.add(daemon.node)
        daemon.send(pb.ToNode(question=pb.Question(id=question.number, request=question.request)))
