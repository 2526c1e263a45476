"""Writes the answer to a client, and reads the body of its request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_S: Final = 120.0
"""Time limit for the whole body of a request. The largest body needs 2.2 Mbit/s."""
JSON: Final = (b"content-type", b"application/json")


class Refused(NamedTuple):
    """An error as the answer, in OpenAI's terms."""

    status: int
    message: str
    kind: str
    code: str
    retry_after_s: int = 0
    more: dict[str, Any] = {}  # noqa: RUF012 - never changed


INTERNAL: Final = Refused(500, "the gateway has failed; its log has the reason", "server_error", "internal_error")


class ClientLeft(Exception):
    """The client has left before its request was complete."""


class TooSlow(Exception):
    """The body has not arrived within its time limit."""


class TooLarge(Exception):
    """The body has more bytes than allowed."""


async def read_body(receive: Receive, most_bytes: int) -> bytes:
    """Returns the whole body. ClientLeft, TooLarge, TooSlow."""
    task, late = asyncio.current_task(), False
    assert task is not None

    def expire() -> None:
        nonlocal late
        late = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(BODY_S, expire)
    try:
        return await _read_body(receive, most_bytes)
    except asyncio.CancelledError:
        if late:
            raise TooSlow from None
        raise
    finally:
        timer.cancel()


async def _read_body(receive: Receive, most_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientLeft
        part = message.get("body", b"")
        size += len(part)
        if size > most_bytes:
            raise TooLarge
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts) if len(parts) > 1 else part


def problem(message: str, kind: str, code: str, **more: object) -> bytes:
    """Returns an error in OpenAI's form."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code, **more}})


class Answer:
    """The answer to one request."""

    def __init__(self, send: Send, last: bool = False) -> None:
        """last: the connection ends with this answer, because the gateway stops or more of the request may come."""
        self._send, self.last = send, last
        self.begun = self._ended = self._events = False

    async def whole(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        await self.begin(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self.end(body)

    async def begin(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.begun = True
        self._events = all(name != b"content-length" for name, _ in headers)
        if self.last:
            headers = [*headers, (b"connection", b"close")]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def part(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self, body: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        self._ended = True

    async def failed(self, refused: Refused) -> None:
        """Answers with an error. In a stream of events that has begun, the error is the last event. Any other answer
        that has begun ends early, and the client sees that it is shorter than announced."""
        text = problem(refused.message, refused.kind, refused.code, **refused.more)
        if not self.begun:
            retry = [(b"retry-after", str(refused.retry_after_s).encode())] if refused.retry_after_s else []
            await self.whole(refused.status, [JSON, *retry], text)
        elif self._events and not self._ended:
            await self.end(b"data: " + text + b"\n\n")
