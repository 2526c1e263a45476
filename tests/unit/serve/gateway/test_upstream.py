"""Calls to engines: what is kept between them, and what is followed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from bench.ports import free_port
from mfsd.serve.gateway.replicas import LiveReplica
from mfsd.serve.gateway.settings import ReplicaSettings
from mfsd.serve.gateway.upstream import Upstream, content_of, headers_back, session


def test_a_cookie_of_an_engine_goes_to_its_client_alone() -> None:
    async def main() -> None:
        port, cookies = free_port(), list[str]()

        async def complete(request: web.Request) -> web.Response:
            cookies.append(request.headers.get("cookie", ""))
            return web.Response(headers={"set-cookie": "who=first; Path=/"})

        runner = await _serve(port, complete)
        # A jar keeps the cookies of names alone, not of addresses.
        replica = LiveReplica(ReplicaSettings(f"http://localhost:{port}"))
        async with session() as calls:
            upstream = Upstream(calls)
            for headers in ([], [], [(b"cookie", b"who=third")]):
                answer = await upstream.post(replica, "/v1/completions", b"{}", headers, "id")
                assert (b"set-cookie", b"who=first; Path=/") in headers_back(answer, replica)
                await answer.read()
        await runner.cleanup()
        assert cookies == ["", "", "who=third"]

    asyncio.run(main())


def test_a_redirect_is_the_answer_and_the_call_is_sent_once() -> None:
    async def main() -> None:
        port, calls_seen = free_port(), list[str]()

        async def complete(request: web.Request) -> web.Response:
            calls_seen.append(request.path)
            return web.Response(status=307, headers={"location": "/v1/chat/completions"})

        runner = await _serve(port, complete)
        replica = LiveReplica(ReplicaSettings(f"http://127.0.0.1:{port}"))
        async with session() as calls:
            answer = await Upstream(calls).post(replica, "/v1/completions", b"{}", [], "id")
            assert answer.status == 307 and (b"location", b"/v1/chat/completions") in headers_back(answer, replica)
            await answer.read()
        await runner.cleanup()
        assert calls_seen == ["/v1/completions"]

    asyncio.run(main())


def test_headers_of_clients_reach_the_engine_byte_by_byte() -> None:
    async def main() -> None:
        port, seen = free_port(), list[tuple[bytes, bytes]]()

        async def complete(request: web.Request) -> web.Response:
            seen.extend(request.raw_headers)
            return web.Response()

        runner = await _serve(port, complete)
        replica = LiveReplica(ReplicaSettings(f"http://127.0.0.1:{port}"))
        sent = [(b"x-title", "\N{GREEK SMALL LETTER MU}s \N{EURO SIGN}".encode()), (b"x-a", b"1"), (b"x-a", b"2")]
        async with session() as calls:
            await (await Upstream(calls).post(replica, "/v1/completions", b"{}", sent, "id")).read()
        await runner.cleanup()
        assert [one for one in seen if one[0].startswith(b"x-") and one[0] != b"x-request-id"] == sent

    asyncio.run(main())


def test_each_part_of_a_whole_answer_is_a_sign_of_life() -> None:
    async def main() -> None:
        port, rest = free_port(), asyncio.Event()

        async def complete(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"content-type": "application/json"})
            await response.prepare(request)
            await rest.wait()
            await response.write(b"{}")
            return response

        runner = await _serve(port, complete)
        replica = LiveReplica(ReplicaSettings(f"http://127.0.0.1:{port}"))
        never_s = replica.seen_s
        async with session() as calls:
            answer = await Upstream(calls).post(replica, "/v1/completions", b"{}", [], "id")
            assert replica.seen_s < never_s, "its head has come"
            replica.seen_s = never_s
            rest.set()
            assert await content_of(answer, replica) == b"{}"
            assert replica.seen_s < never_s
        await runner.cleanup()

    asyncio.run(main())


async def _serve(port: int, complete: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.AppRunner:
    app = web.Application()
    for path in ("/v1/completions", "/v1/chat/completions"):
        app.router.add_post(path, complete)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "localhost", port).start()
    return runner
