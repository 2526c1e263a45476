"""What a daemon answers through the coordinator: only reading, and little at a time."""

from __future__ import annotations

import asyncio

from mfsd.node.control import (
    ErrorReply,
    FlowsReply,
    FlowsRequest,
    HealthFinding,
    HealthReply,
    HealthRequest,
    ModeRequest,
    ReloadRequest,
    Reply,
    Request,
    StatusRequest,
    WhyReply,
    WhyRequest,
    decode_reply,
    encode,
)
from mfsd.node.events import Event, Kind
from mfsd.node.health import Examined, Health
from mfsd.node.questions import EVENTS_MAX, FLOWS_MAX, Questions
from mfsd.node.recorder import RECORDINGS_MAX, Recorder
from tests.support.cluster import in_loop, until

EVENT_BYTES = 64


class Source:
    """An arbiter whose events a test writes."""

    def __init__(self) -> None:
        self.waiting = b""
        self.attached = False

    def trace_attach(self, slots: int = 0) -> None:
        self.attached = True

    def trace_detach(self) -> None:
        self.attached = False

    def trace_read(self, n: int = 1) -> tuple[bytes, int]:
        events, self.waiting = self.waiting[: n * EVENT_BYTES], self.waiting[n * EVENT_BYTES :]
        return events, 0

    def ends(self, count: int, stage: int = 3) -> None:
        import struct

        for task in range(count):
            event = Event(10**9, task, 100, 7, 0, 0, 1, 0, 0, Kind.COMPLETE, stage, 0, 0, 0, 0)
            self.waiting += struct.pack("=QQQQQQIIHBBBBBB", *event)


class Target:
    """A daemon: itself and its names."""

    def __init__(self) -> None:
        self.examined = 0
        self.doctor = Health(self._examine)

    def _examine(self) -> Examined:
        self.examined += 1
        if self.examined > 1:
            raise OSError("not examined twice")
        return Examined("not scheduled", [HealthFinding("fail", "devices.none", "", "there is none", "buy one")])

    def why(self, request: WhyRequest) -> WhyReply:
        if request.number != 7:
            raise LookupError(f"{request.number}: no request is known")
        return WhyReply("request 7", "idle", ["It is."])

    async def health(self) -> HealthReply:
        verdict, findings = await self.doctor.read()
        return HealthReply("0.1.0", "enforce", verdict, findings, 1)

    def processes(self) -> dict[int, str]:
        return {1: "engine"}

    def units(self) -> dict[int, str]:
        return {}

    def nics(self) -> dict[int, str]:
        return {0: "mlx5_0"}


class Asked:
    def __init__(self) -> None:
        self.source, self.answers = Source(), list[tuple[int, Reply, bool]]()
        self.target = Target()
        recorder = Recorder(self.source, self.target, "node-a", 1, 1, EVENT_BYTES)
        self.questions = Questions("node-a", self.target, recorder, EVENT_BYTES, self._answer)

    def _answer(self, number: int, reply: bytes, last: bool) -> None:
        self.answers.append((number, decode_reply(reply), last))

    def ask(self, number: int, request: Request) -> None:
        self.questions.asked(number, encode(request))

    def flows(self, number: int) -> FlowsReply | None:
        found = [reply for at, reply, _ in self.answers if at == number and isinstance(reply, FlowsReply)]
        return found[-1] if found and found[-1].flows else None


def test_what_is_asked_once_is_answered_once() -> None:
    asked = Asked()
    asked.ask(1, WhyRequest(7, "request"))
    asked.ask(2, WhyRequest(8, "request"))
    asked.questions.asked(3, b"{nonsense")
    (one, why, _), (_, unknown, _), (_, nonsense, _) = asked.answers
    assert one == 1 and isinstance(why, WhyReply) and all(last for _, _, last in asked.answers)
    assert isinstance(unknown, ErrorReply) and unknown.code == "not-found"
    assert isinstance(nonsense, ErrorReply) and nonsense.code == "malformed"


def test_nothing_is_changed_through_a_coordinator() -> None:
    asked = Asked()
    requests: list[Request] = [ModeRequest("observe"), ReloadRequest(), StatusRequest()]
    for number, request in enumerate(requests):
        asked.ask(number, request)
    assert [isinstance(reply, ErrorReply) and reply.code for _, reply, _ in asked.answers] == ["denied"] * 3


@in_loop
async def test_flows_come_until_the_reader_leaves() -> None:
    asked = Asked()
    asked.ask(5, FlowsRequest(["p2d"], process="eng"))
    asked.ask(6, FlowsRequest(["reuse"]))
    asked.source.ends(3)
    await until(lambda: asked.flows(5), "the flows")
    reply = asked.flows(5)
    assert (
        reply is not None and [(f.node, f.process, f.stage) for f in reply.flows] == [("node-a", "engine", "p2d")] * 3
    )
    assert asked.flows(6) is None and asked.source.attached
    asked.questions.unasked(5)
    asked.questions.forgotten()
    await until(lambda: not asked.source.attached, "the end of the recordings")


@in_loop
async def test_a_flood_is_cut_and_counted() -> None:
    asked = Asked()
    asked.ask(5, FlowsRequest())
    asked.source.ends(2 * EVENTS_MAX)
    await until(lambda: asked.flows(5), "the flows")
    reply = asked.flows(5)
    assert reply is not None and len(reply.flows) == FLOWS_MAX
    assert reply.lost == 2 * EVENTS_MAX - FLOWS_MAX
    asked.questions.forgotten()
    await asyncio.sleep(0)


@in_loop
async def test_more_recordings_than_there_are_is_reported() -> None:
    asked = Asked()
    for number in range(RECORDINGS_MAX + 1):
        asked.ask(number, FlowsRequest())
    ((number, reply, last),) = asked.answers
    assert number == RECORDINGS_MAX and last and isinstance(reply, ErrorReply) and "recordings" in reply.message
    asked.questions.forgotten()
    await until(lambda: not asked.source.attached, "the end of the recordings")


@in_loop
async def test_many_who_ask_for_the_doctor_share_one_examination() -> None:
    asked = Asked()
    for number in range(5):
        asked.ask(number, HealthRequest())
    await until(lambda: len(asked.answers) == 5, "five answers")
    assert {(type(reply), last) for _, reply, last in asked.answers} == {(HealthReply, True)}
    assert asked.target.examined == 1


@in_loop
async def test_a_doctor_that_fails_is_said_so() -> None:
    asked = Asked()
    asked.target.examined = 1
    asked.ask(3, HealthRequest())
    await until(lambda: asked.answers, "an answer")
    ((_, reply, last),) = asked.answers
    assert last and isinstance(reply, ErrorReply) and "not examined twice" in reply.message
