"""Which calls wait for an engine that the gateway starts, and what an engine waits for that starts or wakes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from bench.ports import free_port
from mfsd.policy.route import Call, Role
from mfsd.serve.gateway.metrics import Metrics
from mfsd.serve.gateway.prompt import Prompt
from mfsd.serve.gateway.replicas import LiveReplica, ReplicaSet, Stage
from mfsd.serve.gateway.residents import Residents
from mfsd.serve.gateway.settings import GatewaySettings, ReplicaSettings, Residency, Sleep
from mfsd.serve.gateway.sleep import CannotSleep, Sleeper

PROMPT = Prompt(10, 10)


class Log:
    def info(self, event: str, **values: object) -> None: ...

    def warning(self, event: str, **values: object) -> None: ...


class Calls(Sleeper):
    """Calls to put engines to sleep and to wake them, each of which ends when the test says so."""

    def __init__(self) -> None:
        self.open: dict[str, asyncio.Future[None]] = {}

    async def sleep(self, replica: LiveReplica, most_s: float) -> None:
        await self._open(f"{replica.name} sleeps")

    async def wake(self, replica: LiveReplica, most_s: float) -> None:
        await self._open(f"{replica.name} wakes")

    async def _open(self, what: str) -> None:
        self.open[what] = asyncio.get_running_loop().create_future()
        await self.open[what]

    async def end(self, what: str, error: Exception | None = None) -> None:
        await until(lambda: what in self.open)
        call = self.open.pop(what)
        call.set_exception(error) if error else call.set_result(None)


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.001)


class Node:
    """Two engines, and memory for one of them beside one that sleeps."""

    def __init__(self, calls: Calls) -> None:
        able = {"sleep": Sleep.VLLM, "weights_bytes": 40, "sleeping_bytes": 10}
        made = [msgspec.structs.replace(engine(name), models=[name], **able) for name in "ab"]
        memory = Residency(memory_bytes=100, host_memory_bytes=80)
        settings = GatewaySettings(replicas=made, residency=memory)
        self.replicas, self.metrics = ReplicaSet(settings), Metrics()
        self.residents = Residents(settings, self.replicas, Log(), self.metrics, calls, lambda: None)

    def wants(self, name: str) -> None:
        assert self.residents.wanted(Call(model=name), PROMPT, Role.BOTH)

    def stages(self) -> str:
        return " ".join(replica.stage.value for replica in self.replicas.all)

    def counted(self, name: str, change: str) -> int:
        return int(self.metrics.engines.labels(name, change)._value.get())

    async def serves(self, name: str) -> None:
        """Lets a poll find that the engine answers, and the engine have had a request."""
        await until(lambda: self.counted(name, "started") > 0)
        replica = self.replicas.by_name[name]
        replica.up()
        self.residents.tick()
        replica.used_s += 0.001


@asynccontextmanager
async def node(calls: Calls) -> AsyncIterator[Node]:
    made = Node(calls)
    await made.residents.begin()
    try:
        yield made
    finally:
        for what in list(calls.open):
            await calls.end(what, CannotSleep("the test ends"))
        await made.residents.close()


def test_an_engine_starts_and_wakes_only_after_the_other_one_has_fallen_asleep() -> None:
    async def main() -> None:
        calls = Calls()
        async with node(calls) as made:
            made.wants("a")
            await made.serves("a")
            made.replicas.by_name["a"].prefixes.sent([b"chunk"])
            made.wants("b")
            await until(lambda: "a sleeps" in calls.open)
            assert made.stages() == "sleeps starts" and made.counted("b", "started") == 0
            assert not made.replicas.by_name["a"].prefixes.cached_tokens([b"chunk"]), "its cache is gone"
            assert not made.replicas.by_name["a"].up() and made.stages() == "sleeps starts", "a late poll says nothing"
            await calls.end("a sleeps")
            await made.serves("b")
            made.wants("a")
            await until(lambda: "b sleeps" in calls.open)
            assert made.stages() == "wakes sleeps" and "a wakes" not in calls.open
            await calls.end("b sleeps")
            await calls.end("a wakes")
            await until(lambda: made.stages() == "runs sleeps")
            assert made.replicas.by_name["a"].healthy and made.counted("a", "started") == 1
        assert made.stages() == "stopped stopped"

    asyncio.run(main())


def test_who_fails_to_fall_asleep_is_stopped_before_the_other_one_wakes() -> None:
    async def main() -> None:
        calls = Calls()
        async with node(calls) as made:
            made.wants("a")
            await made.serves("a")
            made.wants("b")
            await until(lambda: "a sleeps" in calls.open)
            made.wants("a")
            assert made.stages() == "sleeps starts", "the other one starts and is waited for"
            await calls.end("a sleeps")
            await made.serves("b")
            made.wants("a")
            await calls.end("b sleeps", CannotSleep("not now"))
            await until(lambda: "a wakes" in calls.open)
            assert made.stages() == "wakes stopped", "its process is gone"
            await calls.end("a wakes")
            await until(lambda: made.stages() == "runs stopped")
            assert made.counted("b", "failed") == made.counted("b", "stopped") == 1

    asyncio.run(main())


def test_an_engine_that_does_not_wake_is_stopped_and_starts_again_at_once() -> None:
    async def main() -> None:
        calls = Calls()
        async with node(calls) as made:
            made.wants("a")
            await made.serves("a")
            made.wants("b")
            await calls.end("a sleeps")
            await made.serves("b")
            made.wants("a")
            await calls.end("b sleeps")
            await calls.end("a wakes", CannotSleep("no"))
            await until(lambda: made.stages() == "stopped sleeps")
            made.wants("a")
            await until(lambda: made.counted("a", "started") == 2)
            assert made.stages() == "starts sleeps" and made.counted("a", "woken") == 0

    asyncio.run(main())


def engine(name: str, role: Role = Role.BOTH) -> ReplicaSettings:
    url = f"http://127.0.0.1:{free_port()}"
    return ReplicaSettings(url, name=name, role=role, models=["m"], command=["sleep", "1000"], memory_bytes=60)


def test_only_calls_that_an_engine_may_have_start_it() -> None:
    async def main() -> None:
        settings = GatewaySettings(
            replicas=[engine("a"), engine("b", Role.PREFILL), engine("c", Role.DECODE)],
            residency=Residency(memory_bytes=100),
        )
        replicas = ReplicaSet(settings)
        residents = Residents(settings, replicas, Log(), Metrics(), Calls(), lambda: None)
        await residents.begin()
        a, b = replicas.by_name["a"], replicas.by_name["b"]
        try:
            assert not residents.wanted(Call(model="n"), PROMPT, Role.BOTH)
            assert not residents.wanted(Call(model="m"), PROMPT, Role.BOTH, among={"b", "c"})
            assert a.stage is b.stage is Stage.STOPPED
            assert residents.wanted(Call(model="m"), PROMPT, Role.BOTH)
            assert a.stage is Stage.STARTS
            assert residents.wanted(Call(model="m"), PROMPT, Role.PREFILL), "by the one that starts"
            assert residents.wanted(Call(model="m"), PROMPT, Role.PREFILL, among={"b"}), "it waits for memory"
            assert b.stage is Stage.STOPPED
        finally:
            await residents.close()
        assert a.stage is Stage.STOPPED
        assert not residents.wanted(Call(model="m"), PROMPT, Role.BOTH), "the gateway ends"

    asyncio.run(main())
