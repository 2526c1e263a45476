"""Requests that go on from an answer go to the engine that keeps it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from bench.ports import free_port
from mfsd.serve.gateway.core import Gateway
from mfsd.serve.gateway.kept import Kept
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

    async def kept(request: web.Request) -> web.Response:
        if "silent" in request.query:
            await asyncio.sleep(3600)
        found = {"id": request.match_info["name"], "engine": name, "asked": f"{request.method} {request.rel_url}"}
        if request.query.get("stream") == "true":
            return web.Response(text=f"data: {json.dumps(found)}\n\n", content_type="text/event-stream")
        return web.json_response(found, status=int(request.query.get("status", "200")))

    app = web.Application()
    app.router.add_post("/v1/responses", respond)
    app.router.add_get("/v1/responses/{name}", kept)
    app.router.add_post("/v1/responses/{name}/cancel", kept)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
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


async def of_kept(made: Gateway, name: str, method: str = "GET", query: bytes = b"") -> tuple[int, Any]:
    """The status and the answer, or its only event."""
    messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(dict(message))

    words = {"path_params": {"name": name}, "query_string": query, "headers": []}
    await Kept(lambda: made)({"type": "http", "method": method, **words}, messages.get, send)
    assert not made.ongoing
    text = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], json.loads(text.removeprefix(b"data: "))


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


KEPT = [
    ("GET", b"", "GET /v1/responses/resp_b9"),
    ("GET", b"stream=true&starting_after=3", "GET /v1/responses/resp_b9?stream=true&starting_after=3"),
    ("POST", b"", "POST /v1/responses/resp_b9/cancel"),
]


@pytest.mark.parametrize(("method", "query", "found"), KEPT)
def test_a_kept_answer_is_read_and_cancelled_at_its_engine(method: str, query: bytes, found: str) -> None:
    async def work(made: Gateway) -> None:
        made.responses.learn(b'{"id": "resp_b9"}', "b")
        made.replicas.by_name["b"].foreign_running = 50
        answer = {"id": "resp_b9", "engine": "b", "asked": found}
        assert await of_kept(made, "resp_b9", method, query) == (200, answer)
        assert made.replicas.by_name["b"].running == 0  # it takes no place
        assert (await of_kept(made, "resp_b9", "GET", b"status=404"))[0] == 404

    asyncio.run(through(work))


def test_a_request_for_a_kept_answer_ends_with_the_engine_that_is_lost() -> None:
    async def work(made: Gateway) -> None:
        made.responses.learn(b'{"id": "resp_a9"}', "a")
        replica = made.replicas.by_name["a"]
        request = asyncio.create_task(of_kept(made, "resp_a9", "GET", b"silent"))
        while not replica.turns:
            assert not request.done()
            await asyncio.sleep(0)
        for turn in list(replica.turns):
            turn.lose("nothing was received from it")
        status, answer = await request
        assert (status, answer["error"]["code"]) == (502, "engine_lost") and not replica.turns

    asyncio.run(asyncio.wait_for(through(work), 60))


def test_a_kept_answer_that_no_engine_has_or_one_that_is_away() -> None:
    async def work(made: Gateway) -> None:
        for name in ("resp_never", "../../metrics"):
            status, answer = await of_kept(made, name)
            assert (status, answer["error"]["code"]) == (404, "response_not_found")
        made.replicas.by_name["a"].url = f"http://127.0.0.1:{free_port()}"
        made.responses.learn(b'{"id": "resp_a9"}', "a")
        status, answer = await of_kept(made, "resp_a9", "POST")
        assert (status, answer["error"]["code"]) == (503, "no_replica")
        assert not made.replicas.by_name["a"].healthy

    asyncio.run(through(work))


def test_other_names_in_an_answer_are_not_its_own() -> None:
    """Of items, of what it goes on from, and what the request itself may have written into it."""
    responses, metadata = Responses(), b'"metadata": {"id": "resp_3"}'
    text = b'{%b, "previous_response_id": "resp_1", "output": [{"id": "msg_1"}], "id": "resp_2"}' % metadata
    responses.learn(text, "a")
    assert responses.keeper({"previous_response_id": "resp_2"}) == "a" and len(responses) == 1
    assert not responses.learn_stream(b": still there\n\n", "b"), "its first event is yet to come"
    assert responses.learn_stream(
        b'event: response.created\ndata: {%b, "response": {"id": "resp_4"}}\n\n' % metadata, "b"
    )
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
