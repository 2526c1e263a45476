"""Reads and cancels kept answers of /v1/responses at the engine that keeps them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from urllib.parse import quote

from mfsd.serve.gateway.answer import Answer, Receive, Refused, Scope, Send
from mfsd.serve.gateway.core import Gateway
from mfsd.serve.gateway.exchange import UNHEALTHY_RETRY_S, engine_lost, no_socket
from mfsd.serve.gateway.ongoing import Ongoing, until_left
from mfsd.serve.gateway.replicas import LiveReplica
from mfsd.serve.gateway.responses import PATH
from mfsd.serve.gateway.upstream import FAILED, NoSocket, NotSent, content_of, headers_back, in_a_line, whole_events


class Kept:
    """The ASGI application of `GET /v1/responses/{name}` and `POST /v1/responses/{name}/cancel`."""

    def __init__(self, gateway: Callable[[], Gateway]) -> None:
        self._made = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = self._made()
        answer = Answer(send, last=gateway.stopping)
        name = scope["path_params"]["name"]
        keeper = gateway.responses.keeper_of(name)
        replica = gateway.replicas.by_name.get(keeper) if keeper is not None else None
        if replica is None:
            await answer.failed(_unknown(name))
            return

        async def serve(ongoing: Ongoing) -> str:
            call = _Call(ongoing)
            replica.turns.add(call)
            try:
                await _pass_on(gateway, replica, scope, answer)
            finally:
                replica.turns.discard(call)
            return ""

        await until_left(gateway.ongoing, answer, scope, receive, serve)


class _Call:
    """A call as its replica knows it. It takes no place there."""

    def __init__(self, ongoing: Ongoing) -> None:
        self._ongoing = ongoing

    def lose(self, problem: str) -> None:
        self._ongoing.end(engine_lost(problem))


async def _pass_on(gateway: Gateway, replica: LiveReplica, scope: Scope, answer: Answer) -> None:
    """Passes the request on. It is sent only once, as every call."""
    method, name = scope["method"], quote(scope["path_params"]["name"], safe="")
    path = f"{PATH}/{name}" + ("/cancel" if method == "POST" else "")
    if query := scope["query_string"]:
        path += "?" + query.decode("latin-1")
    try:
        response = await gateway.upstream.call(replica, method, path, b"", scope["headers"], uuid.uuid4().hex)
        async with response:
            headers = headers_back(response, replica)
            if response.content_type != "text/event-stream":
                await answer.whole(response.status, headers, await content_of(response, replica))
                return
            await answer.begin(response.status, headers)
            async for events in whole_events(response):
                replica.seen()
                await answer.part(events)
            await answer.end()
    except NoSocket as error:
        gateway.poller.no_socket(str(error))
        await answer.failed(no_socket(str(error)))
    except NotSent as error:
        gateway.reconnect.failed(replica, error)
        await answer.failed(_away(replica, str(error)))
    except FAILED as error:
        await answer.failed(_away(replica, in_a_line(error)))


def _unknown(name: str) -> Refused:
    text = (
        f"the answer {name!r:.80} is unknown: the gateway knows only the latest ones that it passed on since its start"
    )
    return Refused(404, text, "invalid_request_error", "response_not_found")


def _away(replica: LiveReplica, problem: str) -> Refused:
    text = f"the replica {replica.name!r:.80}, which keeps this answer, did not return it ({problem})"
    return Refused(503, text, "server_error", "no_replica", UNHEALTHY_RETRY_S)
