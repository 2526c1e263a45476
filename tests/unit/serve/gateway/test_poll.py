"""What the gateway reads of the coordinator's ports, and what it does where none answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from aiohttp import web

from bench.ports import free_port
from mfsd.serve.gateway.poll import Poller
from mfsd.serve.gateway.replicas import ReplicaSet
from mfsd.serve.gateway.settings import GatewaySettings, ReplicaSettings, State
from mfsd.serve.gateway.upstream import session

GB = 10**9


class Log:
    def __init__(self) -> None:
        self.events: list[str] = []

    def info(self, event: str, **values: object) -> None:
        self.events.append(event)

    def warning(self, event: str, **values: object) -> None:
        self.events.append(event)


class Coordinator:
    def __init__(self) -> None:
        self.port, self.status = free_port(), 200
        self.lines: asyncio.Queue[bytes] | None = None
        self.body: dict[str, Any] = {}
        self.url = f"http://127.0.0.1:{self.port}"

    async def start(self) -> web.AppRunner:
        async def ports(request: web.Request) -> web.StreamResponse:
            if "watch" in request.query and self.lines is not None:
                answer = web.StreamResponse(headers={"content-type": "application/x-ndjson"})
                await answer.prepare(request)
                while True:
                    await answer.write(await self.lines.get())
            return web.json_response(self.body, status=self.status)

        app = web.Application()
        app.router.add_get("/v1/ports", ports)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        return runner


def rows(ttl_ms: float) -> dict[str, Any]:
    return {"ttl_ms": ttl_ms, "ports": [
        {"name": "10.1.0.7/in", "rate_bytes_per_s": 2 * GB, "owed_ns": 500_000_000, "later": 1},
        {"name": "10.1.0.7/out", "rate_bytes_per_s": GB, "owed_ns": 9 * GB},
    ]}  # fmt: skip


def test_ports_as_they_change_and_polls_where_a_coordinator_answers_once() -> None:
    async def main() -> None:
        leads, log = Coordinator(), Log()
        leads.body = rows(60_000)
        parts: asyncio.Queue[bytes] = asyncio.Queue()
        settings = GatewaySettings(
            replicas=[ReplicaSettings(f"http://127.0.0.1:{free_port()}", name="a", port="10.1.0.7")],
            state=State(coordinators=[leads.url], poll_ms=10),
        )
        replicas = ReplicaSet(settings)
        (a,) = replicas.all
        runner = await leads.start()

        async def reach(found: int | None) -> None:
            async with asyncio.timeout(60) if hasattr(asyncio, "timeout") else contextlib.nullcontext():
                while a.owed.read_bytes != found:
                    await asyncio.sleep(0.001)

        async with session() as calls:
            poller = Poller(replicas, settings.state, calls, log)
            watching = asyncio.create_task(poller.watch())
            await poller.once()
            assert (a.owed.read_bytes, poller.watched) == (GB, ""), "it knows no stream"
            leads.lines = parts
            line = json.dumps(rows(60_000)).encode()
            more = line.replace(b"500000000", b"250000000")
            for part in (line[:10], line[10:] + b"\n" + more[:20], more[20:], b"\n"):
                parts.put_nowait(part)
            await reach(GB // 2)
            assert poller.watched == leads.url
            leads.body = rows(60_000)
            await poller.once()
            assert a.owed.read_bytes == GB // 2, "it is not asked as well"
            leads.lines = None
            parts.put_nowait(b"[]\n")
            while poller.watched:
                await asyncio.sleep(0.001)
            await poller.once()
            assert a.owed.read_bytes == GB and "coordinator-silent" in log.events
            leads.lines = parts
            parts.put_nowait(json.dumps(rows(0)).encode() + b"\n")
            while not poller.watched:
                await asyncio.sleep(0.001)
            await poller.once()
            assert a.owed.read_bytes is None, "what is too old is not believed while it says nothing"
            watching.cancel()
            await asyncio.wait({watching})
        await runner.cleanup()

    asyncio.run(main())


def test_each_address_of_a_name_is_a_replica_as_long_as_the_name_has_it() -> None:
    async def main() -> None:
        port, log = free_port(), Log()
        found: list[list[str] | OSError] = []

        async def resolve(host: str) -> list[str]:
            assert host == "vllm"
            answer = found.pop(0)
            if isinstance(answer, OSError):
                raise answer
            return answer

        async def models(_: web.Request) -> web.Response:
            return web.json_response({"data": [{"id": "m"}]})

        app = web.Application()
        app.router.add_get("/v1/models", models)
        runner = web.AppRunner(app)
        await runner.setup()
        for address in ("127.0.0.2", "127.0.0.3"):
            await web.TCPSite(runner, address, port).start()
        settings = GatewaySettings(
            replicas=[
                ReplicaSettings(f"http://vllm:{port}", name="v", each_address=True),
                ReplicaSettings(f"http://127.0.0.4:{port}", name="own"),
            ]
        )
        replicas, forgotten = ReplicaSet(settings), list[str]()
        async with session() as calls:
            poller = Poller(replicas, settings.state, calls, log, forgotten.append, resolve)

            async def after(answer: list[str] | OSError) -> list[tuple[str, bool]]:
                found.append(answer)
                await poller.once()
                assert replicas.by_name == {replica.name: replica for replica in replicas.all}
                return [(replica.name, replica.healthy) for replica in replicas.all]

            assert await after(OSError("no such host")) == [("own", False)]
            assert await after(["127.0.0.2", "127.0.0.9"]) == [
                *(("own", False), ("v-127.0.0.2", True), ("v-127.0.0.9", False))
            ]
            kept = replicas.by_name["v-127.0.0.2"]
            assert kept.models == ("m",) and kept.endpoint == f"127.0.0.2:{port}"
            assert len(await after(OSError("no such host"))) == 3, "what is known stays"
            assert await after(["127.0.0.3", "127.0.0.2"]) == [
                *(("own", False), ("v-127.0.0.2", True), ("v-127.0.0.3", True))
            ]
            assert replicas.by_name["v-127.0.0.2"] is kept and forgotten == ["v-127.0.0.9"]
            assert await after([]) == [("own", False)] and not replicas.models()
            assert log.events.count("replicas-not-looked-up") == 2 and log.events.count("replica-gone") == 3
        await runner.cleanup()

    asyncio.run(main())


def test_ports_of_the_coordinator_that_leads_and_none_once_they_are_too_old() -> None:
    async def main() -> None:
        follows, leads, log = Coordinator(), Coordinator(), Log()
        gone = f"http://127.0.0.1:{free_port()}"
        follows.status, leads.body = 503, rows(60_000)
        settings = GatewaySettings(
            replicas=[
                ReplicaSettings(gone, name="a", port="10.1.0.7"),
                ReplicaSettings(gone, name="b", port="10.1.0.8"),
                ReplicaSettings(gone, name="c"),
            ],
            state=State(coordinators=[gone, follows.url, leads.url + "/"]),
        )
        replicas = ReplicaSet(settings)
        a, b, c = replicas.all
        runners = [await follows.start(), await leads.start()]
        async with session() as calls:
            poller = Poller(replicas, settings.state, calls, log)
            await poller.once()
            assert poller.coordinator == leads.url + "/"
            assert (a.owed.read_bytes, a.owed.rate_bytes_per_s) == (GB, 2 * GB)
            assert b.owed.read_bytes is None and c.owed.read_bytes is None
            assert not a.healthy and "replica-down" in log.events, "a wrong address is reported"
            leads.body = {"ports": "?"}
            await poller.once()
            assert (poller.coordinator, a.owed.read_bytes) == ("", GB), "what is known holds for its time"
            assert "coordinator-silent" in log.events
            leads.body = rows(-1)
            await poller.once()
            leads.status = 503
            await poller.once()
            assert (poller.coordinator, a.owed.read_bytes) == ("", None)
        for runner in runners:
            await runner.cleanup()

    asyncio.run(main())
