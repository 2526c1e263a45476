"""Asks the language model of the strategy `llm` for one chat completion at an OpenAI-compatible endpoint.

There is one deadline for the whole exchange. The timeout of a socket starts anew with each read, so an endpoint that
sends a byte now and then would never exceed it."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
import urllib.request
from pathlib import Path
from typing import Final

import msgspec

from mfsd.serve.settings import Meta

REPLY_MAX_BYTES: Final = 1 << 20


class _Message(msgspec.Struct):
    content: str


class _Choice(msgspec.Struct):
    message: _Message


class _Reply(msgspec.Struct):
    choices: list[_Choice]


def ask_endpoint(config: Meta, text: str) -> bytes:
    """Returns the model's text. OSError, HTTPException or ValueError if there is none in time."""
    body = msgspec.json.encode(
        {"model": config.model, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 64}
    )
    request = urllib.request.Request(config.endpoint, body, {"Content-Type": "application/json"})
    if config.api_key_file:  # only for this endpoint, not for one that it redirects to
        request.add_unredirected_header("Authorization", f"Bearer {_key(Path(config.api_key_file))}")
    choices = msgspec.json.decode(_read(request, config.timeout_s), type=_Reply).choices
    if not choices:
        raise ValueError("the reply has no choices")
    return choices[0].message.content.encode()


def _key(path: Path) -> str:
    """Reads the key for each request, so that the file may be replaced. No error contains the key."""
    key = path.read_text("ascii", "replace").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ValueError(f"{path}: holds no key of printable ASCII characters")
    return key


def _read(request: urllib.request.Request, timeout_s: float) -> bytes:
    ends_s = time.monotonic() + timeout_s
    opened: list[socket.socket] = []
    cut = threading.Timer(timeout_s, _cut, (opened,))
    cut.start()
    raw, failed = b"", None
    try:
        with _opener(opened, ends_s).open(request, timeout=timeout_s) as reply:
            raw = reply.read(REPLY_MAX_BYTES)
    except (OSError, http.client.HTTPException) as error:
        failed = error
    finally:
        cut.cancel()
    if time.monotonic() >= ends_s:
        raise TimeoutError(f"no whole answer within {timeout_s:g} s") from failed
    if failed is not None:
        raise failed
    return raw


def _cut(opened: list[socket.socket]) -> None:
    """Shuts the sockets down, so that their readers see the end."""
    for one in opened:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def _opener(opened: list[socket.socket], ends_s: float) -> urllib.request.OpenerDirector:
    def has_opened(one: socket.socket) -> None:
        opened.append(one)
        if time.monotonic() >= ends_s:
            raise TimeoutError

    class Plain(http.client.HTTPConnection):
        def connect(self) -> None:
            super().connect()
            has_opened(self.sock)

    class Secure(http.client.HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            has_opened(self.sock)

    class Plainly(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Plain, req)

    class Securely(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Secure, req)

    return urllib.request.build_opener(Plainly, Securely)
