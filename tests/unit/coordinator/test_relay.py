"""Questions to daemons: passed on, answered, ended; bounded whatever daemons and operators do."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from mfsd.coordinator.relay import (
    OPEN_MAX,
    REPLY_BYTES_MAX,
    REQUEST_BYTES_MAX,
    WAITING_BYTES_MAX,
    NotAsked,
    Questions,
)
from mfsd.proto import mfs_pb2 as pb
from tests.support.cluster import in_loop


class Daemon:
    def __init__(self, node: str, answers: bool = True) -> None:
        self.node = node
        self.hello = pb.Hello(node=node, version="0.0.9", answers=answers)
        self.received: list[pb.Question] = []

    def send(self, message: pb.ToNode) -> None:
        self.received.append(message.question)


def answer(daemon: Daemon, reply: bytes, last: bool = True) -> pb.Answer:
    return pb.Answer(id=daemon.received[-1].id, reply=reply, last=last)


@in_loop
async def test_all_are_asked_and_the_question_ends_with_the_last_answer() -> None:
    daemons = [Daemon("a"), Daemon("b"), Daemon("old", answers=False)]
    questions = Questions(lambda: daemons)
    async with aclosing(questions.ask(pb.AskRequest(request=b"why"))) as replies:
        assert (await anext(replies)).asked == 3
        coming = asyncio.create_task(anext(replies))
        await asyncio.sleep(0)
        questions.answered("b", answer(daemons[1], b"of b"))
        questions.answered("b", answer(daemons[1], b"twice"))
        questions.answered("a", answer(daemons[0], b"part", last=False))
        questions.left("a")
        seen = [await coming] + [reply async for reply in replies]
    assert [(r.node, r.reply, r.last) for r in seen] == [
        ("old", b"", True), ("b", b"of b", True), ("a", b"part", False), ("a", b"", True),
    ]  # fmt: skip
    assert "too old" in seen[0].problem and "no longer connected" in seen[-1].problem
    assert [d.received[0].request for d in daemons[:2]] == [b"why", b"why"] and not daemons[2].received


@in_loop
async def test_who_stops_asking_is_not_answered_and_who_joins_is_asked() -> None:
    daemons = [Daemon("gpu-1"), Daemon("cpu-1")]
    questions = Questions(lambda: daemons)
    async with aclosing(questions.ask(pb.AskRequest(request=b"flows", node="gpu"))) as replies:
        assert (await anext(replies)).asked == 1
        coming = asyncio.create_task(anext(replies))
        await asyncio.sleep(0)
        daemons.append(Daemon("gpu-2"))
        questions.joined(daemons[2])
        questions.answered("gpu-2", answer(daemons[2], b"a flow", last=False))
        assert (await coming).node == "gpu-2"
    assert daemons[0].received[-1].end and daemons[2].received[-1].end and not daemons[1].received
    questions.answered("gpu-1", answer(daemons[0], b"late"))  # no reader waits for it


@in_loop
async def test_nothing_grows_without_bound() -> None:
    daemons = [Daemon("a")]
    questions = Questions(lambda: daemons)
    with pytest.raises(NotAsked, match="bytes, the limit is"):
        await anext(questions.ask(pb.AskRequest(request=b"x" * (REQUEST_BYTES_MAX + 1))))
    asked = [questions.ask(pb.AskRequest(request=b"flows")) for _ in range(OPEN_MAX)]
    for replies in asked:
        await anext(replies)
    with pytest.raises(NotAsked, match="questions are open"):
        await anext(questions.ask(pb.AskRequest(request=b"flows")))
    coming = asyncio.create_task(anext(asked[0]))
    await asyncio.sleep(0)
    part = b"x" * (REPLY_BYTES_MAX - 100)
    count = WAITING_BYTES_MAX // REPLY_BYTES_MAX + 10
    for _ in range(count):
        questions.answered("a", answer(daemons[0], part, last=False))
    questions.answered("a", answer(daemons[0], b"x" * (REPLY_BYTES_MAX + 1)))
    seen = [await coming] + [reply async for reply in asked[0]]
    assert sum(len(reply.reply) for reply in seen) <= WAITING_BYTES_MAX
    assert sum(bool(reply.reply) for reply in seen) + seen[-1].lost == count
    assert seen[-1].last and "the limit is" in seen[-1].problem, "the last word comes whatever was lost"
    for replies in asked:
        await replies.aclose()
    await anext(questions.ask(pb.AskRequest(request=b"flows")))
