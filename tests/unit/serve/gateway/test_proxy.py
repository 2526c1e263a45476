"""The HTTP front where clients leave, and where the gateway itself fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from aiohttp import web

from bench.ports import free_port
from mfsd.policy.route import Role
from mfsd.serve.gateway import answer
from mfsd.serve.gateway.core import Gateway
from mfsd.serve.gateway.proxy import Proxy
from mfsd.serve.gateway.settings import GatewaySettings, ReplicaSettings
from tests.support.ext_proc import gateway


class Client:
    """Of one request, as the web server shows it to the gateway."""

    def __init__(
        self, made: Gateway, path: str = "/v1/completions", more: bool = False, body: bytes = b'{"prompt": "one two"}'
    ) -> None:
        """more: the rest of its body never comes."""
        self._gateway, self._path = made, path
        self._in: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._in.put_nowait({"type": "http.request", "body": body, "more_body": more})
        self.sent: list[dict[str, Any]] = []
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async def send(message: Any) -> None:
            self.sent.append(dict(message))

        scope = {"type": "http", "method": "POST", "headers": []}
        await Proxy(lambda: self._gateway, self._path)(scope, self._in.get, send)

    def leave(self) -> None:
        self._in.put_nowait({"type": "http.disconnect"})

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def code(self) -> str:
        return str(json.loads(self.sent[-1]["body"])["error"]["code"])


class Engine:
    """Holds every request until it is cancelled, or all may end."""

    def __init__(self) -> None:
        self.port, self.asked, self.aborted = free_port(), 0, 0
        self.may_end = asyncio.Event()

    async def start(self) -> web.AppRunner:
        async def complete(_: web.Request) -> web.Response:
            self.asked += 1
            try:
                await self.may_end.wait()
            except asyncio.CancelledError:
                self.aborted += 1
                raise
            return web.Response()

        app = web.Application()
        app.router.add_post("/v1/completions", complete)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        return runner


async def until(condition: Callable[[], bool]) -> None:
    async def waits() -> None:
        while not condition():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(waits(), 60)


def outcomes(made: Gateway) -> dict[str, float]:
    (family,) = made.metrics.requests.collect()
    return {s.labels["outcome"]: s.value for s in family.samples if s.name.endswith("_total")}


def served(work: Callable[[Gateway, Engine], Coroutine[Any, Any, None]], *roles: Role) -> None:
    async def main() -> None:
        engine = Engine()
        url = f"http://127.0.0.1:{engine.port}"
        settings = GatewaySettings(
            replicas=[
                ReplicaSettings(url, name=role.value, role=role, requests_max=1) for role in roles or (Role.BOTH,)
            ]
        )
        runner = await engine.start()
        async with gateway(settings) as made:
            await work(made, engine)
            for replica in made.replicas.all:
                assert (replica.waiting, replica.running, replica.waiting_tokens) == (0, 0, 0), replica.name
                assert not replica.turns
            assert not any(made.admission.of_tier.values()) and not len(made.admission) and not made.ongoing
        await runner.cleanup()

    asyncio.run(main())


def test_a_client_that_leaves_the_queue_gets_no_place_and_holds_none() -> None:
    async def work(made: Gateway, engine: Engine) -> None:
        first = Client(made)
        await until(lambda: engine.asked == 1)
        waits = Client(made)
        await until(lambda: len(made.admission) == 1)
        waits.leave()
        await waits.task
        assert not len(made.admission) and not waits.sent and outcomes(made) == {"withdrawn": 1}
        first.leave()
        await first.task
        await until(lambda: engine.aborted == 1)
        assert engine.asked == 1 and outcomes(made) == {"withdrawn": 2}

    served(work)


def test_a_place_that_is_given_as_its_client_leaves_goes_to_the_next_one() -> None:
    async def work(made: Gateway, engine: Engine) -> None:
        (replica,) = made.replicas.all
        replica.foreign_running = 1
        leaves, stays = Client(made), Client(made)
        await until(lambda: len(made.admission) == 2)
        leaves.leave()  # what waits for it takes notice in the loop's next step: by then the place is given
        replica.foreign_running = 0
        made.admission.wake()
        assert len(made.admission) == 1 and replica.waiting == 1
        await leaves.task
        await until(lambda: engine.asked == 1)
        assert not leaves.sent and outcomes(made) == {"withdrawn": 1} and replica.waiting == 1
        stays.leave()
        await stays.task

    served(work)


def test_a_client_that_leaves_during_the_prefill_has_no_decode() -> None:
    async def work(made: Gateway, engine: Engine) -> None:
        client = Client(made)
        await until(lambda: engine.asked == 1)
        assert made.replicas.by_name["prefill"].requests == 1
        client.leave()
        await client.task
        await until(lambda: engine.aborted == 1)
        assert engine.asked == 1 and not client.sent and outcomes(made) == {"withdrawn": 1}

    served(work, Role.PREFILL, Role.DECODE)


def test_a_request_that_outlasts_its_replicas_address_leaves_no_metrics_of_it() -> None:
    async def main() -> None:
        engine = Engine()
        each = ReplicaSettings(f"http://engines:{engine.port}", each_address=True)
        runner = await engine.start()
        async with gateway(GatewaySettings(replicas=[each])) as made:
            (replica,), _ = made.replicas.found(0, {"127.0.0.1"})
            replica.up()
            clients = [Client(made), Client(made)]
            await until(lambda: engine.asked == 2)
            made.replicas.found(0, set())
            made.metrics.forget(replica.name)
            engine.may_end.set()
            for client in clients:
                await client.task
                assert client.status == 200
            assert replica.name not in made.metrics_text().decode()
        await runner.cleanup()

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/embeddings"])
def test_what_cannot_be_split_is_refused_by_prefill_and_decode_alone(path: str) -> None:
    async def work(made: Gateway, engine: Engine) -> None:
        client = Client(made, path=path)
        await client.task
        assert (client.status, client.code) == (400, "path_not_served") and outcomes(made) == {"refused": 1}

    served(work, Role.PREFILL, Role.DECODE)


def test_an_error_of_the_gateway_itself_is_answered_and_counted() -> None:
    async def work(made: Gateway, engine: Engine) -> None:
        async def broken(*_: object) -> Any:
            raise RuntimeError("a mistake")

        made.admission.place = broken  # type: ignore[method-assign, assignment]
        client = Client(made)
        with pytest.raises(RuntimeError, match="a mistake"):
            await client.task
        assert (client.status, client.code) == (500, "internal_error") and outcomes(made) == {"error": 1}

    served(work)


def test_no_depth_of_brackets_is_an_error_of_the_gateway() -> None:
    """Some that can be read as calls are no more so deep when they are written for the engine."""

    async def work(made: Gateway, engine: Engine) -> None:
        depth, refused = 1000, 0
        while True:
            client = Client(made, body=b'{"x": ' + b"[" * depth + b"]" * depth + b"}")
            await until(lambda client=client: client.task.done() or engine.asked > 0)
            if engine.asked:
                break
            await client.task
            assert (client.status, client.code) == (400, "invalid_json")
            depth, refused = depth - 1, refused + 1
        client.leave()
        await client.task
        assert refused and outcomes(made)["refused"] > 0 and "error" not in outcomes(made)

    served(work)


def test_a_body_that_does_not_come_is_answered_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "BODY_S", 0.1)

    async def work(made: Gateway, engine: Engine) -> None:
        client = Client(made, more=True)
        await client.task
        assert (client.status, client.code) == (408, "body_too_slow")
        assert (b"connection", b"close") in client.sent[0]["headers"]
        leaves = Client(made, more=True)
        leaves.leave()
        await leaves.task
        assert not leaves.sent and not engine.asked

    served(work)
