"""How long an answer is, and whether it calls a tool: read from its `usage` and its parts, at its end.

Of a stream each event costs two searches for a word. Only the last event that has a `usage` is decoded.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from mfsd.serve.gateway import responses
from mfsd.serve.gateway.upstream import EVENT_ENDS, events_end

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
PATHS: Final = (COMPLETIONS, CHAT, responses.PATH)
"""Paths whose answers are read."""
KEPT_MAX_BYTES: Final = 1 << 20
"""Of an answer that comes in parts. A larger one, or a larger event, is not read."""
TOKENS_MAX: Final = 1 << 30
_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')
_CALLS: Final = re.compile(rb'"tool_calls"\s*:\s*\[\s*\{')
_FUNCTION_CALL: Final = "function_call"


class Produced(NamedTuple):
    tokens: int
    tool_call: bool | None
    """None: the path has no tools."""


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None
    output_tokens: int | None = None
    """The name in /v1/responses."""


class _Message(msgspec.Struct):
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    message: _Message | None = None


class _Item(msgspec.Struct):
    type: str = ""


class _Answer(msgspec.Struct):
    usage: _Usage | None = None
    choices: list[_Choice] | None = None
    output: list[_Item] | None = None
    response: _Answer | None = None
    """In the last event of a stream of /v1/responses."""


_ANSWER: Final = msgspec.json.Decoder(_Answer)
_NONE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class AnswerReader:
    """Reads one answer, in parts of any size."""

    __slots__ = ("_bytes", "_calls", "_last", "_parts", "_path", "_rest", "_stream")

    def __init__(self, path: str, stream: bool) -> None:
        """path: one of PATHS. stream: the answer is a stream of events."""
        self._path, self._stream = path, stream
        self._parts: list[bytes] = []
        self._bytes = 0
        self._rest = self._last = b""
        self._calls = False

    def part(self, part: bytes) -> None:
        if self._bytes > KEPT_MAX_BYTES:
            return
        if not self._stream:
            self._parts.append(part)
            self._bytes += len(part)
            return
        if self._rest:
            part = self._rest + part
        end = len(part) if part.endswith(EVENT_ENDS) else events_end(part)
        events, self._rest = part[:end], part[end:]
        self._bytes = len(self._rest)
        if b'"usage"' in events and _USAGE.search(events) is not None:
            self._last = events
        if not self._calls and b'"tool_calls"' in events:
            self._calls = _CALLS.search(events) is not None

    def end(self) -> Produced | None:
        """Returns what a complete answer has produced; None if it does not say."""
        if self._bytes > KEPT_MAX_BYTES:
            return None
        return self._read(_last_data(self._last + self._rest) if self._stream else b"".join(self._parts))

    def _read(self, text: bytes) -> Produced | None:
        try:
            answer = _ANSWER.decode(text)
        except _NONE:
            return None
        answer = answer.response or answer
        usage = answer.usage
        if usage is None:
            return None
        tokens = usage.output_tokens if self._path == responses.PATH else usage.completion_tokens
        if tokens is None or not 0 <= tokens <= TOKENS_MAX:
            return None
        return Produced(tokens, self._tool_call(answer))

    def _tool_call(self, answer: _Answer) -> bool | None:
        if self._path == COMPLETIONS:
            return None
        if self._path == responses.PATH:
            return any(item.type == _FUNCTION_CALL for item in answer.output or ())
        messages = [choice.message for choice in answer.choices or () if choice.message is not None]
        return self._calls or any(message.tool_calls for message in messages)


def _last_data(events: bytes) -> bytes:
    """Returns the data of the last event that has one; empty if there is none."""
    lines = (line for line in reversed(events.splitlines()) if line.startswith(b"data:") and _USAGE.search(line))
    return next(lines, b"").removeprefix(b"data:")
