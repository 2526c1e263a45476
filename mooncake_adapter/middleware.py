"""ASGI middleware that copies a client's SLO headers into the request's body, where the engine keeps them.

    vllm serve ... --middleware mooncake_adapter.middleware.SloHeaders

They become keys of `vllm_xargs`; OBJECTIVES and HEADERS list both names. Keys that the body already has are kept.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from mfsd.serve.headers import FIELD, HEADERS, OBJECTIVES
from mooncake_adapter.slo import objective_ms
from mooncake_adapter.warn_once import WarnOnce

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def fields_of(headers: list[tuple[bytes, bytes]], once: WarnOnce) -> dict[str, Any]:
    """Returns the values of the headers by the names that the body uses."""
    carried = {name.lower(): value.decode("latin-1") for name, value in headers}
    fields: dict[str, Any] = {}
    for header, word in HEADERS.items():
        if header in carried:
            fields.setdefault(word, carried[header])
    for header, word in OBJECTIVES.items():
        if (objective := objective_ms(word, carried.get(header), once)) is not None:
            fields[word] = objective
    return fields


def with_fields(body: bytes, fields: dict[str, Any]) -> bytes:
    """Returns the JSON body with the fields added; any other body is returned unchanged."""
    try:
        document = json.loads(body)
    except ValueError:
        return body
    if not isinstance(document, dict) or not isinstance(document.get(FIELD) or {}, dict):
        return body
    document[FIELD] = {**fields, **(document.get(FIELD) or {})}
    return json.dumps(document).encode()


class SloHeaders:
    """The middleware. It changes only POST requests that carry one of the headers."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._once = WarnOnce()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields = (
            fields_of(scope["headers"], self._once) if scope["type"] == "http" and scope["method"] == "POST" else {}
        )
        if not fields:
            await self._app(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return  # the client has disconnected
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        body = with_fields(body, fields)
        length = (b"content-length", str(len(body)).encode())
        scope["headers"] = [(n, v) for n, v in scope["headers"] if n.lower() != b"content-length"] + [length]
        given = False

        async def replay() -> MutableMapping[str, Any]:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)
