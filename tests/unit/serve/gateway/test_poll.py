"""What the gateway reads of the coordinator's ports, and what it does where none answers."""

from __future__ import annotations

import asyncio
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
        self.body: dict[str, Any] = {}
        self.url = f"http://127.0.0.1:{self.port}"

    async def start(self) -> web.AppRunner:
        async def ports(_: web.Request) -> web.Response:
            return web.json_response(self.body, status=self.status)

        app = web.Application()
        app.router.add_get("/v1/ports", ports)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        return runner


def rows(ttl_ms: float) -> dict[str, Any]:
    return {"ttl_ms": ttl_ms, "ports": [
        {"name": "10.1.0.7/in", "rate_bytes_per_s": 2 * GB, "owed_ns": 500_000_000, "later": 1},
        {"name": "10.1.0.7/out", "rate_bytes_per_s": GB, "owed_ns": 9 * GB},
    ]}  # fmt: skip


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
            assert (a.owed_bytes, a.port_rate_bytes_per_s, b.owed_bytes, c.owed_bytes) == (GB, 2 * GB, None, None)
            assert not a.healthy and "replica-down" in log.events, "a wrong address is reported"
            leads.body = {"ports": "?"}
            await poller.once()
            assert (poller.coordinator, a.owed_bytes) == ("", GB), "what is known holds for its time"
            assert "coordinator-silent" in log.events
            leads.body = rows(-1)
            await poller.once()
            leads.status = 503
            await poller.once()
            assert (poller.coordinator, a.owed_bytes) == ("", None)
        for runner in runners:
            await runner.cleanup()

    asyncio.run(main())
