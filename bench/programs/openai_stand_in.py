"""An engine's HTTP side that answers at once: python openai_stand_in.py PORT EVENTS GAP_MS. A stream has EVENTS events,
one every GAP_MS. It parses as little as it can, so that what is measured is what stands before it."""

from __future__ import annotations

import asyncio
import sys

MODEL = "stand-in"
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
WHOLE = b'{"object":"text_completion","model":"stand-in","choices":[{"index":0,"text":"%s"}]}' % (b"word " * 40)
EVENT = b'data: {"object":"text_completion","choices":[{"index":0,"text":"word "}]}\n\n'
DONE = b"data: [DONE]\n\n"
MODELS = b'{"object":"list","data":[{"id":"stand-in","max_model_len":131072}]}'


def json_answer(content: bytes) -> bytes:
    return JSON % (len(content), content)


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


class Connection(asyncio.Protocol):
    def __init__(self, events: int, gap_s: float) -> None:
        self._events, self._gap_s, self._read = events, gap_s, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """One request at a time: its sender waits for the answer."""
        self._read += data
        head, end, body = self._read.partition(b"\r\n\r\n")
        if not end or len(body) < _length(head):
            return
        self._read = b""
        if head.startswith(b"GET /v1/models"):
            self._transport.write(json_answer(MODELS))
        elif head.startswith(b"GET"):
            self._transport.write(NOT_FOUND)
        elif b'"stream":true' in body:
            self._transport.write(STREAM + chunk(EVENT))
            asyncio.get_running_loop().call_later(self._gap_s, self._event, self._events - 1)
        else:
            self._transport.write(json_answer(WHOLE))

    def _event(self, left: int) -> None:
        if left:
            self._transport.write(chunk(EVENT))
            asyncio.get_running_loop().call_later(self._gap_s, self._event, left - 1)
        else:
            self._transport.write(chunk(DONE) + b"0\r\n\r\n")


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    return 0


async def main(port: int, events: int, gap_s: float) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Connection(events, gap_s), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1e3))
