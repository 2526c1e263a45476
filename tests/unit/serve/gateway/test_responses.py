"""Requests that go on from an answer go to the engine that keeps it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from bench.ports import free_port
from mfsd.serve.gateway.core import Gateway
from mfsd.serve.gateway.proxy import Proxy
from mfsd.serve.gateway.responses import Responses
from mfsd.serve.gateway.settings import GatewaySettings, ReplicaSettings
from tests.support.ext_proc import gateway

NAMES = ("a", "b", "c")


async def engine(name: str, runners: list[web.AppRunner]) -> ReplicaSettings:
    """Numbers its answers, whose items have names, too."""
    count = 0

    async def respond(request: web.Request) -> web.Response:
        nonlocal count
        count += 1
        answer = {"object": "response", "output": [{"id": f"msg_{name}"}], "id": f"resp_{name}{count}"}
        if not (await request.json()).get("stream"):
            return web.json_response(answer)
        events = [("response.created", {"response": answer}), ("response.completed", {"response": answer})]
        text = "".join(f"event: {kind}\ndata: {json.dumps(data)}\n\n" for kind, data in events)
        return web.Response(text=text, content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/v1/responses", respond)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    runners.append(runner)
    return ReplicaSettings(f"http://127.0.0.1:{port}", name=name)


async def asked(made: Gateway, **body: Any) -> tuple[int, str]:
    """The status, and all that was answered."""
    messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": json.dumps(body).encode(), "more_body": False})
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(dict(message))

    scope = {"type": "http", "method": "POST", "headers": []}
    await Proxy(lambda: made, "/v1/responses")(scope, messages.get, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:]).decode()


async def through(work: Any) -> None:
    runners: list[web.AppRunner] = []
    settings = GatewaySettings(replicas=[await engine(name, runners) for name in NAMES])
    async with gateway(settings) as made:
        await work(made)
    for runner in runners:
        await runner.cleanup()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("keeper", NAMES)
def test_what_goes_on_from_an_answer_goes_to_its_engine(keeper: str, stream: bool) -> None:
    async def work(made: Gateway) -> None:
        for name in NAMES:
            made.replicas.by_name[name].foreign_running = 0 if name == keeper else 5
        assert f"resp_{keeper}1" in (await asked(made, input="one", stream=stream))[1]
        made.replicas.by_name[keeper].foreign_running = 50  # else it would be chosen anyway
        for number in (2, 3):
            body = {"input": "more", "stream": stream, "previous_response_id": f"resp_{keeper}{number - 1}"}
            assert f'"resp_{keeper}{number}"' in (await asked(made, **body))[1]
        assert f"resp_{keeper}" not in (await asked(made, input="another"))[1]

    asyncio.run(through(work))


@pytest.mark.parametrize("previous", ["resp_never", 7, None, {"id": "resp_a1"}])
def test_an_answer_that_is_not_known_leaves_the_choice_to_the_router(previous: object) -> None:
    async def work(made: Gateway) -> None:
        made.responses.learn(b'{"id": "resp_gone"}', "an address that is none any more")
        for name in ("a", "c"):
            made.replicas.by_name[name].foreign_running = 5
        assert "resp_b1" in (await asked(made, input="one", previous_response_id=previous))[1]
        assert "resp_b2" in (await asked(made, input="one", previous_response_id="resp_gone"))[1]

    asyncio.run(through(work))


def test_no_other_engine_is_asked_for_what_one_keeps_that_is_down() -> None:
    async def work(made: Gateway) -> None:
        made.responses.learn(b'{"id": "resp_a9"}', "a")
        made.replicas.by_name["a"].down("killed")
        status, answer = await asked(made, input="one", previous_response_id="resp_a9")
        assert (status, json.loads(answer)["error"]["code"]) == (503, "no_replica")

    asyncio.run(through(work))


def test_other_names_in_an_answer_are_not_its_own() -> None:
    """Of items, of what it goes on from, and what the request itself may have written into it."""
    responses, metadata = Responses(), b'"metadata": {"id": "resp_3"}'
    text = b'{%b, "previous_response_id": "resp_1", "output": [{"id": "msg_1"}], "id": "resp_2"}' % metadata
    responses.learn(text, "a")
    assert responses.keeper({"previous_response_id": "resp_2"}) == "a" and len(responses) == 1
    responses.learn_stream(b'event: response.created\ndata: {%b, "response": {"id": "resp_4"}}\n\n' % metadata, "b")
    assert responses.keeper({"previous_response_id": "resp_4"}) == "b" and len(responses) == 2


@pytest.mark.parametrize("answer", [b"", b"no JSON", b"[]", b'{"id": 7}', b'{"id": ""}', b'{"id": "\xff"}', b"{}"])
def test_an_answer_without_a_name_is_not_kept(answer: bytes) -> None:
    responses = Responses()
    responses.learn(answer, "a")
    responses.learn_stream(b"data: " + answer + b"\n\n", "a")
    responses.learn_stream(b'data: {"response": ' + (answer or b"7") + b"}\n\n", "a")
    responses.learn(b'{"id": "%b"}' % (b"x" * 300), "a")
    assert not len(responses)


def test_the_answer_that_was_used_the_longest_ago_is_forgotten() -> None:
    responses = Responses(most=2)
    for number in (1, 2):
        responses.learn(b'{"id": "resp_%d"}' % number, "a")
    assert responses.keeper({"previous_response_id": "resp_1"}) == "a"
    responses.learn(b'{"id": "resp_3"}', "a")
    known = [n for n in (1, 2, 3) if responses.keeper({"previous_response_id": f"resp_{n}"})]
    assert known == [1, 3] and len(responses) == 2
