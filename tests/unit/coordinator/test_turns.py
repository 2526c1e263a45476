"""Work in turns: a stream with much to do holds up neither the lease nor the other streams."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from mfsd.coordinator.turns import Turns


class Work:
    """Steps of a millisecond each, on a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.done: list[str] = []

    def steps(self, name: str, count: int) -> Iterator[None]:
        for _ in range(count):
            self.now_s += 0.001
            self.done.append(name)
            yield


def test_the_loop_goes_on_between_slices() -> None:
    async def main() -> None:
        work = Work()
        turns = Turns(0.0045, lambda: work.now_s)
        long = asyncio.create_task(turns.take(work.steps("long", 20)))
        seen: list[int] = []
        while not long.done():
            await asyncio.sleep(0)
            if not seen or seen[-1] != len(work.done):
                seen.append(len(work.done))
        assert seen == [0, 5, 10, 15, 20] or seen == [5, 10, 15, 20]

    asyncio.run(main())


def test_one_after_the_other_and_each_in_order() -> None:
    async def main() -> None:
        work = Work()
        turns = Turns(0.0045, lambda: work.now_s)
        await asyncio.gather(
            turns.take(work.steps("long", 12)), turns.take(work.steps("b", 1)), turns.take(work.steps("c", 1))
        )
        assert work.done == ["long"] * 5 + ["b", "c"] + ["long"] * 7

    asyncio.run(main())


def test_a_step_that_fails_ends_only_its_own_task() -> None:
    async def main() -> None:
        def broken() -> Iterator[None]:
            yield
            raise ValueError("mine")

        work = Work()
        turns = Turns()
        output = await asyncio.gather(turns.take(broken()), turns.take(work.steps("b", 2)), return_exceptions=True)
        assert isinstance(output[0], ValueError)
        assert work.done == ["b", "b"]

    asyncio.run(main())
