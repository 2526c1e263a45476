"""One client's request while it goes on: it can be ended from outside, with an error as the end of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from mfsd.serve.gateway.answer import INTERNAL, Answer, Receive, Refused


class Ongoing:
    """Made in the task that serves the request."""

    __slots__ = ("_task", "refused")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self.refused: Refused | None = None
        """Why it was ended; the task gets CancelledError, and answers that."""

    def end(self, refused: Refused) -> None:
        if self.refused is None:
            self.refused = refused
            self._task.cancel()


async def until_left(
    every: set[Ongoing], answer: Answer, receive: Receive, serve: Callable[[Ongoing], Awaitable[str]]
) -> str:
    """The outcome of `serve`, also where the client leaves or the request is ended from outside. An error of the
    gateway itself is answered and raised. every: has the request while it goes on."""
    left = False
    task = asyncio.current_task()
    assert task is not None

    async def watch() -> None:
        nonlocal left
        while (await receive())["type"] != "http.disconnect":
            pass
        left = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    ongoing = Ongoing()
    every.add(ongoing)
    try:
        return await serve(ongoing)
    except asyncio.CancelledError:
        if left:
            return "withdrawn"
        if ongoing.refused is None:
            raise
        watcher.cancel()  # a client that leaves now ends nothing but this answer
        await answer.failed(ongoing.refused)
        return "failed"
    except Exception:
        await answer.failed(INTERNAL)
        raise
    finally:
        watcher.cancel()
        every.discard(ongoing)
