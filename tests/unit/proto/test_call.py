"""A daemon's end of a call against gRPC's own server, and against what is none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from mfsd.proto.call import WINDOW_BYTES, Call, CallEnded, ClosedAtOnce
from mfsd.proto.certificates import Certificates, client_context, server_credentials
from mfsd.proto.wire import CHANNEL_OPTIONS, MESSAGE_BYTES_MAX
from tests.support.cluster import Authority, Lines, in_loop, until

LONG_S = 60.0
METHOD = "/test.Echo/Talk"
Context = grpc.aio.ServicerContext[bytes, bytes]
Options = Sequence[tuple[str, int]]
Handler = Callable[[Context], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(
    handler: Handler,
    listen: str = "127.0.0.1:0",
    options: Options = CHANNEL_OPTIONS,
    credentials: grpc.ServerCredentials | None = None,
) -> AsyncIterator[tuple[grpc.aio.Server, str]]:
    async def talk(_requests: object, context: Context) -> None:
        await handler(context)

    server = grpc.aio.server(options=options)
    row: Any = grpc.stream_stream_rpc_method_handler(talk)  # bytes as they are
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", {"Talk": row}),))
    port = server.add_secure_port(listen, credentials) if credentials else server.add_insecure_port(listen)
    await server.start()
    try:
        yield server, f"{listen.rpartition(':')[0]}:{port}"
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def answering(answer: bytes, then_close: bool = True) -> AsyncIterator[str]:
    """A server that says this to everything."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        with contextlib.suppress(OSError):
            await writer.drain()
            if not then_close:
                await reader.read()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@contextlib.asynccontextmanager
async def opened(address: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[Call]:
    call = Call(METHOD)
    try:
        await call.open(address, tls)
        yield call
    finally:
        await call.close()


async def echo(context: Context) -> None:
    while (message := await context.read()) is not grpc.aio.EOF:
        assert isinstance(message, bytes)
        await context.write(message)


async def _pass_both_ways(call: Call) -> None:
    for size in (0, 1, 16_383, 65_536, WINDOW_BYTES + 1, MESSAGE_BYTES_MAX):
        message = bytes(range(256)) * (size // 256) + b"." * (size % 256)
        await call.write(message)
        assert await call.read(LONG_S) == message
    for number in range(300):
        await call.write(b"%d" % number)
    assert [await call.read(LONG_S) for _ in range(300)] == [b"%d" % number for number in range(300)]


@in_loop
async def test_messages_of_every_size_pass_both_ways() -> None:
    async with serving(echo) as (_, address), opened(address) as call:
        await _pass_both_ways(call)


@in_loop
async def test_messages_of_every_size_pass_through_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, node = (Certificates(authority.issue(name), Lines()) for name in ("server", "node"))
    shown, trusted = server_credentials(server), client_context(node.current())
    async with serving(echo, credentials=shown) as (_, address), opened(address, trusted) as call:
        await _pass_both_ways(call)


@in_loop
async def test_a_message_above_the_limit_is_not_sent() -> None:
    async with serving(echo) as (_, address), opened(address) as call:
        with pytest.raises(
            CallEnded, match=f"message of {MESSAGE_BYTES_MAX + 1} bytes, the limit is {MESSAGE_BYTES_MAX}"
        ):
            call.put(bytes(MESSAGE_BYTES_MAX + 1))
        with pytest.raises(CallEnded, match="cannot send a message"):
            await call.read(LONG_S)


@in_loop
async def test_a_message_above_the_limit_is_not_read() -> None:
    """Of another server than ours: not even the memory for it is taken."""

    async def large(context: Context) -> None:
        await context.write(bytes(MESSAGE_BYTES_MAX + 1))

    options = (("grpc.max_send_message_length", -1),)
    async with serving(large, options=options) as (_, address), opened(address) as call:
        with pytest.raises(CallEnded, match=f"received a message of {MESSAGE_BYTES_MAX + 1} bytes"):
            await call.read(LONG_S)
        assert len(call._partial) <= WINDOW_BYTES


@in_loop
async def test_who_does_not_read_is_not_sent_more_than_a_window() -> None:
    sent = 0

    async def pours(context: Context) -> None:
        nonlocal sent
        while True:
            await context.write(bytes(60_000))
            sent += 1

    async with serving(pours) as (_, address), opened(address) as call:
        await until(lambda: call._unacknowledged_bytes > WINDOW_BYTES - 60_000, "a full window")
        assert sum(map(len, call._messages)) <= WINDOW_BYTES
        full = sent
        for _ in range(full):
            assert len(await call.read(LONG_S)) == 60_000
        await until(lambda: sent > full, "it goes on once messages are read")


@in_loop
async def test_who_is_not_read_waits() -> None:
    go_on = asyncio.Event()

    async def waits(context: Context) -> None:
        await go_on.wait()
        await echo(context)

    async with serving(waits) as (_, address), opened(address) as call:
        message = bytes(4_000_000)
        await call.write(message)  # nothing is before it
        await until(lambda: not call.free, "the other end takes no more")
        second = asyncio.create_task(call.write(b"second"))
        with pytest.raises(TimeoutError):
            await call.read(0.05)
        assert not second.done()
        go_on.set()
        assert await call.read(LONG_S) == message
        assert await call.read(LONG_S) == b"second"
        await second
        assert call.free


@in_loop
async def test_a_writer_that_gives_up_leaves_whole_messages_behind() -> None:
    go_on = asyncio.Event()

    async def waits(context: Context) -> None:
        await go_on.wait()
        await echo(context)

    async with serving(waits) as (_, address), opened(address) as call:
        await call.write(bytes(4_000_000))
        second = asyncio.create_task(call.write(b"never"))
        await until(lambda: not call.free, "the other end takes no more")
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        go_on.set()
        assert len(await call.read(LONG_S)) == 4_000_000
        call.put(b"third")
        assert await call.read(LONG_S) == b"third"


# ---- the end -----------------------------------------------------------------------------------------


async def leaves(context: Context) -> None:
    await context.write(b"one")
    await context.write(b"two")


async def fails(context: Context) -> None:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "100% gone: für immer")


async def unknown(context: Context) -> None:
    await context.abort(grpc.StatusCode.DATA_LOSS)


@pytest.mark.parametrize(
    ("handler", "messages", "why"),
    [
        (leaves, [b"one", b"two"], "the coordinator ended the stream (OK)"),
        (fails, [], "100% gone: für immer"),
        (unknown, [], "the coordinator ended the stream (DATA_LOSS)"),
    ],
)
def test_what_was_said_is_read_before_the_end_and_its_reason(handler: Handler, messages: list[bytes], why: str) -> None:
    async def check() -> None:
        async with serving(handler) as (_, address), opened(address) as call:
            for message in messages:
                assert await call.read(LONG_S) == message
            for _ in range(2):
                with pytest.raises(CallEnded) as ended:
                    await call.read(LONG_S)
                assert str(ended.value) == why
            assert not call.free
            with pytest.raises(CallEnded):
                await call.write(b"too late")

    asyncio.run(check())


@in_loop
async def test_a_method_that_there_is_not() -> None:
    async with serving(echo) as (_, address):
        call = Call("/test.Echo/Other")
        await call.open(address, None)
        with pytest.raises(CallEnded, match="Method not found"):
            await call.read(LONG_S)
        await call.close()


@in_loop
async def test_a_server_that_goes_down_in_good_order_has_its_say() -> None:
    """It tells that it takes no new streams, then ends those that it has."""
    stopping = asyncio.Event()

    async def talk(context: Context) -> None:
        await context.write(b"welcome")
        await stopping.wait()
        await context.write(b"farewell")

    async with serving(talk) as (server, address), opened(address) as call:
        assert await call.read(LONG_S) == b"welcome"
        stop = asyncio.create_task(server.stop(LONG_S))
        reported: list[bytes] = []
        call._leaves, real = reported.append, call._leaves  # type: ignore[method-assign, assignment]
        await until(lambda: reported, "it is reported")
        real(reported[0])
        stopping.set()
        assert await call.read(LONG_S) == b"farewell"
        with pytest.raises(CallEnded, match="ended the stream"):
            await call.read(LONG_S)
        await call.close()
        await stop


@in_loop
async def test_the_server_sees_at_once_that_the_call_is_closed() -> None:
    gone = asyncio.Event()

    async def talk(context: Context) -> None:
        await context.write(b"welcome")
        try:
            await context.read()
        finally:
            gone.set()

    async with serving(talk) as (_, address):
        async with opened(address) as call:
            await call.read(LONG_S)
        await asyncio.wait_for(gone.wait(), LONG_S)


@in_loop
async def test_a_cancellation_that_comes_with_the_end_is_not_lost() -> None:
    async with serving(echo) as (_, address), opened(address) as call:
        reading = asyncio.create_task(call.read(LONG_S))
        await until(lambda: call._readable._waiters, "it waits")
        call._end("over")
        reading.cancel()
        await asyncio.wait({reading})
        assert reading.cancelled()


# ---- what is no coordinator --------------------------------------------------------------------------

SETTINGS = b"\0\0\0\4\0\0\0\0\0"
PING = b"\0\0\x08\6\0\0\0\0\0any 8 by"
GOAWAY = b"\0\0\x08\7\0\0\0\0\0"


@pytest.mark.parametrize(
    ("answer", "kind", "why"),
    [
        (b"", ClosedAtOnce, "the connection was closed"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ClosedAtOnce, "the answer is not HTTP/2: a frame has"),
        (b"\x15\3\1\0\2\2\x46", ClosedAtOnce, "the answer is not HTTP/2: a frame has"),  # TLS: wrong version
        (b"\0\0\1\0\0\0\0\0\1x", ClosedAtOnce, "the answer is not HTTP/2: "),  # data before any headers
        (SETTINGS + b"\0\0\4\3\0\0\0\0\1\0\0\0\7", CallEnded, "the coordinator reset the stream (REFUSED_STREAM)"),
        (
            SETTINGS + GOAWAY + b"\0\0\0\1\0\0\0\x0b",
            CallEnded,
            "the coordinator closed the connection (ENHANCE_YOUR_CALM)",
        ),
        (SETTINGS + GOAWAY + b"\0\0\0\0\0\0\0\0", CallEnded, "the coordinator closed the connection (NO_ERROR)"),
        (SETTINGS + GOAWAY + b"\0\0\0\0\0\0\1\0", CallEnded, "the coordinator closed the connection (code 256)"),
        (SETTINGS + b"\0\0\1\1\5\0\0\0\1\x88", CallEnded, "the answer has HTTP status 200 and type '': is it from"),
        (SETTINGS + b"\0\0\1\1\5\0\0\0\1\x8d", CallEnded, "the answer has HTTP status 404 and type '': is it from"),
    ],
)
def test_what_is_no_coordinator_is_named(answer: bytes, kind: type[CallEnded], why: str) -> None:
    async def check() -> None:
        async with answering(answer) as address, opened(address) as call:
            with pytest.raises(CallEnded) as ended:
                await call.read(LONG_S)
            assert type(ended.value) is kind
            assert why in str(ended.value)

    asyncio.run(check())


@in_loop
async def test_a_server_that_asks_without_end_and_reads_nothing_is_left() -> None:
    async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SETTINGS)
        with contextlib.suppress(OSError):
            while True:
                writer.write(1000 * PING)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(floods, "127.0.0.1", 0, limit=1)
    async with server, opened(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as call:
        with pytest.raises(CallEnded, match="need answers, but does not read the answers"):
            await call.read(LONG_S)


@in_loop
async def test_frames_of_unknown_types_are_ignored() -> None:
    answer = SETTINGS + b"\0\0\2\x7f\0\0\0\0\0ab" + SETTINGS
    async with answering(answer, then_close=False) as address, opened(address) as call:
        with pytest.raises(TimeoutError):
            await call.read(0.05)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1:1", "cannot connect: Connection refused"),
        ("[::1]:1", "cannot connect: "),
        ("a..b:1", "cannot connect: 'a..b' is not a host name"),
    ],
)
def test_where_no_server_answers(address: str, why: str) -> None:
    async def check() -> None:
        call = Call(METHOD)
        with pytest.raises(CallEnded) as ended:
            await call.open(address, None)
        assert why in str(ended.value) and "[Errno" not in str(ended.value)
        await call.close()

    asyncio.run(check())


@in_loop
async def test_a_name_that_the_resolver_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(CallEnded, match=r"^cannot connect: Name or service not known$"):
        await Call(METHOD).open("nothing:1", None)


@in_loop
async def test_no_caller_waits_for_a_resolver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = threading.Event(), threading.Event()

    def hangs(*_: object, **__: object) -> list[object]:
        asked.set()
        answer.wait(LONG_S)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    call = Call(METHOD)
    opening = asyncio.create_task(call.open("nothing:1", None))
    await until(asked.is_set, "the resolver is asked")
    (thread,) = [t for t in threading.enumerate() if t.name == "resolve"]
    assert thread.daemon, "the end of the process does not wait for it either"
    opening.cancel()
    await asyncio.wait({opening})
    assert opening.cancelled()
    await call.close()
    answer.set()
    await until(lambda: not thread.is_alive(), "its answer is dropped")


@pytest.mark.parametrize("listen", ["[::1]:0", "localhost:0"])
def test_brackets_and_names(listen: str) -> None:
    async def check() -> None:
        async with serving(echo, listen) as (_, address), opened(address) as call:
            await call.write(b"hello")
            assert await call.read(LONG_S) == b"hello"

    asyncio.run(check())


# ---- nothing stays -----------------------------------------------------------------------------------


@in_loop
async def test_calls_that_are_given_up_at_any_moment_leave_nothing(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """No descriptor, no task, and not a word in the log."""
    caplog.set_level(logging.DEBUG, "asyncio")
    asyncio.get_running_loop().set_debug(False)

    async def live(call: Call, address: str, tls: ssl.SSLContext | None) -> None:
        await call.open(address, tls)
        await call.write(b"hello")
        await call.read(LONG_S)
        await call.read(LONG_S)

    authority = Authority(tmp_path)
    shown = server_credentials(Certificates(authority.issue("server"), Lines()))
    trusted = client_context(Certificates(authority.issue("node"), Lines()).current())
    async with (
        serving(echo) as (_, address),
        serving(echo, credentials=shown) as (_, secure),
        answering(b"", then_close=False) as silent,
    ):
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        named = "localhost:" + address.rpartition(":")[2]
        for target, tls in ((address, None), (silent, None), (named, None), (secure, trusted), (silent, trusted)):
            for passes in range(40):
                call = Call(METHOD)
                task = asyncio.create_task(live(call, target, tls))
                for _ in range(passes):
                    await asyncio.sleep(0)
                task.cancel()
                await call.close()
                await asyncio.wait({task})
                assert task.cancelled() or isinstance(task.exception(), CallEnded)
        await until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= descriptors, "all are closed")
        assert len(asyncio.all_tasks()) <= 8
    warnings = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert [r for r in warnings if "PollerCompletionQueue" not in r.getMessage()] == []  # grpcio's own, of its server
