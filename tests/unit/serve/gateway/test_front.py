"""What a client may hold of the gateway's web server, and for how long."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from mfsd.serve.gateway import front
from mfsd.serve.gateway.answer import Answer, ClientLeft, TooLarge, read_body
from mfsd.serve.gateway.exchange import too_large
from mfsd.serve.gateway.front import HEAD_BYTES_MAX, Bounded
from mfsd.serve.gateway.ongoing import DISCONNECT

LARGE = 200_000
"""Bytes of a body; the web server reads on below 65,536."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def served(app: Any, work: Callable[[Callable[[], Awaitable[Streams]]], Awaitable[None]]) -> None:
    asyncio.run(within(app, work))


async def within(app: Any, work: Callable[[Callable[[], Awaitable[Streams]]], Awaitable[None]]) -> None:
    config = uvicorn.Config(app, http=Bounded, lifespan="off", log_level="error")
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Bounded(config, state, {}), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await asyncio.wait_for(work(lambda: asyncio.open_connection("127.0.0.1", port)), 60)
    server.close()


async def answers(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("line", [b"x: " + b"a" * 1000 + b"\r\n", b"a" * 1000])
def test_a_head_without_end_is_refused(line: bytes) -> None:
    """Of many headers, or of one."""

    async def work(connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        writer.write(b"GET / HTTP/1.1\r\nx-first: " + line * (HEAD_BYTES_MAX // len(line) - 1))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reader.read(), 0.2)
        writer.write(line * 2)  # no more than is read at once: what comes after the refusal would reset it
        text = await reader.read()
        assert text.startswith(b"HTTP/1.1 431 ") and b'"code":"head_too_large"' in text
        writer.close()

    served(answers, work)


def test_a_large_head_and_a_large_body_beside_it_are_taken() -> None:
    async def work(connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        for _ in range(2):
            writer.write(b"POST / HTTP/1.1\r\nx: " + b"a" * (HEAD_BYTES_MAX // 2) + b"\r\n")
            writer.write(b"content-length: 200000\r\n\r\n" + b"b" * 200_000)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()

    served(answers, work)


CHUNKED = b"POST / HTTP/1.1\r\nx-tier: own\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"


def test_trailers_are_no_headers() -> None:
    """A proxy in front removes headers that its clients may not send, and passes trailers on."""
    found: list[list[tuple[bytes, bytes]]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert await read_body(receive, LARGE) == b"{}"
        found.append(list(scope["headers"]))
        await answers(scope, receive, send)

    async def work(connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        for _ in range(2):
            writer.write(CHUNKED + b"x-tier: other\r\nauthorization: other\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()

    served(app, work)
    assert found == [[(b"x-tier", b"own"), (b"transfer-encoding", b"chunked")]] * 2


@pytest.mark.parametrize("line", [b"x: " + b"a" * 1000 + b"\r\n", b"a" * 1000])
def test_trailers_without_end_end_the_connection(line: bytes) -> None:
    """They would be kept until the time for a body is over."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        with pytest.raises(ClientLeft):
            await read_body(receive, LARGE)

    async def work(connect: Callable[[], Awaitable[Streams]]) -> None:
        _, writer = await connect()
        writer.write(CHUNKED + b"x: ")
        with pytest.raises(ConnectionError):
            while True:
                writer.write(line * 100)
                await writer.drain()
        writer.close()

    served(app, work)


H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\n"


@pytest.mark.parametrize("apart", [False, True])
def test_what_follows_the_offer_of_another_protocol_is_http(apart: bool) -> None:
    """Java's HTTP client makes it with every request. apart: the body comes after its head."""
    found: list[tuple[str, str, bytes]] = []
    begun = asyncio.Event()
    requests = [
        (b"POST /a HTTP/1.1\r\n" + H2C + b"content-length: 7\r\n\r\n", b"the one"),
        (b"GET /b HTTP/1.1\r\n" + H2C + b"\r\n", b""),
        (b"POST /c HTTP/1.1\r\n" + H2C + b"transfer-encoding: chunked\r\n\r\n", b"7\r\nthe two\r\n0\r\n\r\n"),
        (b"POST /d HTTP/1.1\r\ncontent-length: 5\r\n\r\n", b"three"),
    ]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        found.append((scope["method"], scope["path"], await read_body(receive, LARGE)))
        await answers(scope, receive, send)

    async def work(connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        for head, body in requests:
            begun.clear()
            writer.write(head)
            if apart:
                await begun.wait()
            writer.write(body)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"".join(head + body for head, body in requests))
        for _ in requests:
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()

    served(app, work)
    assert found == 2 * [
        ("POST", "/a", b"the one"),
        ("GET", "/b", b""),
        ("POST", "/c", b"the two"),
        ("POST", "/d", b"three"),
    ]


def test_a_client_that_sends_all_of_a_body_before_it_reads_sees_its_refusal() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        with pytest.raises(TooLarge):
            await read_body(receive, LARGE)
        answer = Answer(send, last=True)
        await answer.failed(too_large(LARGE))

    def ask(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), 30) as client:
            client.sendall(b"POST / HTTP/1.1\r\ncontent-length: 60000000\r\n\r\n" + b"x" * 60_000_000)
            return b"".join(iter(lambda: client.recv(65_536), b""))

    async def work(connect: Callable[[], Awaitable[Streams]]) -> None:
        _, writer = await connect()
        port = writer.get_extra_info("peername")[1]
        assert (await asyncio.to_thread(ask, port)).startswith(b"HTTP/1.1 413 ")
        writer.close()

    served(app, work)


@pytest.mark.parametrize("begin", [b"", b"GET / HTT", b"GET / HTTP/1.1\r\n\r\nGET / HTT"])
def test_a_head_that_does_not_come_ends_the_connection(monkeypatch: pytest.MonkeyPatch, begin: bytes) -> None:
    monkeypatch.setattr(front, "HEAD_S", 0.1)

    async def work(connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        writer.write(begin)
        assert (await reader.read()).count(b"200 OK") == begin.count(b"1.1\r\n\r\n")
        writer.close()

    served(answers, work)


def test_a_client_that_does_not_read_its_answer_is_gone_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "STALL_S", 2.0)  # far more than a busy machine takes from one read to the next
    left: list[str] = []

    async def streams(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.create_task(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": b"x" * 1_000_000, "more_body": True})
            await asyncio.sleep(0)
        left.append(gone.result()["type"])

    async def work(connect: Callable[[], Awaitable[Streams]]) -> None:
        slow_reader, slow = await connect()
        slow.write(b"GET / HTTP/1.1\r\n\r\n")
        end_s = asyncio.get_running_loop().time() + 1.5 * front.STALL_S
        while asyncio.get_running_loop().time() < end_s:  # it reads some in each interval
            await asyncio.sleep(0.05)
            assert len(await slow_reader.readexactly(4_000_000)) and not left
        slow.close()
        while len(left) < 1:
            await asyncio.sleep(0.01)
        _, writer = await connect()
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        while len(left) < 2:
            await asyncio.sleep(0.01)
        assert left[1] == "http.disconnect"
        writer.close()

    served(streams, work)


def test_a_client_that_leaves_is_told_of_also_where_none_asked_yet() -> None:
    async def main(asked: bool) -> None:
        arrived, gone = asyncio.get_running_loop().create_future(), asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            arrived.set_result(scope)
            await gone.wait()

        async def work(connect: Callable[[], Awaitable[Streams]]) -> None:
            _, writer = await connect()
            writer.write(b"POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n")
            disconnect = (await arrived)[DISCONNECT]
            if asked:
                disconnect.then(gone.set)
            writer.close()
            await writer.wait_closed()
            while not (asked or disconnect.has_happened):
                await asyncio.sleep(0.001)
            if not asked:
                disconnect.then(gone.set)
            await gone.wait()

        await within(app, work)

    for asked in (True, False):
        asyncio.run(main(asked))


def test_a_client_that_leaves_after_a_large_body_is_told_of() -> None:
    async def main() -> None:
        arrived, gone = asyncio.get_running_loop().create_future(), asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            arrived.set_result(len(await read_body(receive, LARGE)))
            scope[DISCONNECT].then(gone.set)
            await gone.wait()

        async def work(connect: Callable[[], Awaitable[Streams]]) -> None:
            _, writer = await connect()
            writer.write(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % LARGE + b"b" * LARGE)
            assert await arrived == LARGE
            writer.close()
            await gone.wait()

        await within(app, work)

    asyncio.run(main())


def test_requests_that_wait_for_others_of_their_connection_are_answered_in_turn() -> None:
    async def main() -> None:
        first, asked = asyncio.Event(), list[str]()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await read_body(receive, LARGE)
            asked.append(scope["path"])
            await first.wait()
            await answers(scope, receive, send)

        async def work(connect: Callable[[], Awaitable[Streams]]) -> None:
            reader, writer = await connect()
            head = b"POST /%d HTTP/1.1\r\ncontent-length: %d\r\n\r\n"
            writer.write(b"".join(head % (number, LARGE) + b"b" * LARGE for number in range(3)))
            while not asked:
                await asyncio.sleep(0.001)
            first.set()
            for _ in range(3):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            assert asked == ["/0", "/1", "/2"]
            writer.close()

        await within(app, work)

    asyncio.run(main())


class Written(asyncio.Transport):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[bytes] = []

    def write(self, data: Any) -> None:
        self.parts.append(data)

    def close(self) -> None:
        self.parts.append(b"closed")


def test_a_head_is_written_with_what_follows_at_once_and_alone_with_what_comes_later() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        out = Written()
        joined = front.Joined(out, loop, out.close)
        joined.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        joined.write(b"head")
        joined.write(b"body")
        joined.write(b"more")
        assert out.parts == [b"HTTP/1.1 100 Continue\r\n\r\n", b"headbody", b"more"]
        await asyncio.sleep(0)
        assert len(out.parts) == 3
        out = Written()
        joined = front.Joined(out, loop, out.close)
        joined.write(b"head")
        await asyncio.sleep(0)
        joined.write(b"body")
        assert out.parts == [b"head", b"body"]
        out = Written()
        joined = front.Joined(out, loop, out.close)
        joined.write(b"head")
        joined.close()
        assert out.parts == [b"head", b"closed"]

    asyncio.run(main())
