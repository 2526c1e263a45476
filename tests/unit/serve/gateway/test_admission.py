"""Who of those that wait gets a place that is free."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from mfsd.policy.route import Call, Role
from mfsd.serve.gateway.admission import Place
from mfsd.serve.gateway.core import Gateway
from mfsd.serve.gateway.prompt import Prompt
from mfsd.serve.gateway.settings import GatewaySettings, ReplicaSettings
from tests.support.ext_proc import gateway

SMALL_AND_LARGE = GatewaySettings(
    replicas=[
        ReplicaSettings("http://10.0.0.1:8000", name="small", kv_tokens=100, requests_max=1),
        ReplicaSettings("http://10.0.0.2:8000", name="large", requests_max=1),
    ]
)
SHORT, LONG = Prompt(10, 10), Prompt(1000, 1000)


def with_gateway(work: Callable[[Gateway], Awaitable[None]]) -> None:
    async def main() -> None:
        async with gateway(SMALL_AND_LARGE) as made:
            await work(made)
            assert not any(made.admission.of_tier.values()) and not len(made.admission)

    asyncio.run(main())


async def asks(made: Gateway, prompt: Prompt) -> asyncio.Task[Place]:
    """In the queue, since all replicas are full."""
    before = len(made.admission)
    task = asyncio.create_task(made.admission.place(Call(prompt_tokens=prompt.tokens), prompt, Role.BOTH))
    while len(made.admission) == before:
        await asyncio.sleep(0)
    return task


def test_a_long_prompt_in_front_keeps_no_short_one_from_a_replica_that_is_too_small_for_it() -> None:
    async def work(made: Gateway) -> None:
        small, large = made.replicas.all
        small.foreign_running = large.foreign_running = 1
        long, short = await asks(made, LONG), await asks(made, SHORT)
        small.foreign_running = 0
        made.admission.wake()
        place = await asyncio.wait_for(short, 60)
        assert place.replica is small and not long.done()
        large.foreign_running = 0
        made.admission.wake()
        assert (await asyncio.wait_for(long, 60)).replica is large
        for task, prompt in ((short, SHORT), (long, LONG)):
            made.admission.give_back(task.result(), Call(prompt_tokens=prompt.tokens), prompt)

    with_gateway(work)
