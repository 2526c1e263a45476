"""What the endpoint picker says to a proxy's messages, and what it counts."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable

import pytest

from mfsd.proto import ext_proc_pb2 as pb
from mfsd.serve.gateway import picked
from mfsd.serve.gateway.core import Gateway
from mfsd.serve.gateway.picker import Picker
from mfsd.serve.gateway.settings import Admission, GatewaySettings, ReplicaSettings
from tests.support.ext_proc import Aborted, Stream, answer_head, gateway, head

TWO = GatewaySettings(
    replicas=[ReplicaSettings("http://10.0.0.1:8000", name="a"), ReplicaSettings("http://[fd00::2]", name="b")]
)
BODY = json.dumps({"prompt": "one two"}).encode()


def request(*messages: pb.ProcessingRequest) -> list[bytes]:
    return [message.SerializeToString() for message in messages]


ASKED = (
    pb.ProcessingRequest(request_headers=head()),
    pb.ProcessingRequest(request_body=pb.HttpBody(body=BODY[:5])),
    pb.ProcessingRequest(request_body=pb.HttpBody(body=BODY[5:], end_of_stream=True)),
)


def with_gateway(work: Callable[[Gateway, Picker], Awaitable[None]], settings: GatewaySettings = TWO) -> None:
    async def main() -> None:
        async with gateway(settings) as made:
            await work(made, Picker(made))
            for replica in made.replicas.all:
                assert (replica.waiting, replica.running, replica.waiting_tokens) == (0, 0, 0), replica.name
            assert not any(made.admission.of_tier.values()) and not len(made.admission)
            assert made.metrics.streams._value.get() == 0

    asyncio.run(main())


async def conversation(picker: Picker, *messages: pb.ProcessingRequest) -> Stream:
    stream = Stream(request(*messages))
    with contextlib.suppress(Aborted):
        await asyncio.wait_for(picker.process(None, stream), 60)  # type: ignore[arg-type]
    return stream


def endpoint_of(reply: pb.ProcessingResponse) -> str:
    return reply.dynamic_metadata.fields["envoy.lb"].struct_value.fields[picked.ENDPOINT].string_value


def outcomes(made: Gateway) -> dict[str, float]:
    (family,) = made.metrics.requests.collect()
    return {s.labels["outcome"]: s.value for s in family.samples if s.name.endswith("_total")}


def test_the_endpoint_is_in_a_header_and_in_the_metadata_before_the_body() -> None:
    async def work(made: Gateway, picker: Picker) -> None:
        stream = await conversation(picker, *ASKED)
        first, second = stream.sent
        common = first.request_headers.response
        endpoints = "10.0.0.1:8000,[fd00::2]:80"
        assert [(o.header.key, o.header.raw_value.decode()) for o in common.header_mutation.set_headers] == [
            (picked.ENDPOINT, endpoints)
        ]
        assert endpoint_of(first) == endpoints and common.clear_route_cache
        part = second.request_body.response.body_mutation.streamed_response
        assert (part.body, part.end_of_stream) == (BODY, True)
        assert outcomes(made) == {"withdrawn": 1}, "it had no answer"

    with_gateway(work)


def test_a_large_body_goes_back_in_parts_and_trailers_follow() -> None:
    async def work(made: Gateway, picker: Picker) -> None:
        text = json.dumps({"prompt": "x" * 150_000}).encode()
        body = pb.ProcessingRequest(request_body=pb.HttpBody(body=text))
        trailers = pb.ProcessingRequest(request_trailers=pb.HttpTrailers())
        stream = await conversation(picker, ASKED[0], body, trailers)
        kinds = [reply.WhichOneof("response") for reply in stream.sent]
        assert kinds == ["request_headers", *["request_body"] * 3, "request_trailers"]
        parts = [reply.request_body.response.body_mutation.streamed_response for reply in stream.sent[1:-1]]
        assert b"".join(part.body for part in parts) == text and not any(part.end_of_stream for part in parts)
        assert max(len(part.body) for part in parts) <= 64 << 10

    with_gateway(work)


def served(endpoint: str, head: pb.HttpHeaders) -> pb.ProcessingRequest:
    message = pb.ProcessingRequest(response_headers=head)
    message.metadata_context.filter_metadata[picked.NAMESPACE].update({picked.SERVED: endpoint})
    return message


def test_the_load_moves_to_the_endpoint_that_answers_and_ends_with_the_answer() -> None:
    async def work(made: Gateway, picker: Picker) -> None:
        a, b = made.replicas.all
        seen: list[tuple[int, int]] = []

        class Watched(Stream):
            async def write(self, message: pb.ProcessingResponse) -> None:
                await super().write(message)
                seen.append((a.waiting + a.running, b.waiting + b.running))

        body = pb.ProcessingRequest(response_body=pb.HttpBody(body=b"data: x\n\n"))
        last = pb.ProcessingRequest(response_body=pb.HttpBody(end_of_stream=True))
        stream = Watched(request(*ASKED, served("[fd00::2]:80", answer_head()), body, last))
        await picker.process(None, stream)  # type: ignore[arg-type]
        assert seen == [(1, 0), (1, 0), (0, 1), (0, 1), (0, 0)]
        assert stream.sent[2].response_headers.response.header_mutation.set_headers[0].header.raw_value == b"b"
        assert (a.failed, a.sent, b.sent) == (1, 0, 1) and outcomes(made) == {"answered": 1}
        unknown = await conversation(picker, *ASKED, served("10.9.9.9:1", answer_head(last=True)))
        assert len(unknown.sent) == 3 and (a.sent, b.sent) == (1, 1), "an endpoint of others changes nothing"

    with_gateway(work)


def test_the_place_that_a_move_leaves_goes_to_who_waits() -> None:
    async def work(made: Gateway, picker: Picker) -> None:
        a, b = made.replicas.all
        most = a.settings.requests_max
        a.foreign_running = b.foreign_running = most - 1
        others_wait = asyncio.Event()

        class Late(Stream):
            async def read(self) -> object:
                if len(self._messages) == 1:  # the answer's head
                    await others_wait.wait()
                return await super().read()

        moves = Late(request(*ASKED, served("[fd00::2]:80", answer_head())), ends=False)
        waits = Stream(request(*ASKED), ends=False)
        tasks = [asyncio.create_task(picker.process(None, moves))]  # type: ignore[arg-type]
        while not a.waiting:
            await asyncio.sleep(0)
        b.foreign_running = most
        tasks.append(asyncio.create_task(picker.process(None, waits)))  # type: ignore[arg-type]
        while not len(made.admission):
            await asyncio.sleep(0)
        others_wait.set()
        while not b.waiting:
            await asyncio.sleep(0)
        assert not len(made.admission) and a.waiting == 1
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    with_gateway(work)


def test_an_error_of_the_proxys_own_is_no_answer() -> None:
    async def work(made: Gateway, picker: Picker) -> None:
        doubted: list[str] = []
        made.doubt = lambda replica: doubted.append(replica.name)  # type: ignore[method-assign]
        await conversation(picker, *ASKED, pb.ProcessingRequest(response_headers=answer_head("503", last=True)))
        assert outcomes(made) == {"failed": 1} and doubted == ["a"]
        assert [replica.sent for replica in made.replicas.all] == [0, 0]

    with_gateway(work)


@pytest.mark.parametrize("text", ["fd00", None])
def test_subsets_are_lists_or_texts(text: str | None) -> None:
    async def work(made: Gateway, picker: Picker) -> None:
        message = pb.ProcessingRequest(request_headers=head())
        fields = message.metadata_context.filter_metadata[picked.SUBSET_NAMESPACE]
        fields.update({picked.SUBSET: "10.0.0.9:1, [fd00::2]:80" if text else ["10.0.0.9:1", "[fd00::2]:80", 7]})
        stream = await conversation(picker, message, *ASKED[1:])
        assert endpoint_of(stream.sent[0]) == "[fd00::2]:80"
        fields.update({picked.SUBSET: "" if text else []})
        (reply,) = (await conversation(picker, message, *ASKED[1:])).sent
        assert reply.immediate_response.status.code == 503, "an empty one has no endpoint"
        (reply,) = (await conversation(picker, *request_without_body(message))).sent
        assert reply.immediate_response.status.code == 503

    with_gateway(work)


def request_without_body(message: pb.ProcessingRequest) -> list[pb.ProcessingRequest]:
    other = pb.ProcessingRequest(request_headers=head("GET", "/v1/models", last=True))
    other.metadata_context.CopyFrom(message.metadata_context)
    return [other]


def test_one_that_waits_is_withdrawn_when_its_stream_ends() -> None:
    async def work(made: Gateway, picker: Picker) -> None:
        holds = Stream(request(*ASKED), ends=False)
        held = asyncio.create_task(picker.process(None, holds))  # type: ignore[arg-type]
        while not holds.sent:
            await asyncio.sleep(0)
        waits = await conversation(picker, *ASKED)
        assert not waits.sent and outcomes(made) == {"withdrawn": 1}
        held.cancel()
        await asyncio.wait({held})

    one = GatewaySettings(
        replicas=[ReplicaSettings("http://10.0.0.1:8000", requests_max=1)], admission=Admission(queue_max=1)
    )
    with_gateway(work, one)


def test_the_request_of_an_engine_that_is_lost_ends_its_stream_with_an_error() -> None:
    async def work(made: Gateway, picker: Picker) -> None:
        stream = Stream(request(*ASKED), ends=False)
        task = asyncio.create_task(picker.process(None, stream))  # type: ignore[arg-type]
        while not stream.sent:
            await asyncio.sleep(0)
        (replica,) = [one for one in made.replicas.all if one.turns]
        for turn in list(replica.turns):
            turn.lose("nothing was received from it for 60 s")
        with pytest.raises(Aborted):
            await task
        assert "nothing was received from it" in stream.reason and outcomes(made) == {"failed": 1}
        assert replica.failed == 1 and not replica.turns and not made.ongoing

    with_gateway(work)


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ([b"\xff\xff"], "not a ProcessingRequest"),
        ([b""], "an unknown part came before request_headers"),
        (request(ASKED[1]), "request_body came before request_headers"),
        (request(pb.ProcessingRequest(response_headers=answer_head())), "response_headers came before"),
        (request(ASKED[0], ASKED[0]), "the second of request_headers"),
        (request(*ASKED, ASKED[0]), "the second of request_headers"),
    ],
)
def test_what_is_not_of_the_protocol_ends_its_stream_with_the_reason(messages: list[bytes], named: str) -> None:
    async def work(made: Gateway, picker: Picker) -> None:
        stream = Stream(messages)
        with pytest.raises(Aborted):
            await picker.process(None, stream)  # type: ignore[arg-type]
        assert named in stream.reason and stream.reason.isprintable()
        assert (await conversation(picker, *ASKED)).sent, "others are served"

    with_gateway(work)


def test_a_proxy_that_only_watches_is_not_answered() -> None:
    async def work(made: Gateway, picker: Picker) -> None:
        stream = await conversation(
            picker, pb.ProcessingRequest(request_headers=head(), observability_mode=True), *ASKED[1:]
        )
        assert not stream.sent and not outcomes(made)

    with_gateway(work)


@pytest.mark.parametrize("turns", range(8))
def test_a_place_that_is_given_as_its_stream_is_cancelled_is_free_again(turns: int) -> None:
    """By the proxy, at the moment at which the place comes: so many turns of the loop after it was given."""

    async def work(made: Gateway, picker: Picker) -> None:
        (a, b) = made.replicas.all
        a.foreign_running = b.foreign_running = a.settings.requests_max
        stream = Stream(request(*ASKED), ends=False)
        task = asyncio.create_task(picker.process(None, stream))  # type: ignore[arg-type]
        while not len(made.admission):
            await asyncio.sleep(0)
        a.foreign_running = 0
        made.admission.wake()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    with_gateway(work)
