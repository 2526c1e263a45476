"""Which calls wait for an engine that the gateway starts."""

from __future__ import annotations

import asyncio

from bench.ports import free_port
from mfsd.policy.route import Call, Role
from mfsd.serve.gateway.metrics import Metrics
from mfsd.serve.gateway.prompt import Prompt
from mfsd.serve.gateway.replicas import ReplicaSet, Stage
from mfsd.serve.gateway.residents import Residents
from mfsd.serve.gateway.settings import GatewaySettings, ReplicaSettings, Residency

PROMPT = Prompt(10, 10)


class Log:
    def info(self, event: str, **values: object) -> None: ...

    def warning(self, event: str, **values: object) -> None: ...


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
        residents = Residents(settings, replicas, Log(), Metrics(), lambda: None)
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
