"""What the gateway learns of an engine with each poll."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bench.ports import free_port
from mfsd.serve.gateway import poll
from mfsd.serve.gateway.app import _poll
from mfsd.serve.gateway.core import Gateway
from mfsd.serve.gateway.poll import MODELS_EVERY, Poller
from mfsd.serve.gateway.replicas import Card, LiveReplica, ReplicaSet
from mfsd.serve.gateway.settings import GatewaySettings, ReplicaSettings, State
from mfsd.serve.gateway.upstream import session


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, event: str, **values: object) -> None:
        self.lines.append(f"{event} {values}")

    def warning(self, event: str, **values: object) -> None:
        self.lines.append(f"{event} {values}")

    def count(self, text: str) -> int:
        return sum(text in line for line in self.lines)


class Engine:
    def __init__(self) -> None:
        self.port, self.key, self.asked = free_port(), "", list[str]()
        self.models: list[dict[str, Any]] = [{"id": "base", "max_model_len": 100, "created": 7}]
        self.metrics = ""
        self.models_text = ""
        """In place of them."""
        self.status: dict[str, int] = {}
        """Of pages, in place of 200."""
        self.silent: set[str] = set()
        """Pages that answer nothing."""

    async def page(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if request.path in self.silent:
            await asyncio.sleep(3600)
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return web.Response(status=401)
        if status := self.status.get(request.path):
            return web.Response(status=status)
        if request.path == "/v1/models" and self.models_text:
            return web.Response(text=self.models_text)
        if request.path == "/v1/models":
            return web.json_response({"data": self.models})
        return web.Response(text=self.metrics)

    @contextlib.asynccontextmanager
    async def serves(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/{page:.*}", self.page)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        try:
            yield
        finally:
            await runner.cleanup()


Check = Callable[[Engine, Poller, LiveReplica, Log], Coroutine[Any, Any, None]]


def polled(check: Check, state: State | None = None, **replica: Any) -> None:
    async def main() -> None:
        engine, log = Engine(), Log()
        settings = GatewaySettings(
            replicas=[ReplicaSettings(f"http://127.0.0.1:{engine.port}", name="a", **replica)],
            state=state or State(),
        )
        replicas = ReplicaSet(settings)
        async with engine.serves(), session() as calls:
            await check(engine, Poller(replicas, settings.state, calls, log), replicas.all[0], log)

    asyncio.run(main())


def test_models_that_an_engine_loads_later_are_found_and_those_it_unloads_go() -> None:
    async def check(engine: Engine, poller: Poller, replica: LiveReplica, log: Log) -> None:
        await poller.once()
        assert replica.models == ("base",) and replica.cards["base"] == Card(prompt_max=100, created=7)
        engine.models = [*engine.models, {"id": "adapter"}]
        for _ in range(MODELS_EVERY - 1):
            await poller.once()
        assert replica.models == ("base",), "not with each poll"
        await poller.once()
        assert replica.models == ("base", "adapter") and log.count("replica-models") == 1
        engine.models = [{"id": "base", "max_model_len": 200}]
        engine.metrics = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="10"} 1.0\n'
        for _ in range(MODELS_EVERY):
            await poller.once()
        assert replica.models == ("base",) and replica.prompt_max == 160

    polled(check)


def test_an_engine_that_asks_for_a_key_is_shown_the_one_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("secret\n")

    async def check(engine: Engine, poller: Poller, replica: LiveReplica, log: Log) -> None:
        engine.key = "secret"
        await poller.once()
        assert replica.healthy and replica.models == ("base",)
        file.write_text("other\n")
        engine.key = "other"
        await poller.once()
        assert replica.healthy, "a key that has changed is read"
        file.unlink()
        for _ in range(3):
            await poller.once()
        assert log.count("api_key_file is ") == 1

    polled(check, api_key_file=str(file))


def test_models_that_cannot_be_read_are_reported_once_with_the_remedy() -> None:
    async def check(engine: Engine, poller: Poller, replica: LiveReplica, log: Log) -> None:
        engine.status["/v1/models"] = 401
        for _ in range(3):
            await poller.once()
        assert replica.healthy and replica.models == ()
        assert log.count("/v1/models answers 401") == log.count("in api_key_file") == 1
        engine.status.clear()
        await poller.once()
        assert replica.models == ("base",)

    polled(check)


@pytest.mark.parametrize("text", ["", "[", "[" * 100_000, "{}", '{"data": [[]]}'])
def test_models_that_are_none_end_no_poll(text: str) -> None:
    async def check(engine: Engine, poller: Poller, replica: LiveReplica, log: Log) -> None:
        engine.models_text = text
        await poller.once()
        engine.models_text = ""
        await poller.once()
        assert replica.healthy

    polled(check)


def test_an_error_of_the_gateways_own_polls_is_logged_once_and_does_not_end_them() -> None:
    async def check(engine: Engine, poller: Poller, replica: LiveReplica, log: Log) -> None:
        settings = GatewaySettings(
            replicas=[ReplicaSettings(f"http://127.0.0.1:{engine.port}")], state=State(poll_ms=10)
        )
        async with session() as calls:
            made = Gateway(settings, calls, log)
            polls, once = list[int](), made.poller.once

            async def fails(most_s: float | None = None) -> None:
                polls.append(1)
                if len(polls) < 3:
                    raise RuntimeError("a mistake")
                await once(most_s)

            made.poller.once = fails  # type: ignore[method-assign]
            task = asyncio.create_task(_poll(made))
            while not made.replicas.all[0].healthy:
                assert not task.done()
                await asyncio.sleep(0.001)
            task.cancel()
        assert log.count("RuntimeError: a mistake") == 1

    polled(check)


class Call:
    def __init__(self) -> None:
        self.problems: list[str] = []

    def lose(self, problem: str) -> None:
        self.problems.append(problem)


def test_an_engine_with_slow_metrics_is_down_but_not_lost_while_anything_comes_from_it() -> None:
    async def check(engine: Engine, poller: Poller, replica: LiveReplica, log: Log) -> None:
        await poller.once()
        call = Call()
        replica.turns.add(call)
        engine.silent = {"/metrics"}
        for _ in range(2):
            await poller.once()
        assert not replica.healthy and not call.problems, "/health answers"
        engine.silent.add("/health")
        engine.silent.add("/v1/models")
        poll = asyncio.create_task(poller.once())
        await asyncio.sleep(0.1)
        replica.seen()  # a part of an answer has come
        await poll
        assert not call.problems
        await poller.once()
        assert call.problems == ["nothing has come from it for 1 s"]

    polled(check, State(lost_after_s=1.0))


def test_an_engine_is_down_when_its_health_page_says_so_and_not_for_want_of_one() -> None:
    async def check(engine: Engine, poller: Poller, replica: LiveReplica, log: Log) -> None:
        for status in (404, 405, 401):
            engine.status["/health"] = status
            await poller.once()
            assert replica.healthy
        engine.status["/health"] = 503
        await poller.once()
        assert replica.healthy, "once is not enough"
        await poller.once()
        assert not replica.healthy and replica.problem == "/health answers 503"
        engine.status.clear()
        await poller.once()
        assert replica.healthy

    polled(check)


def test_a_silent_engine_holds_up_no_other_and_is_asked_nothing_else_meanwhile() -> None:
    async def main() -> None:
        engines = [Engine(), Engine()]
        settings = GatewaySettings(
            replicas=[
                ReplicaSettings(f"http://127.0.0.1:{engine.port}", name=name, models=["base"])
                for engine, name in zip(engines, ("silent", "answers"), strict=True)
            ]
        )
        replicas = ReplicaSet(settings)
        async with engines[0].serves(), engines[1].serves(), session() as calls:
            poller = Poller(replicas, settings.state, calls, Log())
            await poller.once()
            engines[0].silent = {"/metrics", "/health"}
            before = [len(engine.asked) for engine in engines]
            until = 0
            for _ in range(3):
                until += 2
                while len(engines[1].asked) < before[1] + until:
                    await poller.once(most_s=0.01)
            assert len(engines[0].asked) == before[0] + 2, "one poll of it, that goes on"
            await asyncio.gather(poller.once(), poller.replica(replicas.all[0]))
            assert len(engines[0].asked) == before[0] + 2, "both have waited for that one"

    asyncio.run(main())


def test_a_silent_coordinator_and_a_name_that_is_looked_up_for_long_hold_up_no_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poll, "TIMEOUT_S", 60.0)

    async def main() -> None:
        engine = Engine()
        looked_up, found = 0, asyncio.Event()

        async def resolve(host: str) -> list[str]:
            nonlocal looked_up
            looked_up += 1
            await found.wait()
            return ["127.0.0.1"]

        connections = 0
        closed = asyncio.Event()

        async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await closed.wait()
            writer.close()

        coordinator = await asyncio.start_server(says_nothing, "127.0.0.1", 0)
        port = coordinator.sockets[0].getsockname()[1]
        settings = GatewaySettings(
            replicas=[
                ReplicaSettings(f"http://127.0.0.1:{engine.port}", name="answers", models=["base"]),
                ReplicaSettings(f"http://engines:{engine.port}", name="named", models=["base"], each_address=True),
            ],
            state=State(coordinators=[f"http://127.0.0.1:{port}"]),
        )
        replicas = ReplicaSet(settings)
        async with engine.serves(), session() as calls:
            poller = Poller(replicas, settings.state, calls, Log(), resolve=resolve)
            until = 0
            for _ in range(3):
                until += 2
                while len(engine.asked) < until or not connections:
                    await poller.once(most_s=0.01)
            assert (looked_up, connections) == (1, 1), "what has not answered is asked nothing else"
            assert len(replicas.all) == 1
            found.set()
            closed.set()
            coordinator.close()
            await poller.once()
            assert len(replicas.all) == 2 and all(replica.healthy for replica in replicas.all)

    asyncio.run(main())


def test_an_engine_that_cannot_name_its_models_yet_is_not_up() -> None:
    """It loads its model: where it has no health of its own, nothing else says so."""

    async def check(engine: Engine, poller: Poller, replica: LiveReplica, log: Log) -> None:
        engine.status = {"/v1/models": 503, "/metrics": 404, "/health": 404}
        for _ in range(3):
            await poller.once()
            assert not replica.healthy and replica.problem == "/v1/models answers 503"
        engine.status["/v1/models"] = 404
        await poller.once()
        assert replica.healthy, "it has no such page"
        engine.status["/v1/models"] = 503
        for _ in range(2 * MODELS_EVERY):
            await poller.once()
            assert replica.healthy, "it has answered"

    polled(check, models=["m"])


@pytest.mark.parametrize("status", [404, 501])
def test_an_engine_without_metrics_is_known_by_what_it_is_sent(status: int) -> None:
    """llama.cpp's server answers 501 unless it is told to have them."""

    async def check(engine: Engine, poller: Poller, replica: LiveReplica, log: Log) -> None:
        engine.status["/metrics"] = status
        await poller.once()
        assert replica.healthy

    polled(check)
